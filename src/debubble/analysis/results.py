"""Results of timelines, and step times that vary, in words and as columns of a table."""

from __future__ import annotations

from collections.abc import Sequence

from debubble.analysis.layout import Column, wrap
from debubble.analysis.measures import MEASURES, Measure
from debubble.analysis.metrics import above_limit
from debubble.core.units import Scale, memory_scale, number, percent
from debubble.core.units import time as time_text
from debubble.engine.ensembles import Spread
from debubble.engine.memory import Limit
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
    return limit is None or not above_limit(timeline.peak_activation, limit)


RACE = (
    "what a rank computes for a microbatch takes one random factor forward and one backward, the "
    "same in all schedules"
)
"""Convention of jitter: the parts that vary together."""


def spread_lines(spread: Spread, unit: str, width: int) -> list[str]:
    """Return the spread of one schedule's step times for people."""
    count = f"{len(spread.times):,} samples, seed {spread.jitter.seed}"
    values = {"mean": spread.mean} | spread.percentiles()
    texts = [f"{name} {time_text(value, unit)}" for name, value in values.items()]
    lines = wrap(f"step time under jitter: {spread.jitter.words} ({count}):", width, 2)
    slower = f"{number(spread.slowdown, 4)} times the makespan"
    lines += [f"  {line}" for line in wrap(f"{', '.join(texts)}; {slower}", width - 2, 2)]
    return lines + [line for note in spread.notes for line in wrap(f"note: {note}", width, 2)]


def spread_columns(spreads: Sequence[Spread], wins: Sequence[float], unit: str) -> list[Column]:
    """Return columns of a comparison under jitter; without shares of wins where no race is fair."""
    shown = [f"[{unit}]"] if unit else []
    found = [
        Column(("mean", "step", *shown), tuple(number(spread.mean) for spread in spreads)),
        Column(("p95", "step", *shown), tuple(number(spread.p95) for spread in spreads)),
    ]
    if wins:
        found.append(Column(("wins",), tuple(map(percent, wins))))
    return found


def spread_words(spread: Spread) -> str:
    """Return the convention of a comparison's step times."""
    count = f"{len(spread.times):,} samples, seed {spread.jitter.seed}"
    text = f"{spread.jitter.words} ({count})"
    return text if spread.jitter.times is None else f"{text}; {RACE}"
