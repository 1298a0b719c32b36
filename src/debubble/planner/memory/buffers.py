"""Bytes of tensors on their way between ranks, as runtimes keep them.

A tensor that came is the input of a stage's first layer, and is an activation from the start of the
forward to the end of the backward that uses it; only before and after that it counts here.

How long a runtime keeps them is in its :class:`~debubble.planner.frameworks.habits.Habits`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import TRANSFER_KINDS, among, kinds_of
from debubble.core.waits import primary_of
from debubble.planner.frameworks.habits import Habits
from debubble.planner.memory.memory_events import Floats, Moments

Mask = NDArray[np.bool_]


def buffers(moments: Moments, boundary: float, runtime: Habits) -> Floats:
    """Return bytes of transferred tensors, of `boundary` bytes each, that a rank holds in one step.

    From every moment of the rank on, as a runtime keeps them.
    """
    schedule, stages = moments.schedule, moments.stages
    size, last = boundary / schedule.slices, schedule.stages - 1
    forward, backward = moments.handing(1), moments.handing(-1)
    takes_input, takes_gradient = forward & (stages > 0), backward & (stages < last)
    hands_output, hands_gradient = forward & (stages < last), backward & (stages > 0)
    starts, stops = moments.starts, moments.stops
    changes = []

    def add(when: NDArray[np.int64], which: Mask, amount: float) -> None:
        changes.append((when[which], amount))

    arrivals, from_others = _arrivals(moments)
    came = takes_input & from_others
    came_back = takes_gradient & from_others
    if runtime.receive_buffers:
        count = int(np.count_nonzero(takes_input) + np.count_nonzero(takes_gradient))
        changes.append((np.zeros(1, dtype=np.int64), count * size))
        add(starts, takes_input, -size)
        add(stops, hands_gradient, size)
    else:
        add(arrivals, came, size)
        add(starts, came, -size)
        add(arrivals, came_back, size)
        add(stops, came_back, -size)
    if runtime.sent_until != "made":
        goes = hands_output & _neighbor_elsewhere(moments, 1)
        goes |= hands_gradient & _neighbor_elsewhere(moments, -1)
        add(stops, goes, size)
        if runtime.sent_until == "next":
            add(stops + 2, goes & (stops + 2 < len(moments.times)), -size)
    if runtime.keeps_outputs:
        add(stops, hands_output, size)
        add(stops, takes_gradient, -size)
    return moments.held(*changes)


def _arrivals(moments: Moments) -> tuple[NDArray[np.int64], Mask]:
    """Return the moment when each action's input arrives, and a mask of those from other ranks."""
    schedule, timeline = moments.schedule, moments.timeline
    producer = primary_of(schedule)[moments.positions]
    known = producer >= 0
    producer = np.where(known, producer, 0)
    receives = among(kinds_of(schedule.actions[producer]), TRANSFER_KINDS)
    home = np.searchsorted(schedule.offsets, producer, side="right") - 1
    # A receive needs its buffer from its start.
    times = np.where(receives, timeline.start[producer], timeline.end[producer])
    groups = np.minimum(moments.during(times), moments.groups)
    return 2 * groups, known & (receives | (home != moments.rank))


def _neighbor_elsewhere(moments: Moments, offset: int) -> Mask:
    """Return whether the stage `offset` away from each action's is on another rank."""
    schedule = moments.schedule
    table = np.asarray(schedule.placement.table)
    copies = schedule.places_of(moments.program) // schedule.stages % schedule.placement.copies
    other = np.clip(moments.stages + offset, 0, schedule.stages - 1)
    found: Mask = table[copies, other] != moments.rank
    return found
