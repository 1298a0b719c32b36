"""Activation memory when activations leave their ranks, by the times of copies.

``OFFLOAD`` frees its share of an activation when it ends, ``RELOAD`` takes it again when it starts.
An activation on another rank is held there from the start of the one to the end of the other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import COPY_KINDS, kinds_of
from debubble.core.kinds import KINDS
from debubble.core.schedule import Schedule
from debubble.engine.memory import MemoryUse

Floats = NDArray[np.float64]


def changes(
    schedule: Schedule, use: MemoryUse, begin: Floats, end: Floats, rank: int
) -> tuple[Floats, Floats]:
    """Return sorted times at which a rank's memory changes, and the changes.

    `begin` and `end` of every action, shape ``(n,)``, are such that an action that follows another
    at once begins at the very number at which that one ends. At equal times memory is freed before
    more is taken. Actions of no duration take and free at one time, and follow the order of the
    program.
    """
    part = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    added, freed = use.deltas(schedule, rank)
    position = np.arange(part.start, part.stop)
    times = [begin[part], end[part]]
    deltas = [added, freed]
    order = [2 * position, np.where(end[part] > begin[part], -1, 2 * position + 1)]
    for other, target in enumerate(schedule.copy_targets):
        if target != rank:
            continue
        first = int(schedule.offsets[other])
        kinds = kinds_of(schedule.program(other))
        added, freed = use.deltas(schedule, other)
        for kind in COPY_KINDS:
            comes = KINDS[kind].undoes is None
            here = np.flatnonzero(kinds == kind)
            times.append((begin if comes else end)[here + first])
            deltas.append(-(freed if comes else added)[here])
            order.append(np.full(len(here), 0 if comes else -1))
    moments, amounts, turns = (np.concatenate(column) for column in (times, deltas, order))
    real = amounts != 0
    moments, amounts, turns = moments[real], amounts[real], turns[real]
    sorted_by_time = np.lexsort((turns, moments))
    return moments[sorted_by_time], amounts[sorted_by_time]


def changes_in_order(
    schedule: Schedule, use: MemoryUse, begin: Floats, end: Floats, rank: int
) -> tuple[Floats, Floats]:
    """Return changes as :func:`changes` if no activation leaves its rank and starts are rounded."""
    part = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    added, freed = use.deltas(schedule, rank)
    holds = (added != 0) | (freed != 0)
    start, stop, added, freed = begin[part][holds], end[part][holds], added[holds], freed[holds]
    # A sum may round to just after the start of the next action, which has to wait for it.
    later = np.append(start, np.inf)[np.searchsorted(start, start, side="right")]
    times = np.concatenate([start, np.minimum(stop, later)])
    deltas = np.concatenate([added, freed])
    real = deltas != 0
    times, deltas = times[real], deltas[real]
    # At equal times memory is freed before more is taken.
    order = np.lexsort((deltas, times))
    return times[order], deltas[order]


def measure_over_time(schedule: Schedule, use: MemoryUse, begin: Floats, end: Floats) -> MemoryUse:
    """Return the use with peaks and rests by the times of a simulation."""
    peak, left = np.zeros(schedule.ranks), np.zeros(schedule.ranks)
    for rank in range(schedule.ranks):
        held = np.cumsum(changes(schedule, use, begin, end, rank)[1])
        peak[rank] = use.static[rank] + held.max(initial=0.0)
        left[rank] = held[-1] if len(held) else 0.0
    return replace(use, peak=peak, left=left)
