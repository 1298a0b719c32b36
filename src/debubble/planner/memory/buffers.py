"""Bytes of tensors on their way between ranks, as runtimes keep them.

A tensor that came is the input of a stage's first layer, and is an activation from the start of the
forward to the end of the backward that uses it; only before and after that it counts here.

How long a runtime keeps them is in its :class:`~debubble.planner.frameworks.habits.Habits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from debubble.planner.frameworks.habits import Habits
from debubble.planner.memory.memory_events import Floats, Integers, Moments, RankPrograms

Change: TypeAlias = tuple[Integers, int]
"""Moments, and the number of tensors that come then or go."""


def buffers(moments: Moments, boundary: float, runtime: Habits) -> Floats:
    """Return bytes of transferred tensors, of `boundary` bytes each, that ranks hold in one step.

    From every moment on, as a runtime keeps them; shape ``(ranks, width)``.
    """
    work = moments.work
    counts = _counts(work, runtime)
    if not runtime.receive_buffers:
        counts = counts + _sums(work, [(_arrivals(moments), 1)])
    return counts.astype(np.float64) * (boundary / moments.schedule.slices)


def growth(work: RankPrograms, microbatches: int, runtime: Habits) -> Floats:
    """Return tensors per microbatch that every rank holds at the end of the step.

    `work` is of so many microbatches.
    """
    return _counts(work, runtime)[:, -1] / microbatches


def _counts(work: RankPrograms, runtime: Habits) -> Integers:
    """Return numbers of tensors from every moment on, but for those that come."""
    key = runtime.receive_buffers, runtime.sent_until, runtime.keeps_outputs
    if key in work.counted:
        return work.counted[key]
    starts, stops = work.starts, work.stops
    changes: list[Change] = []

    def add(when: Integers, which: Integers, amount: int) -> None:
        changes.append((when[which], amount))

    if runtime.receive_buffers:
        taken = np.concatenate([work.takes_input, work.takes_gradient])
        # All of a rank are there from its first moment on.
        changes.append((work.ranks[taken] * work.width, 1))
        add(starts, work.takes_input, -1)
        add(stops, work.hands_gradient, 1)
    else:
        add(starts, work.came, -1)
        add(stops, work.came_back, -1)
    if runtime.sent_until != "made":
        add(stops, work.sends, 1)
        if runtime.sent_until == "next":
            add(stops + 2, work.sends_on, -1)
    if runtime.keeps_outputs:
        add(stops, work.hands_output, 1)
        add(stops, work.takes_gradient, -1)
    work.counted[key] = _sums(work, changes)
    return work.counted[key]


def _sums(work: RankPrograms, changes: Sequence[Change]) -> Integers:
    """Return the sums of changes up to every moment; shape ``(ranks, width)``."""
    ranks, width = len(work.counts), work.width
    found = np.zeros(ranks * width, dtype=np.int64)
    for when, amount in changes:
        found += amount * np.bincount(when, minlength=len(found))
    return np.cumsum(found.reshape(ranks, width), axis=1)


def _arrivals(moments: Moments) -> Integers:
    """Return the moment when each input and gradient from another rank arrives."""
    work, timeline = moments.work, moments.timeline
    producer = work.producer[work.taking]
    # A receive needs its buffer from its start.
    times = timeline.end[producer]
    if work.receives.any():
        times = np.where(work.receives[work.taking], timeline.start[producer], times)
    parts = (times[begin:end] for begin, end in pairwise(work.taking_of))
    found = np.concatenate([moments.during(part, rank) for rank, part in enumerate(parts)])
    arrivals: Integers = np.minimum(found, work.starts[work.taking])
    return arrivals
