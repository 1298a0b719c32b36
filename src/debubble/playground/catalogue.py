"""Registry as the page shows it: descriptions, requirements, options and figures."""

from __future__ import annotations

import re
from typing import Any

from debubble.schedules import registry
from debubble.schedules.registry import Entry, Option

_PRIVATE = re.compile(r",? see :mod:`[\w.]*\._\w+`")
_ROLE = re.compile(r":[a-z]+:`~?(?:[\w.]+\.)?([\w]+)`")


def catalogue() -> list[dict[str, Any]]:
    """Return every registered schedule by name: description, requirements, and figure."""
    return [_described(entry) for entry in sorted(registry.schedules(), key=lambda e: e.name)]


def _described(entry: Entry) -> dict[str, Any]:
    return {
        **entry.to_dict(),
        "constraints": [{"field": c.parameter, "text": c.text} for c in entry.constraints],
        "options": [_option(option) for option in entry.options],
        "about": prose(entry.text),
    }


def _option(option: Option) -> dict[str, Any]:
    """Return an option as an input: a choice, a tick, a number, or a text."""
    types = option.types
    kind = "text"
    if option.choices:
        kind = "choice"
    elif types == ("bool",):
        kind = "truth"
    elif set(types) <= {"int", "float", "None"}:
        kind = "whole" if "float" not in types else "number"
    return {
        "name": option.name,
        "kind": kind,
        "choices": list(option.choices),
        "default": option.default,
        "text": unmarked(option.text),
    }


def prose(text: str) -> list[dict[str, str]]:
    r"""Return the text of a schedule: paragraphs and preformatted figures, no markup.

    Examples
    --------
    >>> prose("Runs ``F``, like this::\n\n    r0 | F0\n    r1 | .")[1]
    {'kind': 'figure', 'text': 'r0 | F0\nr1 | .'}
    """
    found: list[dict[str, str]] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.split("\n")
        if all(line.startswith("    ") for line in lines):
            figure = "\n".join(line[4:].rstrip() for line in lines)
            if found and found[-1]["kind"] == "figure":
                found[-1]["text"] += f"\n\n{figure}"
            else:
                found.append({"kind": "figure", "text": figure})
        elif block.strip():
            found.append({"kind": "text", "text": unmarked(" ".join(map(str.strip, lines)))})
    return found


def unmarked(text: str) -> str:
    """Return text without the markup of docstrings."""
    text = _ROLE.sub(r"\1", _PRIVATE.sub("", text))
    return re.sub(r"::$", ":", text.replace("``", "").replace("`", "").strip())
