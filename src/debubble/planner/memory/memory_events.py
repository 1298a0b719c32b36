"""Moments of all ranks' programs at which memory changes: starts and ends of their actions.

Overlapped actions start and end together: they are one group. Tensors from another rank count from
the start of the group during which they arrive.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, kinds_of, microbatches_of, stages_of
from debubble.core.kind_relations import boundary_offsets
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline
from debubble.planner.memory._moments_kernel import Changes, Order, Peaks, Rest, find_peaks

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

DIRECTIONS = np.array([boundary_offsets().get(kind, 0) for kind in Kind])
"""Offset of the stage to which actions of every kind hand their result, 0 for none."""


def backwards(
    kinds: Integers, stages: Integers, runtime: str, in_input: bool = False
) -> tuple[Mask, Mask, Mask]:
    """Return masks of backwards among actions: for the input, for the weights, and for both.

    PyTorch's runtime does nothing in the first stage's I and the whole backward in its W, unless
    all of every backward is `in_input`.
    """
    split, weights, whole = (kinds == kind for kind in (Kind.I, Kind.W, Kind.B))
    if in_input:
        nothing = np.zeros_like(split)
        return nothing, nothing, whole | split
    if runtime == "torch":
        first = stages == 0
        return split & ~first, weights & ~first, whole | (weights & first)
    return split, weights, whole


def producers(schedule: Schedule) -> Integers:
    """Return the position of the result that each action computes with, −1 for none.

    Of passes that compute with a neighboring stage's; the result is kept with the schedule.
    """
    if producers not in schedule.derived:
        actions = schedule.actions
        kinds = kinds_of(actions)
        passes = np.flatnonzero(DIRECTIONS[kinds])
        to, numbers = DIRECTIONS[kinds[passes]], microbatches_of(actions[passes])
        # Results of both directions by microbatch and stage, with one more stage at either end.
        places = numbers * (schedule.stages + 2) + stages_of(actions[passes]) + 1
        spots = 2 * places + (to > 0)
        results = np.full(int(spots.max(initial=0)) + 3, -1)
        results[spots] = passes
        found = np.full(len(actions), -1)
        found[passes] = results[spots - 2 * to]
        schedule.derived[producers] = found
    known: Integers = schedule.derived[producers]
    return known


def moments_of(timeline: Timeline, changes: Changes, rest: Rest) -> Peaks:
    """Return the peak of every rank."""
    schedule, graph = timeline.schedule, timeline.graph
    actions = timeline.memory.actions
    order = Order(
        actions, schedule.offsets, schedule.stages, producers(schedule), graph.node,
        timeline.node_end if timeline.late is None else timeline.late, graph.cost, timeline.costs,
    )  # fmt: skip
    ranks, longest = schedule.ranks, int(np.diff(schedule.offsets).max())
    found = Peaks(*(
        np.zeros(ranks, dtype=np.float64 if name in FLOATS else np.int64) for name in Peaks._fields
    ))  # fmt: skip
    begins, come = np.zeros(longest), np.zeros(longest, dtype=np.int64)
    find_peaks.run(2 * len(actions), order, changes, rest, begins, come, found)
    return found


FLOATS = "total", "activations", "logits", "time", "changing"
"""Fields of :class:`Peaks` in bytes or seconds; the others are numbers."""
