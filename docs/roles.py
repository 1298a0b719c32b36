"""Docstrings as Markdown: what is reStructuredText in them is written as code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

RULE = r"^=+ [= ]*(?:\n|\Z)"
TABLE = re.compile(rf"{RULE}(?:.+\n)+?{RULE}(?:(?:.+\n)+?{RULE})?", re.M)
"""A table between rules of equals signs."""


def as_markdown(text: str) -> str:
    """A docstring's text with its roles, double backticks, figures and tables as Markdown."""
    text = re.sub(r":[a-z]+:`~?([^`]+)`", r"`\1`", text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    text = re.sub(r"::\n\n(?=    )", ":\n\n", text)
    return TABLE.sub(lambda found: f"```text\n{found[0].rstrip()}\n```\n", text)


class Roles(Extension):
    """Rewrites the docstrings that the site shows."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
