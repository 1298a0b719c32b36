"""Bytes of tensors on their way between ranks, as runtimes keep them.

A tensor that came is the input of a stage's first layer, and is an activation from the start of the
forward to the end of the backward that uses it; only before and after that it counts here.

How long a runtime keeps them is in its :class:`~debubble.planner.frameworks.habits.Habits`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.planner.frameworks.habits import Habits
from debubble.planner.memory.memory_events import Floats, Moments

Mask = NDArray[np.bool_]


def buffers(moments: Moments, boundary: float, runtime: Habits) -> Floats:
    """Return bytes of transferred tensors, of `boundary` bytes each, that a rank holds in one step.

    From every moment of the rank on, as a runtime keeps them.
    """
    work, size = moments.work, boundary / moments.schedule.slices
    starts, stops, changes = work.starts, work.stops, []

    def add(when: NDArray[np.int64], which: Mask, amount: float) -> None:
        changes.append((when[which], amount))

    if runtime.receive_buffers:
        count = int(np.count_nonzero(work.takes_input) + np.count_nonzero(work.takes_gradient))
        changes.append((np.zeros(1, dtype=np.int64), count * size))
        add(starts, work.takes_input, -size)
        add(stops, work.hands_gradient, size)
    else:
        arrivals = _arrivals(moments)
        came = work.takes_input & work.from_others
        came_back = work.takes_gradient & work.from_others
        add(arrivals, came, size)
        add(starts, came, -size)
        add(arrivals, came_back, size)
        add(stops, came_back, -size)
    if runtime.sent_until != "made":
        add(stops, work.sends, size)
        if runtime.sent_until == "next":
            add(stops + 2, work.sends & (stops + 2 < len(moments.times)), -size)
    if runtime.keeps_outputs:
        add(stops, work.hands_output, size)
        add(stops, work.takes_gradient, -size)
    return moments.held(*changes)


def _arrivals(moments: Moments) -> NDArray[np.int64]:
    """Return the moment when each action's input arrives."""
    work, timeline = moments.work, moments.timeline
    # A receive needs its buffer from its start.
    times = np.where(work.receives, timeline.start[work.producer], timeline.end[work.producer])
    groups = np.minimum(moments.during(times), work.groups)
    arrivals: NDArray[np.int64] = 2 * groups
    return arrivals
