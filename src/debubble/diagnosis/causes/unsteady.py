"""Outliers and jitter: actions far longer than others of their kind, and unsteady workers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import FORWARD_KINDS
from debubble.diagnosis.causes.unexplained import OUTLIER, TOGETHER, Fault, Unexplained, cells_of
from debubble.diagnosis.observed import Times

SIGMAS = 6.0
"""Minimum distance of an outlier from its usual time, in standard deviations."""

FEW_OUTLIERS = 5
"""Minimum number of outliers to infer their cause: five forwards are not a coincidence."""

STANDS = 1.5
"""Minimum ratio to the usual time of fewer outliers. If all are forwards of one rank, only a pause
of the host explains them: it delays forwards and no backwards."""

UNSTEADY = 0.05
"""Minimum coefficient of variation of an unsteady worker's times."""


def outliers(left: Unexplained) -> Iterator[Fault]:
    """Yield single actions that take far longer than others, such as garbage collection.

    The cause is garbage collection if all are forwards. A few outliers suffice if they are forwards
    of one rank alone.
    """
    run = left.run
    expected = np.maximum(_expected(left), 1e-30)
    ratio = left.times / expected
    counted = ratio[:, run.counted]
    spread = 1.4826 * float(np.median(np.abs(counted - 1)))
    far = (ratio > max(OUTLIER, 1 + SIGMAS * spread)) & run.counted & run.known
    excess = np.where(far, left.times - expected, 0.0)
    few = np.count_nonzero(far) < FEW_OUTLIERS
    if few and not _stands_still(left, far, ratio):
        return
    forwards = np.count_nonzero(far & np.isin(run.kind, FORWARD_KINDS)) / np.count_nonzero(far)
    cause = "garbage-collection" if forwards >= TOGETHER else "jitter"
    count = int(np.count_nonzero(far)) if few else 0
    yield Fault(cause, excess, left.only_rank(excess), count=count)


def _stands_still(left: Unexplained, far: NDArray[np.bool_], ratio: Times) -> bool:
    """Return True if outliers look like pauses: forwards of one rank that take far longer."""
    _, columns = np.nonzero(far)
    one = len(set(left.run.rank[columns].tolist())) == 1
    forwards = bool(np.isin(left.run.kind[columns], FORWARD_KINDS).all())
    return one and forwards and float(ratio[far].min()) > STANDS


def jitter(left: Unexplained) -> Iterator[Fault]:
    """Yield workers with unsteady times, or one fault for all workers if all are unsteady."""
    run = left.run
    expected = np.maximum(_expected(left), 1e-30)
    apart = left.times - expected
    spread = np.zeros(run.schedule.ranks)
    for rank in range(run.schedule.ranks):
        mine = np.flatnonzero((run.rank == rank) & run.counted)
        spread[rank] = float((apart[:, mine] / expected[:, mine]).std())
    usual = float(np.median(spread))
    for rank in np.flatnonzero(spread > max(UNSTEADY, 2 * usual)).tolist():
        mine = run.rank == rank
        yield Fault("jitter", np.where(mine, apart, 0.0), {"rank": rank}, 1 + spread[rank])
    if usual > UNSTEADY:
        rest = np.isin(run.rank, np.flatnonzero(spread <= max(UNSTEADY, 2 * usual)))
        yield Fault("jitter", np.where(rest, apart, 0.0), {}, 1 + usual)


def _expected(left: Unexplained) -> Times:
    """Return each action's median by row, stage and class, shrunk toward that of all rows."""
    run = left.run
    found = left.medians()
    for columns in cells_of(run.stage, run.cls):
        if len(columns) < FEW_OUTLIERS:
            # With few microbatches, a median may itself be an outlier.
            found[:, columns] = np.median(left.times[:, columns])
    return np.where(run.counted, found, np.maximum(found, 1e-30))
