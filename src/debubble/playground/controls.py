"""Lists that the page makes its controls from: schedules, costs, lowerings, and limits."""

from __future__ import annotations

import re
from typing import Any

from debubble.analysis.metrics import MODES
from debubble.analysis.unread_costs import NEEDS
from debubble.core.costs import COST_FIELDS
from debubble.lowering.chain import LOWERINGS
from debubble.playground import limits
from debubble.schedules import registry
from debubble.schedules.registry import Entry, Option

COSTS: dict[str, dict[str, Any]] = {
    "F": {"value": "1"},
    "I": {"value": "1"},
    "W": {"value": "1"},
    "O": {"label": "O pair", "placeholder": "sum", "most": 12, "tick": 0.1},
    "p2p": {"placeholder": "0", "most": 1, "tick": 0.01},
    "OPT": {"label": "optimizer step", "placeholder": "0"},
    "unshard": {"label": "gather weights", "placeholder": "0"},
    "reduce_grad": {"label": "reduce gradients", "placeholder": "0"},
}
"""Costs with a field on the page, in its order; requests and files may have the others."""

USUAL = {"value": "", "placeholder": "", "most": 4, "tick": 0.05}
"""Text of a field at the start, empty for the cost's default, which the placeholder shows; largest
value of its slider at the start, and the distance of its values."""


def cost_controls() -> list[dict[str, Any]]:
    """Return the fields of costs as plain data; the hint is the cost's own description."""
    return [
        {"name": name, "label": name, **USUAL, **own}
        | {"hint": COST_FIELDS[name].text, "needs": _needs_of(name)}
        for name, own in COSTS.items()
    ]


def choices() -> list[dict[str, Any]]:
    """Return the choices of lowerings as plain data; the first value is the default."""
    return [
        {
            "name": row.name,
            "label": row.on_page.label,
            "hint": row.on_page.hint,
            "values": [
                *([] if row.part_of else [("", row.on_page.none)]),
                *row.on_page.values.items(),
            ],
            "needs": _needs(row.part_of) if row.part_of else None,
        }
        for row in LOWERINGS
        if row.on_page is not None
    ]


def page_lists() -> dict[str, Any]:
    """Return the registry, the p2p modes, the controls, and the limits that the page keeps to."""
    return {
        "schedules": catalogue(), "modes": MODES, "costs": cost_controls(), "choices": choices(),
        "limits": {
            "sizes": limits.MOST, "file": limits.MAX_FILE, "trace": limits.MAX_TRACE,
            "trace_files": limits.MAX_TRACE_FILES,
        },
    }  # fmt: skip


def _needs_of(cost: str) -> dict[str, Any] | None:
    """Return the field of the page without which a cost is not paid, if there is one."""
    need = NEEDS.get(cost)
    return _needs(need.option, need.values) if need is not None and need.option else None


def _needs(field: str, values: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"field": field, "values": list(values)}


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
