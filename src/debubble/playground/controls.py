"""Controls that the page makes from lists: fields of costs, and choices of lowerings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from debubble.analysis.unread_costs import NEEDS
from debubble.core.costs import COST_FIELDS
from debubble.lowering.chain import LOWERINGS
from debubble.playground import limits
from debubble.playground.state import MOST


@dataclass(frozen=True)
class CostControl:
    """Field of a cost, with a slider; its hint is the cost's own description."""

    name: str
    label: str = ""
    """Label; the default is the name."""
    value: str = ""
    """Text at the start; empty for the cost's default."""
    placeholder: str = ""
    """Text for the cost's default."""
    most: float = 4
    """Largest value of the slider at the start."""
    tick: float = 0.05
    """Distance of its values."""


COSTS = (
    CostControl("F", value="1"),
    CostControl("I", value="1"),
    CostControl("W", value="1"),
    CostControl("O", "O pair", placeholder="sum", most=12, tick=0.1),
    CostControl("p2p", placeholder="0", most=1, tick=0.01),
    CostControl("OPT", "optimizer step", placeholder="0"),
    CostControl("unshard", "gather weights", placeholder="0"),
    CostControl("reduce_grad", "reduce gradients", placeholder="0"),
)
"""Costs with a field on the page, in its order; requests and files may have the others."""


def cost_controls() -> list[dict[str, Any]]:
    """Return the fields of costs as plain data."""
    return [
        asdict(control)
        | {
            "label": control.label or control.name,
            "hint": COST_FIELDS[control.name].text,
            "needs": _needs_of(control.name),
        }
        for control in COSTS
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


def page_limits() -> dict[str, Any]:
    """Return the limits that the page itself keeps to."""
    return {
        "sizes": MOST,
        "file": limits.MAX_FILE,
        "trace": limits.MAX_TRACE,
        "trace_files": limits.MAX_TRACE_FILES,
    }


def _needs_of(cost: str) -> dict[str, Any] | None:
    """Return the field of the page without which a cost is not paid, if there is one."""
    need = NEEDS.get(cost)
    return _needs(need.option, need.values) if need is not None and need.option else None


def _needs(field: str, values: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"field": field, "values": list(values)}
