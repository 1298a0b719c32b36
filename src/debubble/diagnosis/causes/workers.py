"""Data-parallel copies, and single ranks of them, that are slower than their peers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from debubble.diagnosis.causes.unexplained import Fault, Unexplained, is_slow
from debubble.diagnosis.observed import Times
from debubble.diagnosis.run import work_of_ranks


def slow_copies(left: Unexplained) -> Iterator[Fault]:
    """Yield copies with all ranks slower than those of the other copies."""
    run = left.run
    ratio = _against_copies(left)
    if ratio is None or run.schedule.ranks < 2:
        return
    for copy in np.unique(run.copy).tolist():
        here = run.copy == copy
        if all(is_slow(ratio[here, rank]) for rank in range(run.schedule.ranks)):
            yield _slow(left, "slow-copy", {"copy": copy}, np.median(ratio[here], axis=1))


def slow_workers(left: Unexplained) -> Iterator[Fault]:
    """Yield single ranks of a copy that are slower than their peers in other copies."""
    run = left.run
    ratio = _against_copies(left)
    if ratio is None:
        return
    for copy in np.unique(run.copy).tolist():
        here = run.copy == copy
        for rank in range(run.schedule.ranks):
            if not is_slow(ratio[here, rank]):
                continue
            where = {"rank": rank, "copy": copy}
            if run.schedule.chunks == 1:
                where["stage"] = int(run.stage[run.rank == rank][0])
            yield _slow(left, "slow-worker", where, ratio[here, rank])


def _slow(left: Unexplained, cause: str, where: dict[str, int], ratio: Times) -> Fault:
    """Return the fault of a copy, or a rank of it, by the ratio of its times to others."""
    run, factor = left.run, np.maximum(ratio, 1.0)
    mine = run.rank == where["rank"] if "rank" in where else np.ones(len(run.rank), dtype=bool)
    cells = np.ix_(run.copy == where["copy"], mine)
    excess = np.zeros_like(left.times)
    excess[cells] = left.times[cells] * (1 - 1 / factor)[:, None]
    return Fault(cause, excess, where, float(factor.mean()))


def _against_copies(left: Unexplained) -> Times | None:
    """Return each worker's work over that of its peers in other copies, shape ``(rows, ranks)``."""
    run = left.run
    if run.copies < 2:
        return None
    work = work_of_ranks(run.schedule, left.medians())
    steps, place = run.step_of
    table = np.full((len(steps), run.copies, run.schedule.ranks), np.nan)
    table[place, run.copy] = work
    found = np.ones_like(work)
    for copy in range(run.copies):
        others = np.delete(table, copy, axis=1)
        there = ~np.isnan(others).all(axis=(1, 2))
        peer = np.full((len(steps), run.schedule.ranks), np.nan)
        peer[there] = np.nanmedian(others[there], axis=1)
        here = run.copy == copy
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = work[here] / peer[place[here]]
        found[here] = np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)
    return found
