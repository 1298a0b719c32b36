"""The results of timelines as the columns of a table, the same wherever they are compared."""

from __future__ import annotations

from collections.abc import Sequence

from debubble.analysis.check import TOLERANCE
from debubble.analysis.layout import Column
from debubble.analysis.metrics import p2p_volume, parameter_copies
from debubble.core.units import memory_scale, number, percent
from debubble.engine.memory import Limit, memory_limits
from debubble.engine.timeline import Timeline


def result_columns(
    names: Sequence[str],
    timelines: Sequence[Timeline],
    *,
    ratios: Sequence[float | None] | None = None,
    limit: Limit | None = None,
) -> list[Column]:
    """What a table says about timelines, a row each.

    Parameters
    ----------
    names
        What each of them is called.
    ratios
        Makespans divided by that of the best, None where rows cannot be held against each other;
        None for no such column.
    limit
        A memory limit, or one for each rank, for a column that says which of them keep it.
    """
    costs = [timeline.table.costs for timeline in timelines]
    times = {cost.time_unit for cost in costs}
    unit = times.pop() if len(times) == 1 else ""
    amounts = {cost.activation_unit for cost in costs}
    peaks = [float(timeline.peak_activation.max()) for timeline in timelines]
    scale = memory_scale(amounts.pop() if len(amounts) == 1 else "", max(peaks, default=0.0))

    def column(head: str, values: Sequence[str], rank: int, unit: str = "") -> Column:
        parts = (*head.split("|"), f"[{unit}]") if unit else tuple(head.split("|"))
        return Column(parts, tuple(values), rank)

    found = [
        Column(("schedule",), tuple(names), left=True),
        column("makespan", [number(timeline.makespan) for timeline in timelines], 0, unit),
    ]
    if ratios is not None and len(timelines) > 1:
        texts = ["–" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
        found.append(column("time /|best", texts, 0))
    found += [
        column("bubble|ratio", [percent(timeline.bubble_ratio) for timeline in timelines], 1),
        column("overhead", [percent(timeline.overhead) for timeline in timelines], 2),
        column("peak|activation", [scale.text(peak) for peak in peaks], 0, scale.unit),
        column(
            "parameter|copies",
            [number(parameter_copies(timeline.schedule)) for timeline in timelines],
            3,
        ),
        column("p2p|volume", [number(p2p_volume(timeline)) for timeline in timelines], 4),
    ]
    if limit is not None:
        kept = ["yes" if keeps(timeline, limit) else "no" for timeline in timelines]
        found.append(column("within|memory", kept, 0))
    return found


def keeps(timeline: Timeline, limit: Limit | None) -> bool:
    """Whether every rank stays within its memory."""
    limits = memory_limits(limit, timeline.schedule.ranks)
    return limits is None or bool((timeline.peak_activation <= limits * (1 + TOLERANCE)).all())
