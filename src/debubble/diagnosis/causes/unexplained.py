"""Unexplained times of actions, and shared helpers of all causes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import FORWARD_KINDS
from debubble.diagnosis.observed import Indices, Times
from debubble.diagnosis.run import Run

LEAST = 1.03
"""Minimum ratio of the time of a slow stage, worker or copy to that of the others."""

OUTLIER = 1.3
"""Minimum ratio of an outlier's time to its usual time."""

SURE = 4.0
"""Minimum difference of two means, in standard errors."""

FAR, SOME = 1.1, 0.2
"""Minimum ratio of a far longer step, and minimum share of such steps."""

TOGETHER = 0.9
"""Minimum share, or correlation, of times with one cause."""

MOST = 0.7
"""Minimum share of a loss that is attributed to one rank."""


@dataclass(frozen=True, eq=False)
class Fault:
    """One cause of lost time in actions."""

    cause: str
    """One of :data:`debubble.diagnosis.account.CAUSES`."""
    excess: Times
    """Excess time of every action in seconds, shape ``(rows, actions)``; negative if the action is
    shorter than without the cause."""
    where: dict[str, int] = field(default_factory=dict)
    """Number of the ``"stage"``, ``"rank"`` or ``"copy"`` of the cause, if it is in one."""
    size: float = math.nan
    """Ratio of its actions' times to the usual ones; NaN if it has no meaning."""
    late: Times | float = 0.0
    """Excess host delay before every action in seconds, of the same shape as `excess`."""
    by_kind: dict[str, float] = field(default_factory=dict)
    """Ratio as in `size`, by kind."""
    count: int = 0
    """Number of affected actions if they are few; else 0."""


@dataclass(eq=False)
class Unexplained:
    """Times of actions and host delays before them, less the explained parts."""

    run: Run
    """The run."""
    times: Times
    gaps: Times
    """Host delays before actions in seconds; like `times` of shape ``(rows, actions)``."""
    shares: Times
    """Share of every action in its overlapped group, 1 for actions alone; of the same shape."""

    def less(self, fault: Fault) -> Unexplained:
        """Return the times that remain after another fault."""
        return replace(self, times=self.times - fault.excess, gaps=self.gaps - fault.late)

    def level(self) -> Times:
        """Return the mean time of each action's (copy, stage, class)."""
        run = self.run
        level = np.ones_like(self.times)
        for copy in np.unique(run.copy).tolist():
            rows = np.flatnonzero(run.copy == copy)
            for columns in cells_of(run.stage, run.cls):
                level[np.ix_(rows, columns)] = self.times[np.ix_(rows, columns)].mean()
        return np.where(level > 0, level, 1.0)

    def medians(self) -> Times:
        """Return the median of each action's stage and class in each row."""
        return medians_of(self.run, self.times, self.run.cls)

    def only_rank(self, excess: Times) -> dict[str, int]:
        """Return the rank with most of an excess, or an empty dict if there is none."""
        run = self.run
        total = np.bincount(run.rank, np.where(run.counted, excess, 0.0).sum(axis=0),
                            run.schedule.ranks)  # fmt: skip
        most = int(total.argmax())
        return {"rank": most} if total[most] > MOST * total.sum() else {}


def is_slow(ratio: Times) -> bool:
    """Return True if ratios of steps are above 1 by more than chance, or far above it in some."""
    mean = float(ratio.mean())
    error = float(ratio.std() / np.sqrt(len(ratio)))
    return mean > LEAST and (mean - 1 > SURE * error or float((ratio > FAR).mean()) > SOME)


def cells_of(stage: Indices, cls: Indices) -> Iterator[NDArray[np.int64]]:
    """Yield the actions of every (stage, class)."""
    keys = stage * 64 + cls
    for key in np.unique(keys).tolist():
        yield np.flatnonzero(keys == key)


def medians_of(run: Run, times: Times, cls: Indices) -> Times:
    """Return the median of each action's stage and class in each row, for any classes.

    If up to half of the forwards take far longer than the others and no backwards do, as during
    garbage collection of the host, it is the median of the other forwards.
    """
    found = np.zeros_like(times)
    spread = np.ones((run.rows, run.schedule.stages))
    stands: list[tuple[int, NDArray[np.int64], Times]] = []
    for columns in cells_of(run.stage, cls):
        mine = times[:, columns]
        found[:, columns] = usual = np.median(mine, axis=1, keepdims=True)
        low = np.quantile(mine, 0.25, axis=1, keepdims=True, method="lower")
        stage = int(run.stage[columns[0]])
        if cls[columns[0]] in FORWARD_KINDS:
            stands.append((stage, columns, np.where(usual > OUTLIER * low, low, usual)))
        else:
            apart = (usual / np.maximum(low, 1e-30))[:, 0]
            spread[:, stage] = np.maximum(spread[:, stage], apart)
    for stage, columns, usual in stands:
        steady = spread[:, stage] < FAR
        found[np.ix_(steady, columns)] = usual[steady]
    return found
