"""The results of timelines as the columns of a table, the same wherever they are compared."""

from __future__ import annotations

from collections.abc import Sequence

from debubble.analysis.layout import Column
from debubble.analysis.measures import MEASURES, Measure
from debubble.core.units import Scale, memory_scale
from debubble.engine.memory import ROUNDING, Limit, memory_limits
from debubble.engine.timeline import Timeline


def result_columns(
    names: Sequence[str],
    timelines: Sequence[Timeline],
    *,
    ratios: Sequence[float | None] | None = None,
    limit: Limit | None = None,
) -> list[Column]:
    """Return columns of a table of results, one row per timeline.

    Ratios are makespans divided by that of the best, None where rows cannot be held against each
    other; without them there is no such column. With a memory limit, or one for each rank, a column
    has whether they keep it.
    """
    unit, memory = shared_units(timelines)
    peaks = [float(timeline.peak_activation.max()) for timeline in timelines]
    scale = memory_scale(memory, max(peaks, default=0.0))

    def column(measure: Measure) -> Column:
        shown = {"time": Scale(unit), "memory": scale}.get(measure.unit, Scale(""))
        head = [*measure.head.split("|"), *([f"[{shown.unit}]"] if shown.unit else [])]
        texts = (measure.text(measure.one(timeline), shown) for timeline in timelines)
        return Column(tuple(head), tuple(texts), measure.left_out)

    found = [Column(("schedule",), tuple(names), left=True)]
    for measure in MEASURES:
        if measure.head:
            found.append(column(measure))
        if measure.key == "makespan" and ratios is not None and len(timelines) > 1:
            texts = ["–" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
            found.append(Column(("time /", "best"), tuple(texts)))
    if limit is not None:
        kept = ["yes" if keeps(timeline, limit) else "no" for timeline in timelines]
        found.append(Column(("within", "memory"), tuple(kept)))
    return found


def shared_units(timelines: Sequence[Timeline]) -> tuple[str, str]:
    """Return units of times and of activation memory, empty where timelines differ or have none."""
    costs = [timeline.table.costs for timeline in timelines]
    times = {cost.time_unit for cost in costs}
    memory = {cost.activation_unit for cost in costs}
    return (times.pop() if len(times) == 1 else "", memory.pop() if len(memory) == 1 else "")


def keeps(timeline: Timeline, limit: Limit | None) -> bool:
    """Return whether every rank stays within its memory."""
    limits = memory_limits(limit, timeline.schedule.ranks)
    return limits is None or bool((timeline.peak_activation <= limits * (1 + ROUNDING)).all())
