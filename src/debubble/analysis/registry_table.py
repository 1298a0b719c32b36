"""Every schedule at one size: the numbers of its row in tables, wherever it is listed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from debubble.analysis.measures import parameter_copies
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError
from debubble.core.schedule import sizes
from debubble.core.units import number, percent
from debubble.engine.timeline import Timeline, simulate
from debubble.schedules import registry
from debubble.schedules.registry import Entry

RANKS, MICROBATCHES, CHUNKS = 8, 32, 2
"""Ranks and microbatches that schedules are listed for, and chunks where they leave a choice."""


@dataclass(frozen=True)
class Glance:
    """A schedule at the size of the tables, or at the nearest it accepts."""

    timeline: Timeline
    away: str
    """Sizes that are not those of the tables: ``"p = 4"``; empty where all are."""

    @property
    def peak_activation(self) -> float:
        """Activation units on the fullest rank."""
        return float(self.timeline.peak_activation.max())

    @property
    def memory(self) -> str:
        """Text of the activation units on the fullest rank."""
        return number(round(self.peak_activation, 2))

    @property
    def bubble(self) -> str:
        """Text of the idle share of rank-time."""
        return percent(self.timeline.bubble_ratio)

    def to_dict(self) -> dict[str, Any]:
        """Return sizes and numbers as plain data."""
        found = self.timeline
        return {
            **sizes(found.schedule, "ranks", "microbatches", "chunks"),
            "peak_activation": self.peak_activation,
            "parameter_copies": parameter_copies(found.schedule),
            "bubble_ratio": found.bubble_ratio,
            "stage_bubble_rate": found.stage_bubble_rate,
        }


def glance(entry: Entry, costs: Costs | None = None) -> Glance | None:
    """Return a schedule at the size of the tables; None when it needs more than sizes.

    Without costs F, I and W take one unit of time each, and transfers none. Chunks give way before
    ranks and microbatches do.
    """
    for ranks, microbatches, chunks in _nearest(entry):
        try:
            schedule = registry.make(
                entry.name, ranks=ranks, microbatches=microbatches, chunks=chunks, costs=costs
            )
            timeline = simulate(schedule, costs)
        except DebubbleError:
            return None
        usual = (RANKS, MICROBATCHES, entry.chunks or CHUNKS)
        found = (("p", ranks), ("m", microbatches), ("v", chunks))
        away = [f"{key} = {x}" for (key, x), same in zip(found, usual, strict=True) if x != same]
        return Glance(timeline, ", ".join(away))
    return None


def _nearest(entry: Entry) -> Iterator[tuple[int, int, int]]:
    """Yield ranks, microbatches and chunks that a schedule accepts, the nearest first."""
    sides = [(p, m) for p in range(1, 2 * RANKS + 1) for m in range(1, 2 * MICROBATCHES + 1)]
    sides.sort(key=lambda s: (abs(s[0] - RANKS), abs(s[1] - MICROBATCHES), s))
    several = [entry.chunks] if entry.chunks else dict.fromkeys((CHUNKS, entry.default_chunks, 1))
    for ranks, microbatches in sides:
        for chunks in several:
            case = entry.case(ranks=ranks, microbatches=microbatches, chunks=chunks)
            if all(constraint.holds(case) for constraint in entry.constraints):
                yield ranks, microbatches, chunks
