"""Slowdown of a run against the same run without stragglers.

In the ideal run, every action takes the mean time of its kind over all microbatches, stages and
copies of the step, and every message the median of all. The slowdown S is the time of the run,
replayed without host delays, over that of the ideal one. S_stage[s], S_copy[c], S_kind[k] and
S_rank[r] are the slowdowns with only stage s, copy c, kind k, or all stages of rank r as measured
and all else ideal. M_S and M_W are the shares of the slowdown that vanish if only the last stage,
or the slowest 3 % of the workers, become ideal. The ideal mean includes the slow ones, so a share
may be above 1 (arXiv 2505.05713).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from debubble.diagnosis.observed import Times
from debubble.diagnosis.replay import Replay
from debubble.diagnosis.run import Run, class_name

SLOWEST = 0.03
"""Share of the workers that count as the slowest."""

NOTHING = 1e-2
"""Minimum slowdown with meaningful shares."""


@dataclass(frozen=True, eq=False)
class Slowdown:
    """Slowdowns of a run, defined in the module's docstring."""

    actual: Times
    """Replayed time of every step in seconds, shape ``(steps,)``."""
    ideal: Times
    """Time of every step with ideal times."""
    without_last: Times
    """Time of every step with an ideal last stage, all else as measured."""
    without_slowest: Times
    """Time of every step with ideal slowest workers, all else as measured."""
    stage: tuple[float, ...]
    """Slowdown with only one stage as measured; the next three likewise."""
    rank: tuple[float, ...]
    copy: tuple[float, ...]
    kind: dict[str, float]

    @property
    def total(self) -> float:
        """Total slowdown: step time over that of the same run without stragglers."""
        return float(self.actual.sum() / self.ideal.sum())

    @cached_property
    def last_stage(self) -> float | None:
        """M_S, or None without a slowdown."""
        return self.share(self.without_last)

    @cached_property
    def slowest_workers(self) -> float | None:
        """M_W, or None without a slowdown."""
        return self.share(self.without_slowest)

    def share(self, fixed: Times) -> float | None:
        """Return the share of the slowdown that a fix removes."""
        lost = float((self.actual - self.ideal).sum())
        if lost < NOTHING * float(self.ideal.sum()):
            return None
        return float((self.actual - fixed).sum()) / lost


def slowdown(replay: Replay) -> Slowdown:
    """Replay a run with ideal times, wholly and in part."""
    run = replay.run
    times, messages = replay.times, replay.transfers.in_flight
    ideal = ideal_times(run, times)
    quick = ideal_messages(replay)
    rows = replay.lengths(ideal, quick)
    actual, best = replay.steps(times, messages), run.slowest(rows)

    def only(mask: Times | np.ndarray) -> Times:
        """Return every row with ideal times but for those in a mask of columns."""
        return replay.lengths(np.where(mask, times, ideal), quick)

    schedule = run.schedule
    by_stage = [only(run.stage == stage) for stage in range(schedule.stages)]
    ranks = [only(run.rank == rank) for rank in range(schedule.ranks)]
    alone = replay.lengths(times, quick)
    by_copy = [np.where(run.copy == copy, alone, rows) for copy in range(run.copies)]
    kinds = {class_name(cls): only(run.cls == cls) for cls in np.unique(run.cls).tolist()}

    def ratio(lengths: Times) -> float:
        return float(run.slowest(lengths).sum() / best.sum())

    of_rank, of_copy = [ratio(one) for one in ranks], [ratio(one) for one in by_copy]
    workers = _slowest(run, times, of_rank, of_copy)
    slow = np.zeros_like(times, dtype=bool)
    for copy, rank in workers:
        slow |= (run.copy == copy)[:, None] & (run.rank == rank)[None, :]
    last = (run.stage == schedule.stages - 1)[None, :]
    return Slowdown(
        actual, best,
        replay.steps(np.where(last, ideal, times), messages),
        replay.steps(np.where(slow, ideal, times), messages),
        tuple(map(ratio, by_stage)), tuple(of_rank), tuple(of_copy),
        {name: ratio(lengths) for name, lengths in kinds.items()},
    )  # fmt: skip


def _slowest(
    run: Run, times: Times, ranks: list[float], copies: list[float]
) -> list[tuple[int, int]]:
    """Return the slowest workers as (copy, rank): slow both by their rank and by their copy.

    Ties go to the workers with the longest computation.
    """
    busy = np.zeros((len(copies), len(ranks)))
    for copy in range(len(copies)):
        mean = np.where(run.counted, times, 0.0)[run.copy == copy].mean(axis=0)
        busy[copy] = np.bincount(run.rank, mean, len(ranks))
    workers = [(c, r) for c in range(len(copies)) for r in range(len(ranks))]
    workers.sort(key=lambda w: (-round(min(ranks[w[1]], copies[w[0]]), 4), -busy[w]))
    return workers[: math.ceil(SLOWEST * len(workers))]


def ideal_times(run: Run, times: Times) -> Times:
    """Return the mean of every class of actions in each step, for every action of it."""
    ideal = np.zeros_like(times)
    for rows in run.rows_of_steps:
        for cls in np.unique(run.cls).tolist():
            columns = np.flatnonzero(run.cls == cls)
            ideal[np.ix_(rows, columns)] = times[np.ix_(rows, columns)].mean()
    return ideal


def ideal_messages(replay: Replay) -> Times:
    """Return the median of all messages, for every action that receives one."""
    run, messages = replay.run, replay.transfers.in_flight
    receives = run.source >= 0
    if not receives.any():
        return messages
    return np.where(receives, np.median(messages[:, receives]), 0.0) * np.ones_like(messages)
