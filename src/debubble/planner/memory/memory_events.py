"""Moments of one rank's program at which its memory changes: starts and ends of its actions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, Program, computes, ends_group, kinds_of, stages_of
from debubble.core.kind_relations import boundary_offsets
from debubble.engine.timeline import Timeline

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Backwards = tuple[Mask, Mask, Mask]


class Moments:
    """The work of one rank in the order of its program, with a moment for each start and end.

    Overlapped actions start and end together: they are one group. Moment ``2g`` is the start of
    group g, moment ``2g + 1`` its end.
    """

    def __init__(self, timeline: Timeline, rank: int) -> None:
        schedule = timeline.schedule
        self.timeline, self.rank, self.schedule = timeline, rank, schedule
        first, last = int(schedule.offsets[rank]), int(schedule.offsets[rank + 1])
        program = schedule.actions[first:last]
        working = np.flatnonzero(computes(kinds_of(program)))
        self.program: Program = program[working]
        """Actions that occupy the compute stream; shape ``(n,)``."""
        self.positions: Integers = working + first
        """Their positions in the schedule."""
        self.kinds: Integers = kinds_of(self.program)
        self.stages: Integers = stages_of(self.program)
        closes = ends_group(self.program)
        self.groups: Integers = np.cumsum(closes) - closes
        """Group of each."""
        heads = self.positions[np.flatnonzero(np.diff(self.groups, prepend=-1))]
        self.heads: Integers = np.repeat(heads, 2)
        """Position in the schedule of the first action of every moment's group."""
        self.begins: Floats = timeline.start[heads]
        """Start of each group; shape ``(groups,)``."""
        self.times: Floats = np.stack([self.begins, timeline.end[heads]], axis=1).ravel()
        """Time of every moment; shape ``(2 * groups,)``."""
        self.starts: Integers = 2 * self.groups
        """Moment at which each action starts."""
        self.stops: Integers = self.starts + 1
        """Moment at which each action ends."""

    def handing(self, direction: int) -> Mask:
        """Return the mask of actions that compute for the next stage (1) or the one before (−1)."""
        offsets = boundary_offsets().items()
        return np.isin(self.kinds, [kind for kind, offset in offsets if offset == direction])

    def backwards(self, runtime: str, in_input: bool = False) -> Backwards:
        """Return masks of backwards for the input, of those for the weights, and of whole ones.

        PyTorch's runtime does nothing in the first stage's I and the whole backward in its W,
        unless all of every backward is `in_input`.
        """
        split, weights, whole = (self.kinds == kind for kind in (Kind.I, Kind.W, Kind.B))
        if in_input:
            nothing = np.zeros_like(split)
            return nothing, nothing, whole | split
        if runtime == "torch":
            first = self.stages == 0
            whole |= weights & first
            split &= ~first
            weights &= ~first
        return split, weights, whole

    def during(self, times: Floats) -> Integers:
        """Return the group that runs at each time, or ran last before it; at least the first."""
        return np.maximum(np.searchsorted(self.begins, times, side="right") - 1, 0)

    def before(self, times: Floats) -> Integers:
        """Return the last group that begins before each time."""
        return np.maximum(np.searchsorted(self.begins, times, side="left") - 1, 0)

    def held(self, *changes: tuple[Integers, Floats | float]) -> Floats:
        """Return the amount held from every moment on, by pairs of moments and changes."""
        found = np.zeros(len(self.times))
        for moments, amounts in changes:
            np.add.at(found, moments, amounts)
        return np.cumsum(found)
