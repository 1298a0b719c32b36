"""Step times that vary, in words and as columns of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from debubble.analysis.layout import Column, wrap
from debubble.core.units import number, percent
from debubble.core.units import time as time_text
from debubble.engine.ensembles import Spread

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
