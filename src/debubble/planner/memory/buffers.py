"""Bytes of tensors on their way between ranks, as runtimes keep them.

A tensor that came is the input of a stage's first layer, and is an activation from the start of the
forward to the end of the backward that uses it; only before and after that it counts here.

How long a runtime keeps them is in its :class:`~debubble.planner.frameworks.habits.Habits`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from debubble.planner.frameworks.habits import Habits
from debubble.planner.memory.memory_events import Floats, Moments


def buffers(moments: Moments, boundary: float, runtime: Habits) -> Floats:
    """Return bytes of transferred tensors, of `boundary` bytes each, that ranks hold in one step.

    From every moment on, as a runtime keeps them; shape ``(ranks, width)``.
    """
    work, size = moments.work, boundary / moments.schedule.slices
    starts, stops = work.starts, work.stops
    changes: list[tuple[NDArray[np.int64], Floats | float]] = []

    def add(when: NDArray[np.int64], which: NDArray[np.int64], amount: float) -> None:
        changes.append((when[which], amount))

    if runtime.receive_buffers:
        taken = np.concatenate([work.takes_input, work.takes_gradient])
        counts = np.bincount(work.ranks[taken], minlength=len(work.counts)).astype(np.float64)
        first = work.width * np.arange(len(work.counts), dtype=np.int64)
        changes.append((first, counts * size))
        add(starts, work.takes_input, -size)
        add(stops, work.hands_gradient, size)
    else:
        changes.append((_arrivals(moments, work.came), size))
        add(starts, work.came, -size)
        changes.append((_arrivals(moments, work.came_back), size))
        add(stops, work.came_back, -size)
    if runtime.sent_until != "made":
        add(stops, work.sends, size)
        if runtime.sent_until == "next":
            add(stops + 2, work.sends_on, -size)
    if runtime.keeps_outputs:
        add(stops, work.hands_output, size)
        add(stops, work.takes_gradient, -size)
    return moments.held(*changes)


def _arrivals(moments: Moments, which: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the moment when each input of some actions arrives."""
    work, timeline = moments.work, moments.timeline
    producer = work.producer[which]
    # A receive needs its buffer from its start.
    times = timeline.end[producer]
    if work.receives.any():
        times = np.where(work.receives[which], timeline.start[producer], times)
    bounds = np.searchsorted(work.ranks[which], np.arange(len(work.counts) + 1)).tolist()
    parts = (times[begin:end] for begin, end in pairwise(bounds))
    found = np.concatenate([moments.during(part, rank) for rank, part in enumerate(parts)])
    arrivals: NDArray[np.int64] = np.minimum(found, work.starts[which])
    return arrivals
