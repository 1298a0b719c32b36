"""Memory of every rank over time: the readable twin of the kernel that finds peaks."""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

import numpy as np

from debubble.core.actions import ends_group, kinds_of, stages_of
from debubble.core.waits import primary_of


@dataclass
class Moments:
    """Amounts of one rank at the start and at the end of each of its groups of actions."""

    times: np.ndarray
    positions: np.ndarray
    activations: np.ndarray
    tensors: np.ndarray
    logits: np.ndarray


def over_time(timeline, changes):
    """Yield the moments of every rank."""
    schedule, actions = timeline.schedule, timeline.memory.actions
    producer = primary_of(schedule)
    spots = kinds_of(actions) * schedule.stages + stages_of(actions)
    for begin, end in zip(schedule.offsets[:-1], schedule.offsets[1:], strict=True):
        closes = np.flatnonzero(ends_group(actions[begin:end])) + 1
        groups = np.split(np.arange(begin, end), closes[:-1])
        starts = [timeline.start[group[0]] for group in groups]
        arrivals = Counter(
            max(bisect_right(starts, timeline.end[producer[one]]) - 1, 0)
            for group in groups for one in group
            if changes.comes[spots[one]] and producer[one] >= 0
        )  # fmt: skip
        rows, sent = [], 0
        for number, group in enumerate(groups):
            here = spots[group]
            rows.append(
                (
                    starts[number],
                    group[0],
                    changes.taken[here].sum(),
                    changes.tensors_taken[here].sum() + arrivals[number],
                    changes.head_taken[here].sum(),
                )
            )
            rows.append(
                (
                    timeline.end[group[0]],
                    group[0],
                    changes.freed[here].sum(),
                    changes.tensors_freed[here].sum() - sent,
                    changes.head_freed[here].sum(),
                )
            )
            sent = changes.sent[here].sum()
        times, positions, *amounts = map(np.array, zip(*rows, strict=True))
        activations, tensors, logits = map(np.cumsum, amounts)
        yield Moments(
            times, positions, activations, tensors + changes.waiting[spots[begin:end]].sum(), logits
        )
