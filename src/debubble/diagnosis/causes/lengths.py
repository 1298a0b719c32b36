"""Sequences that differ in length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS
from debubble.diagnosis.causes.unexplained import TOGETHER, Fault, Unexplained
from debubble.diagnosis.observed import Times

VARIES = 0.1
"""Minimum coefficient of variation of microbatches with different lengths. Forwards and backwards
also have to correlate, but common noise of a step correlates them as well."""


def lengths(left: Unexplained) -> Iterator[Fault]:
    """Yield microbatches that take longer than others on all stages."""
    length = _relative_lengths(left)
    if length is None:
        return
    usual = left.times / length
    yield Fault("sequence-length", left.times - usual, {}, length.max())


def _relative_lengths(left: Unexplained) -> Times | None:
    """Return the length of each action's sequence, relative to the mean of its step.

    Each kind is computed separately: attention makes backwards depend more on the length than
    forwards. None if microbatches are alike.
    """
    run, times = left.run, left.times
    units = int(run.unit.max()) + 1
    if units < 2:
        return None
    forward = run.counted & np.isin(run.cls, FORWARD_KINDS)
    backward = run.counted & np.isin(run.cls, GRADIENT_KINDS)
    shares, spreads = [], []
    for rank in range(run.schedule.ranks):
        mine = run.rank == rank
        one = _by_unit(left, forward & mine, units)
        two = _by_unit(left, backward & mine, units)
        if one is None or two is None:
            continue
        for copy in np.unique(run.copy).tolist():
            here = run.copy == copy
            f, b = one[here].ravel(), two[here].ravel()
            spreads.append(min(f.std(), b.std()))
            shares.append(np.corrcoef(f, b)[0, 1] if f.std() and b.std() else 0.0)
    if not shares or np.median(shares) < TOGETHER or np.median(spreads) < VARIES:
        return None
    relative = times / left.level()
    found = np.ones_like(times)
    for cls in np.unique(run.cls).tolist():
        length = np.ones((run.rows, units))
        for unit in range(units):
            mine = np.flatnonzero(run.counted & (run.unit == unit) & (run.cls == cls))
            if len(mine):
                length[:, unit] = np.median(relative[:, mine], axis=1)
        for rows in run.rows_of_steps:
            length[rows] /= length[rows].mean()
        alike = np.flatnonzero(run.cls == cls)
        found[:, alike] = length[:, run.unit[alike]]
    return np.maximum(found, 1e-9)


def _by_unit(left: Unexplained, columns: NDArray[np.bool_], units: int) -> Times | None:
    """Return the time of every microbatch in some columns, relative to the mean of its row."""
    here = np.flatnonzero(columns)
    if len(here) < units:
        return None
    total = np.zeros((left.run.rows, units))
    np.add.at(total.T, left.run.unit[here], left.times[:, here].T)
    mean = total.mean(axis=1, keepdims=True)
    return np.asarray(total / np.where(mean > 0, mean, 1.0))
