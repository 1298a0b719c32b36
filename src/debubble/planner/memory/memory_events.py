"""Moments of one rank's program at which its memory changes: starts and ends of its actions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, Program, computes, ends_group, kinds_of, stages_of
from debubble.core.kind_relations import boundary_offsets
from debubble.engine.timeline import Timeline

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Backwards = tuple[Mask, Mask, Mask]


@dataclass(frozen=True, eq=False)
class Moments:
    """The work of one rank in the order of its program, with a moment for each start and end.

    Overlapped actions start and end together: they are one group. Moment ``2g`` is the start of
    group g, moment ``2g + 1`` its end.
    """

    program: Program
    """Actions that occupy the compute stream; shape ``(n,)``."""
    positions: Integers
    """Their positions in the schedule."""
    groups: Integers
    """Group of each."""
    begins: Floats
    """Start of each group; shape ``(groups,)``."""
    ends: Floats
    """End of each group."""

    @classmethod
    def of(cls, timeline: Timeline, rank: int) -> Moments:
        """The moments of one rank of a timeline."""
        schedule = timeline.schedule
        first, last = int(schedule.offsets[rank]), int(schedule.offsets[rank + 1])
        program = schedule.actions[first:last]
        working = np.flatnonzero(computes(kinds_of(program)))
        program, positions = program[working], working + first
        closes = ends_group(program)
        groups: Integers = np.cumsum(closes) - closes
        heads = np.flatnonzero(np.diff(groups, prepend=-1))
        begins, ends = timeline.start[positions[heads]], timeline.end[positions[heads]]
        return cls(program, positions, groups, begins, ends)

    @cached_property
    def kinds(self) -> Integers:
        """Kind of each action."""
        return kinds_of(self.program)

    @cached_property
    def stages(self) -> Integers:
        """Stage of each action."""
        return stages_of(self.program)

    def handing(self, direction: int) -> Mask:
        """Mask of what computes for the stage behind (1), or for the one before (−1)."""
        offsets = boundary_offsets().items()
        return np.isin(self.kinds, [kind for kind, offset in offsets if offset == direction])

    def backwards(self, runtime: str, in_input: bool = False) -> Backwards:
        """Masks of backwards for the input, of those for the weights, and of whole ones.

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

    @property
    def starts(self) -> Integers:
        """Moment at which each action starts."""
        return 2 * self.groups

    @property
    def stops(self) -> Integers:
        """Moment at which each action ends."""
        return 2 * self.groups + 1

    @cached_property
    def times(self) -> Floats:
        """Time of every moment; shape ``(2 * groups,)``."""
        return np.stack([self.begins, self.ends], axis=1).ravel()

    @cached_property
    def heads(self) -> Integers:
        """Position in the schedule of the first action of every moment's group."""
        first = np.flatnonzero(np.diff(self.groups, prepend=-1))
        return np.repeat(self.positions[first], 2)

    def during(self, times: Floats) -> Integers:
        """Group that runs at each time, or ran last before it; the first for earlier times."""
        return np.maximum(np.searchsorted(self.begins, times, side="right") - 1, 0)

    def before(self, times: Floats) -> Integers:
        """Last group that begins before each time."""
        return np.maximum(np.searchsorted(self.begins, times, side="left") - 1, 0)

    def held(self, *changes: tuple[Integers, Floats | float]) -> Floats:
        """What is held from every moment on, by pairs of moments and of what is added then."""
        found = np.zeros(len(self.times))
        for moments, amounts in changes:
            np.add.at(found, moments, amounts)
        return np.cumsum(found)
