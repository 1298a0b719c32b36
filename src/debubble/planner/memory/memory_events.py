"""Moments of all ranks' programs at which memory changes: starts and ends of their actions.

Overlapped actions start and end together: they are one group. Tensors from another rank count from
the start of the group during which they arrive.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    MICROBATCH_SHIFT,
    TRANSFER_KINDS,
    Kind,
    among,
    computes,
    ends_group,
    kinds_of,
)
from debubble.core.kind_relations import boundary_offsets
from debubble.core.schedule import Schedule
from debubble.core.waits import primary_of
from debubble.engine.memory import RECOMPUTED_F
from debubble.engine.timeline import Timeline
from debubble.planner.memory._moments_kernel import (
    Changes,
    Curves,
    Order,
    Peaks,
    Rest,
    find_peaks,
    find_producers,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

COMPUTES, RECEIVES = (
    np.append(mask, mask[Kind.F]).astype(np.int64)
    for mask in (computes(np.arange(RECOMPUTED_F)), among(np.arange(RECOMPUTED_F), TRANSFER_KINDS))
)
"""Whether actions of every kind compute, and whether they are transfers; forwards that are
recomputed are a kind of their own, see :data:`~debubble.engine.memory.RECOMPUTED_F`."""


DIRECTIONS = np.array([boundary_offsets().get(kind, 0) for kind in Kind])
"""Offset of the stage to which actions of every kind hand their result, 0 for none."""


class Backwards(NamedTuple):
    """Masks of backwards among actions."""

    split: Mask
    """Those for the input."""
    weights: Mask
    """Those for the weights."""
    whole: Mask
    """Those for both."""


def backwards(kinds: Integers, stages: Integers, runtime: str, in_input: bool = False) -> Backwards:
    """Return masks of backwards among actions of some kinds and stages.

    PyTorch's runtime does nothing in the first stage's I and the whole backward in its W, unless
    all of every backward is `in_input`.
    """
    split, weights, whole = (kinds == kind for kind in (Kind.I, Kind.W, Kind.B))
    if in_input:
        nothing = np.zeros_like(split)
        return Backwards(nothing, nothing, whole | split)
    if runtime == "torch":
        first = stages == 0
        return Backwards(split & ~first, weights & ~first, whole | (weights & first))
    return Backwards(split, weights, whole)


def heads_of(schedule: Schedule, rank: int) -> Integers:
    """Return positions of a rank's actions that compute, of overlapped ones that of the first."""
    program = schedule.program(rank)
    own = np.flatnonzero(computes(kinds_of(program)))
    opens = np.append(True, ends_group(program[own])[:-1])
    heads: Integers = own[opens[: len(own)]] + int(schedule.offsets[rank])
    return heads


def producers(schedule: Schedule) -> Integers:
    """Return the position of the result that each action computes with, −1 for none.

    Of passes that compute with a neighboring stage's; the result is kept with the schedule.
    """
    if producers not in schedule.derived:
        transfers = bool(among(kinds_of(schedule.actions), TRANSFER_KINDS).any())
        found = primary_of(schedule) if transfers else _of_neighbors(schedule)
        schedule.derived[producers] = found
    known: Integers = schedule.derived[producers]
    return known


def _of_neighbors(schedule: Schedule) -> Integers:
    """Return what :func:`primary_of` does for passes of neighboring stages, without transfers."""
    actions = schedule.actions
    width = int(actions.max(initial=0) >> MICROBATCH_SHIFT) + 1
    found, cells = np.full(len(actions), -1), np.full(2 * (schedule.stages + 2) * width, -1)
    find_producers.run(2 * len(actions), actions, DIRECTIONS, width, cells, found)
    return found


def moments_of(
    timeline: Timeline, changes: Changes, rest: Rest, *, curves: bool = False
) -> tuple[Peaks, Curves]:
    """Return the peak of every rank; with `curves`, memory from every moment on, too."""
    schedule, graph = timeline.schedule, timeline.graph
    actions = timeline.memory.actions
    order = Order(
        actions, schedule.offsets, schedule.stages, schedule.microbatches, schedule.slices,
        schedule.placement.copies, COMPUTES, RECEIVES, producers(schedule), graph.node,
        timeline.node_end if timeline.late is None else timeline.late, graph.cost, timeline.costs,
    )  # fmt: skip
    ranks, longest = schedule.ranks, int(np.diff(schedule.offsets).max())
    found = Peaks(*(
        np.zeros(ranks, dtype=np.float64 if name in FLOATS else np.int64) for name in Peaks._fields
    ))  # fmt: skip
    size = 2 * sum(len(heads_of(schedule, rank)) for rank in range(ranks)) if curves else 0
    over_time = Curves(np.zeros(size), np.zeros(size, dtype=np.int64), np.zeros(size))
    find_peaks.run(
        2 * len(actions), order, changes, rest, np.zeros(longest),
        np.zeros(longest, dtype=np.int64), found, over_time,
    )  # fmt: skip
    return found, over_time


FLOATS = "total", "activations", "logits", "time", "changing"
"""Fields of :class:`Peaks` in bytes or seconds; the others are numbers."""
