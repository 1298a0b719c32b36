"""Controls that the page makes from lists: fields of costs, and choices of lowerings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from debubble.core.costs import COST_FIELDS
from debubble.lowering.chain import LOWERINGS


@dataclass(frozen=True)
class CostControl:
    """A field for a cost, with a slider; its hint is the cost's own description."""

    name: str
    """The cost."""
    label: str = ""
    """Label of the field; empty for the name."""
    value: str = ""
    """Text at the start; empty for the cost's default."""
    placeholder: str = ""
    """Text for the cost's default."""
    most: float = 4
    """Largest value of the slider."""
    tick: float = 0.05
    """Distance of its values."""
    needs: tuple[str, tuple[str, ...]] | None = None
    """Field of the page without which the cost is not paid, and its values that count; an empty
    tuple for any value."""


COSTS = (
    CostControl("F", value="1"),
    CostControl("I", value="1"),
    CostControl("W", value="1"),
    CostControl("O", "O pair", placeholder="sum", most=12, tick=0.1),
    CostControl("p2p", placeholder="0", most=1, tick=0.01),
    CostControl("OPT", "optimizer step", placeholder="0", needs=("iterations", ())),
    CostControl("unshard", "gather weights", placeholder="0", needs=("sharding", ("fsdp",))),
    CostControl("reduce_grad", "reduce gradients", placeholder="0", needs=("sharding", ())),
)
"""Costs with a field on the page, in its order; requests and files may have the others."""


def cost_controls() -> list[dict[str, Any]]:
    """Fields of costs as plain data."""
    return [
        {
            "name": control.name,
            "label": control.label or control.name,
            "hint": COST_FIELDS[control.name].text,
            "value": control.value,
            "placeholder": control.placeholder,
            "most": control.most,
            "tick": control.tick,
            "needs": _needs(*control.needs) if control.needs else None,
        }
        for control in COSTS
    ]


def choices() -> list[dict[str, Any]]:
    """Choices of lowerings as plain data; the first value is the one at the start."""
    found = []
    for row in LOWERINGS:
        if row.on_page is None:
            continue
        none = {} if row.part_of else {"": row.on_page.none}
        found.append(
            {
                "name": row.name,
                "label": row.on_page.label,
                "hint": row.on_page.hint,
                "values": [*none.items(), *row.on_page.values.items()],
                "needs": _needs(row.part_of) if row.part_of else None,
            }
        )
    return found


def _needs(field: str, values: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"field": field, "values": list(values)}
