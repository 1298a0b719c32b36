"""The timeline in the browser: one custom element for files, notebooks and the playground.

``assets/timeline/`` has its parts; they share one scope and are joined here. There is nothing to
build, and nothing is fetched: the script carries its style.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

PARTS = (
    "shared", "payload", "model", "waits", "theme", "strip", "glyphs", "marks", "painter", "view",
    "input", "output", "vector", "element", "overlay", "panel",
)  # fmt: skip

TAG = "debubble-timeline"


def asset(name: str) -> str:
    """Return the text of a file in ``assets/``."""
    return resources.files("debubble.view").joinpath("assets", *name.split("/")).read_text("utf-8")


@cache
def script() -> str:
    """Return the component as one script, which may run twice in a document."""
    style = json.dumps(asset("timeline/timeline.css"))
    parts = "\n".join(asset(f"timeline/{name}.js") for name in PARTS)
    # Parts that are modules elsewhere, too, share the scope of the others here.
    parts = re.sub(r"^export ", "", parts, flags=re.MULTILINE)
    return f'(() => {{\n"use strict";\nconst STYLE = {style};\n\n{parts}}})();\n'


def element(payload: Mapping[str, Any], *, fallback: str = "", attributes: str = "") -> str:
    """Return the component's element with its data inside, for a page that has the script.

    The payload is of :func:`debubble.view.timeline_data.encode`; `fallback` is HTML for readers
    without scripts. Attributes are ``page`` where the address of the page holds the view, ``keys``
    where all keys are for the timeline, ``cell`` in a notebook, and ``layers="bubbles,memory"`` for
    the layers at the start.
    """
    # "<" cannot end the script element early when it is written as an escape.
    data = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c")
    return (
        f"<{TAG}{f' {attributes}' if attributes else ''}>"
        f'<script type="application/json">{data}</script>{fallback}</{TAG}>'
    )
