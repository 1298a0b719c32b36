"""Times of actions that the causes found so far leave unexplained, and helpers of all causes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import FORWARD_KINDS
from debubble.diagnosis.observed import Times
from debubble.diagnosis.run import Run

LEAST = 1.03
"""A stage, worker or copy is slow from so many times the time of the others on."""

OUTLIER = 1.3
"""Times its usual time from which an action may be an outlier."""

SURE = 4.0
"""Standard errors by which a mean has to differ."""

FAR, SOME = 1.1, 0.2
"""Share of the steps that have to be so many times as long where others are not."""

TOGETHER = 0.9
"""Share, or correlation, from which things belong together."""

MOST = 0.7
"""Share of a loss from which it is one rank's."""


@dataclass(frozen=True, eq=False)
class Fault:
    """One cause of lost time in actions."""

    cause: str
    """One of :data:`debubble.diagnosis.account.CAUSES`."""
    excess: Times
    """What it adds to every action, shape ``(rows, actions)``; negative where an action is shorter
    than it would be."""
    late: Times
    """What it adds to the time that the host is late with an action, in the same way."""
    where: dict[str, int] = field(default_factory=dict)
    """Numbers of the ``"stage"``, ``"rank"``, ``"copy"`` it is in, as far as it is in one."""
    size: float = math.nan
    """How many times as long its actions take; NaN where that says nothing."""
    by_kind: dict[str, float] = field(default_factory=dict)
    """The same for every kind."""
    count: int = 0
    """How many actions it is in, where they are few enough to be counted; else 0."""


@dataclass(eq=False)
class Unexplained:
    """Times of actions, and time that the host was late with them, less what is explained."""

    run: Run
    """The run."""
    times: Times
    gaps: Times
    """As `times`, shape ``(rows, actions)``."""

    def less(self, fault: Fault) -> Unexplained:
        """Return the times without what another fault explains."""
        return Unexplained(self.run, self.times - fault.excess, self.gaps - fault.late)

    def fault(
        self, cause: str, excess: Times, where: dict[str, int], size: float = math.nan
    ) -> Fault:
        """Return a fault inside actions."""
        return Fault(cause, excess, np.zeros_like(excess), where, float(size))

    def level(self) -> Times:
        """Return mean time of every (copy, stage, class), for every action."""
        run = self.run
        level = np.ones_like(self.times)
        for copy in np.unique(run.copy).tolist():
            rows = np.flatnonzero(run.copy == copy)
            for columns in self.cells():
                level[np.ix_(rows, columns)] = self.times[np.ix_(rows, columns)].mean()
        return np.where(level > 0, level, 1.0)

    def cells(self) -> Iterator[NDArray[np.int64]]:
        """Yield the actions of every (stage, class)."""
        run = self.run
        keys = run.stage * 64 + run.cls
        for key in np.unique(keys).tolist():
            yield np.flatnonzero(keys == key)

    def medians(self) -> Times:
        """Return the median of each action's stage and class in each row.

        That is the median; where up to half of the forwards take far longer than the others, and
        no backwards do, as when a host collects garbage, it is what the others take.
        """
        run = self.run
        found = np.zeros_like(self.times)
        spread = np.ones((run.rows, run.schedule.stages))
        stands: list[tuple[int, NDArray[np.int64], Times]] = []
        for columns in self.cells():
            times = self.times[:, columns]
            found[:, columns] = usual = np.median(times, axis=1, keepdims=True)
            low = np.quantile(times, 0.25, axis=1, keepdims=True, method="lower")
            stage = int(run.stage[columns[0]])
            if run.cls[columns[0]] in FORWARD_KINDS:
                stands.append((stage, columns, np.where(usual > OUTLIER * low, low, usual)))
            else:
                apart = (usual / np.maximum(low, 1e-30))[:, 0]
                spread[:, stage] = np.maximum(spread[:, stage], apart)
        for stage, columns, usual in stands:
            steady = spread[:, stage] < FAR
            found[np.ix_(steady, columns)] = usual[steady]
        return found

    def only_rank(self, excess: Times) -> dict[str, int]:
        """Return the rank that has most of it, if one has."""
        run = self.run
        total = np.bincount(run.rank, np.where(run.counted, excess, 0.0).sum(axis=0),
                            run.schedule.ranks)  # fmt: skip
        most = int(total.argmax())
        lone = run.schedule.ranks > 1 and total[most] > MOST * total.sum()
        return {"rank": most} if lone else {}


def is_slow(ratio: Times) -> bool:
    """Return whether ratios of steps are above 1 by more than chance, or far above it in some."""
    mean = float(ratio.mean())
    error = float(ratio.std() / np.sqrt(len(ratio)))
    return mean > LEAST and (mean - 1 > SURE * error or float((ratio > FAR).mean()) > SOME)
