"""Pauses of hosts in the trace, and late launches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from debubble.diagnosis.causes.unexplained import Fault, Unexplained
from debubble.diagnosis.observed import PAUSES, Times


def pauses(left: Unexplained) -> Iterator[Fault]:
    """Yield one fault for each reason of known host pauses."""
    run = left.run
    for cause, name in enumerate(PAUSES):
        inside = np.minimum(_stood(left, cause, run.start, run.end), left.times)
        before = np.minimum(_stood(left, cause, run.start - left.gaps, run.start), left.gaps)
        if inside.any() or before.any():
            yield Fault(name, inside, left.only_rank(inside + before), late=before)


def launch_gaps(left: Unexplained) -> Iterator[Fault]:
    """Yield idle times of the device inside actions, and late hosts."""
    idle = np.clip(left.run.duration - left.run.busy, 0.0, left.times)
    idle = np.where(np.isnan(idle), 0.0, idle)
    if idle.any() or left.gaps.any():
        yield Fault("launch-gap", idle, left.only_rank(idle + left.gaps), late=left.gaps)


def _stood(left: Unexplained, cause: int, start: Times, end: Times) -> Times:
    """Return the length of host pauses of a cause between two times of every action."""
    run, pauses = left.run, left.run.pauses
    stood = np.zeros_like(left.times)
    for at in np.flatnonzero(pauses.cause == cause).tolist():
        rows = np.flatnonzero(run.copy == pauses.copy[at])
        cells = np.ix_(rows, np.flatnonzero(run.rank == pauses.rank[at]))
        length = np.minimum(end[cells], pauses.end[at])
        length = length - np.maximum(start[cells], pauses.start[at])
        stood[cells] += np.nan_to_num(np.maximum(length, 0.0))
    return stood
