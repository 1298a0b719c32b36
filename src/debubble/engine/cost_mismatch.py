"""Caveats of times: orders that lack actions, or were computed for other costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.cost_table import CostTable
from debubble.core.costs import Costs
from debubble.core.kind_relations import PASS_KINDS, REDUCTION_KIND
from debubble.core.kinds import VOCABULARY_KINDS
from debubble.core.schedule import Schedule
from debubble.core.slicing import even_cut
from debubble.engine.validate import has

DEFAULT = Costs()

WORDS = {
    "order": "the schedule was",
    "cut": "the slices were",
    "recomputes": "the places of recomputes were",
    "copies": "the places of copies were",
}
"""Subject and verb by computed part (:data:`debubble.core.schedule_fields.FROM_COSTS`)."""


LACKING = "the schedule lacks backwards, so its time covers only a part; debubble.check lists them"
UNREDUCED = (
    "no REDUCE_GRAD, as in listings of older PyTorch: today's neither divides its gradients by the "
    "number of microbatches nor reduces them"
)


def caveats_of(schedule: Schedule, table: CostTable, complete: bool) -> tuple[str, ...]:
    """Return caveats of the times of a schedule, which may lack actions unless it is complete."""
    unreduced = schedule.explicit_reduction and not has(schedule, (REDUCTION_KIND,))
    notes = ("" if complete else LACKING, mismatch(schedule, table), UNREDUCED if unreduced else "")
    return tuple(filter(None, notes))


def mismatch(schedule: Schedule, table: CostTable) -> str:
    """Mismatch between the costs a schedule was made for and those it runs on; empty if none.

    Costs that are all larger by one factor lead to the same order, and a cut depends on attention
    alone.
    """
    made = schedule.made_for
    if made is None or made == table.costs:
        return ""
    parts = schedule.from_costs or ("order",)
    other = not _alike(schedule, made.table(schedule), table)
    both = (made, table.costs) if "cut" in parts else ()
    cuts = [even_cut(schedule.placement, schedule.slices, costs) for costs in both] or [(), ()]
    recut = len(cuts[0]) != len(cuts[1]) or not _equal(*map(np.array, cuts))
    off = [name for name in parts if (recut if name == "cut" else other)]
    if not off:
        return ""
    what = "one unit of time each for F, I and W" if made == DEFAULT else "other costs"
    if off == ["cut"] and made.attention == 0:
        what = "costs without attention"
    it = "it" if off == ["order"] else "the schedule"
    return (
        f"{WORDS[off[0]]} computed for {what}, not for these; make {it} with costs=… to have it fit"
    )


def remembering(schedule: Schedule, part: str, costs: Costs) -> Schedule:
    """Return a schedule that records a part computed from costs; earlier costs stay."""
    return replace(
        schedule,
        made_for=schedule.made_for or costs,
        from_costs=tuple(dict.fromkeys((*schedule.from_costs, part))),
    )


def _alike(schedule: Schedule, made: CostTable, table: CostTable) -> bool:
    """Return whether two tables lead to the same computed schedule and placement.

    They depend on times up to a factor, and on memory up to another where there is no limit.
    """
    here, there = _times(schedule, table), _times(schedule, made)
    if here.shape != there.shape or not _equal(_shares(here), _shares(there)):
        return False
    here, there = (np.stack([t.activation, t.kept, t.checkpoint]) for t in (table, made))
    if "memory" in schedule.options or {"recomputes", "copies"} & {*schedule.from_costs}:
        return _equal(here, there) and _equal(table.static, made.static)
    return _equal(_shares(here), _shares(there))


def _times(schedule: Schedule, table: CostTable) -> NDArray[np.float64]:
    """Return times that schedules are computed from: of actions, transfers, and copies if any."""
    kinds = [*PASS_KINDS, *VOCABULARY_KINDS]
    links = table.link if table.boundaries is None else table.boundaries.time
    parts = [table.duration[kinds].ravel(), links.ravel()]
    if "copies" in schedule.from_costs:
        parts.append(table.activation * table.offload / table.costs.host_bandwidth)
    return np.concatenate(parts)


def _shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values / (values.sum() or 1.0)


def _equal(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    return bool(np.allclose(a, b, rtol=1e-9, atol=0))
