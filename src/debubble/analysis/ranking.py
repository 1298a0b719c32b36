"""Schedules of a comparison as rows, and their ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from debubble.analysis.metrics import recompute_text
from debubble.core.layers import Cut
from debubble.core.schedule import Schedule, sizes
from debubble.engine.ensembles import Spread
from debubble.engine.timeline import Timeline

RankedBy: TypeAlias = Literal["makespan", "overhead"]


@dataclass(frozen=True, eq=False)
class Row:
    """One schedule of a comparison.

    Parameters
    ----------
    name
        Name in the comparison.
    schedule, timeline
        The schedule and its simulation.
    values
        By its name, every measure of :data:`debubble.analysis.measures.MEASURES` that comparisons
        have; the row has each of them as an attribute, too: ``row.p2p_volume``.
    fits
        Whether every rank is within the memory limit.
    ratio
        Makespan divided by that of the first row; None where makespans are of different work.
    spread
        Step times under jitter; None without.
    wins
        Share of the steps under jitter in which it is the fastest.
    layers
        Layers of every stage; empty where none were cut.
    """

    name: str
    schedule: Schedule
    timeline: Timeline
    values: Mapping[str, Any]
    fits: bool = True
    ratio: float | None = 1.0
    spread: Spread | None = None
    wins: float = 0.0
    layers: Cut = ()

    @property
    def makespan(self) -> float:
        """Last end − first start over all ranks."""
        return float(self.values["makespan"])

    @property
    def overhead(self) -> float:
        """Share of the ideal time that it takes beyond that."""
        return float(self.values["overhead"])

    @property
    def peak_activation(self) -> float:
        """Activation memory of the fullest rank."""
        return float(self.values["peak_activation"])

    def __getattr__(self, name: str) -> Any:
        # Also asked while a copy has no fields yet.
        values = vars(self).get("values", {})
        if name not in values:
            raise AttributeError(f"a row has no '{name}'; it has {', '.join(values)}")
        return values[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        schedule = self.schedule
        return {
            "name": self.name,
            "schedule": schedule.name,
            **sizes(schedule, "ranks", "chunks", "stages", "microbatches", "iterations"),
            "recompute": recompute_text(schedule) or None,
            "ratio": self.ratio,
            "fits": self.fits,
            **self.values,
            **({"layers": list(self.layers)} if self.layers else {}),
            **({"jitter": self.spread.to_dict() | {"wins": self.wins}} if self.spread else {}),
        }


def ranked(rows: Sequence[Row], by: RankedBy) -> tuple[Row, ...]:
    """Return rows within memory first, each part by `by`, then memory; with ratios to the first.

    Makespans of different work have no ratio.
    """

    def place(row: Row) -> tuple[bool, float, float]:
        # Equal times computed in different order differ in the last digits.
        value = row.makespan if by == "makespan" else row.overhead
        return not row.fits, float(f"{value:.9g}"), row.peak_activation

    ordered = sorted(rows, key=place)
    if by == "overhead":
        return tuple(replace(row, ratio=None) for row in ordered)
    best = ordered[0].makespan if ordered else 0.0
    return tuple(replace(row, ratio=row.makespan / best if best else 1.0) for row in ordered)
