"""Bytes of tensors on their way between ranks, as runtimes keep them.

A tensor that came is the input of a stage's first layer, and is an activation from the start of the
forward to the end of the backward that uses it; only before and after that it counts here.

How long a runtime keeps them is in its :class:`~debubble.planner.frameworks.habits.Habits`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.core.kind_relations import boundary_offsets
from debubble.core.schedule import Schedule
from debubble.engine.memory import RECOMPUTED_F
from debubble.planner.frameworks.habits import Habits

Integers = NDArray[np.int64]


class Tensors(NamedTuple):
    """Numbers of tensors by actions of every kind and stage, shape ``(kinds · stages,)``.

    The fields are those of :class:`~debubble.planner.memory.memory_events.Changes`.
    """

    waiting: Integers
    tensors_taken: Integers
    tensors_freed: Integers
    sent: Integers
    comes: Integers


def tensors_of(schedule: Schedule, runtime: Habits) -> Tensors:
    """Return the tensors that actions bring, or end the life of; kept with the schedule."""
    key = Tensors, runtime.receive_buffers, runtime.sent_until, runtime.keeps_outputs
    if key not in schedule.derived:
        parts = _of_stages(schedule.placement.ranks_of_stages, runtime)
        schedule.derived[key] = Tensors(*(part.ravel() for part in parts))
    found: Tensors = schedule.derived[key]
    return found


def _of_stages(homes: Integers, runtime: Habits) -> Tensors:
    """Return tensors by kinds and stages, shape ``(kinds, stages)``; `homes` are their ranks."""
    count = len(homes)
    stages = np.arange(count)
    found = Tensors(*np.zeros((len(Tensors._fields), RECOMPUTED_F + 1, count), dtype=np.int64))
    for kind, to in boundary_offsets().items():
        # A forward hands its output to the stage after, a backward its gradient to that before.
        comes_from, goes_to = stages - to, stages + to
        takes, hands = ((other >= 0) & (other < count) for other in (comes_from, goes_to))
        comes, sends = takes & (np.roll(homes, to) != homes), hands & (np.roll(homes, -to) != homes)
        waiting, started, ended, sent, arrives = (part[kind] for part in found)
        forward = to > 0
        if runtime.receive_buffers:
            waiting += takes
            if forward:
                started -= takes
            else:
                ended += hands
        else:
            arrives += comes
            (started if forward else ended)[:] -= comes
        if runtime.sent_until != "made":
            ended += sends
            sent += sends * (runtime.sent_until == "next")
        if runtime.keeps_outputs:
            ended += hands if forward else -takes.astype(np.int64)
    for part in found:
        part[RECOMPUTED_F] = part[Kind.F]
    return found


@lru_cache(maxsize=1024)
def least_tensors(homes: tuple[int, ...], runtime: Habits) -> Integers:
    """Return tensors that each stage holds at any time for each of :func:`least_held` microbatches.

    Whatever the order; `homes` are the ranks of the stages.
    """
    if not runtime.receive_buffers:
        return np.zeros(len(homes), dtype=np.int64)
    found = _of_stages(np.array(homes), runtime)
    # F and I stand for all passes of their direction, which hand on the same.
    begin = found.waiting[Kind.F] + found.waiting[Kind.I]
    forward, backward = (
        found.tensors_taken[kind] + found.tensors_freed[kind] - found.sent[kind]
        for kind in (Kind.F, Kind.I)
    )
    least: Integers = np.minimum.reduce([begin, begin + forward, begin + forward + backward])
    return least


def least_held(microbatches: int) -> int:
    """Return microbatches whose tensors count at any time: all but those of a pair that runs."""
    return max(microbatches - 2, 0)
