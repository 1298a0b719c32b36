"""Moments of one rank's program at which its memory changes: starts and ends of its actions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    TRANSFER_KINDS,
    Kind,
    Program,
    among,
    computes,
    ends_group,
    kinds_of,
    stages_of,
)
from debubble.core.kind_relations import boundary_offsets
from debubble.core.schedule import Schedule
from debubble.core.waits import primary_of
from debubble.engine.timeline import Timeline

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Backwards = tuple[Mask, Mask, Mask]


class RankProgram:
    """The work of one rank in the order of its program, with a moment for each start and end.

    Overlapped actions start and end together: they are one group. Moment ``2g`` is the start of
    group g, moment ``2g + 1`` its end.
    """

    def __init__(self, schedule: Schedule, rank: int) -> None:
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
        self.heads: Integers = self.positions[np.flatnonzero(np.diff(self.groups, prepend=-1))]
        """Position in the schedule of the first action of each group."""
        self.starts: Integers = 2 * self.groups
        """Moment at which each action starts."""
        self.stops: Integers = self.starts + 1
        """Moment at which each action ends."""
        self.forward: Mask = self._handing(1)
        """Mask of actions that compute for the next stage."""
        self.backward: Mask = self._handing(-1)
        """Mask of actions that compute for the stage before."""
        inner, outer = self.stages > 0, self.stages < schedule.stages - 1
        self.takes_input: Mask = self.forward & inner
        self.takes_gradient: Mask = self.backward & outer
        self.hands_output: Mask = self.forward & outer
        self.hands_gradient: Mask = self.backward & inner
        """Masks of actions that take something from a neighboring stage, or hand it something."""
        producer = primary_of(schedule)[self.positions]
        known = producer >= 0
        self.producer: Integers = np.where(known, producer, 0)
        """Position in the schedule of the action whose result each computes with."""
        kinds = kinds_of(schedule.actions[self.producer])
        self.receives: Mask = among(kinds, TRANSFER_KINDS)
        """Mask of actions whose input comes through a receive."""
        home = np.searchsorted(schedule.offsets, self.producer, side="right") - 1
        self.from_others: Mask = known & (self.receives | (home != rank))
        """Mask of actions whose input comes from another rank."""
        self.sends: Mask = (self.hands_output & self._elsewhere(schedule, rank, 1)) | (
            self.hands_gradient & self._elsewhere(schedule, rank, -1)
        )
        """Mask of actions whose result goes to another rank."""

    def _handing(self, direction: int) -> Mask:
        offsets = boundary_offsets().items()
        return among(self.kinds, tuple(kind for kind, offset in offsets if offset == direction))

    def _elsewhere(self, schedule: Schedule, rank: int, offset: int) -> Mask:
        """Return whether the stage `offset` away from each action's is on another rank."""
        table = np.asarray(schedule.placement.table)
        copies = schedule.places_of(self.program) // schedule.stages % schedule.placement.copies
        other = np.clip(self.stages + offset, 0, schedule.stages - 1)
        found: Mask = table[copies, other] != rank
        return found


def rank_program(schedule: Schedule, rank: int) -> RankProgram:
    """Return the work of a rank; the result is kept with the schedule."""
    key = RankProgram, rank
    if key not in schedule.derived:
        schedule.derived[key] = RankProgram(schedule, rank)
    found: RankProgram = schedule.derived[key]
    return found


class Moments:
    """The moments of one rank's work in a timeline."""

    def __init__(self, timeline: Timeline, rank: int) -> None:
        self.timeline, self.rank, self.schedule = timeline, rank, timeline.schedule
        self.work = rank_program(timeline.schedule, rank)
        heads = self.work.heads
        self.heads: Integers = np.repeat(heads, 2)
        """Position in the schedule of the first action of every moment's group."""
        self.begins: Floats = timeline.start[heads]
        """Start of each group; shape ``(groups,)``."""
        self.times: Floats = np.stack([self.begins, timeline.end[heads]], axis=1).ravel()
        """Time of every moment; shape ``(2 * groups,)``."""

    def backwards(self, runtime: str, in_input: bool = False) -> Backwards:
        """Return masks of backwards for the input, of those for the weights, and of whole ones.

        PyTorch's runtime does nothing in the first stage's I and the whole backward in its W,
        unless all of every backward is `in_input`.
        """
        kinds = self.work.kinds
        split, weights, whole = (kinds == kind for kind in (Kind.I, Kind.W, Kind.B))
        if in_input:
            nothing = np.zeros_like(split)
            return nothing, nothing, whole | split
        if runtime == "torch":
            first = self.work.stages == 0
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
