"""Moments of all ranks' programs at which memory changes: starts and ends of their actions."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    TRANSFER_KINDS,
    VOCABULARY_KINDS,
    Kind,
    Program,
    among,
    computes,
    ends_group,
    kinds_of,
    microbatches_of,
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


class RankPrograms:
    """The work of all ranks in the order of their programs, with a moment for each start and end.

    Overlapped actions start and end together: they are one group. A rank has a row of `width`
    moments: ``2g`` is the start of its group g, ``2g + 1`` its end. Rows are as long as the longest
    one needs, and one moment more; moments are numbered through all rows.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.positions: Integers = np.flatnonzero(computes(kinds_of(schedule.actions)))
        """Positions in the schedule of actions that occupy the compute stream; shape ``(n,)``."""
        self.program: Program = schedule.actions[self.positions]
        """The actions themselves."""
        self.kinds: Integers = kinds_of(self.program)
        self.stages: Integers = stages_of(self.program)
        self.ranks: Integers = schedule.ranks_of_actions[self.positions]
        """Rank of each."""
        closes = ends_group(self.program)
        opens = np.append(True, closes[:-1])
        self.heads: Integers = self.positions[opens]
        """Position in the schedule of the first action of each group, rank by rank."""
        self.counts: Integers = np.bincount(self.ranks[opens], minlength=schedule.ranks)
        """Groups of every rank."""
        self.first: Integers = np.cumsum(self.counts) - self.counts
        """First group of every rank."""
        self.width = 2 * int(self.counts.max()) + 1
        """Moments of every row."""
        groups = np.cumsum(closes) - closes - self.first[self.ranks]
        self.starts: Integers = self.ranks * self.width + 2 * groups
        """Moment at which each action starts."""
        self.stops: Integers = self.starts + 1
        """Moment at which each action ends."""
        self.forward: Mask = self._handing(1)
        """Mask of actions that compute for the next stage."""
        self.backward: Mask = self._handing(-1)
        """Mask of actions that compute for the stage before."""
        inner, outer = self.stages > 0, self.stages < schedule.stages - 1
        takes_input, takes_gradient = self.forward & inner, self.backward & outer
        hands_output, hands_gradient = self.forward & outer, self.backward & inner
        self.takes_input, self.takes_gradient, self.hands_output, self.hands_gradient = map(
            np.flatnonzero, (takes_input, takes_gradient, hands_output, hands_gradient)
        )
        """Actions that take something from a neighboring stage, or hand it something."""
        transfers = bool(among(kinds_of(schedule.actions), TRANSFER_KINDS).any())
        producer = primary_of(schedule)[self.positions] if transfers else self._producers()
        known = producer >= 0
        self.producer: Integers = np.where(known, producer, 0)
        """Position in the schedule of the action whose result each computes with."""
        kinds = kinds_of(schedule.actions[self.producer])
        self.receives: Mask = among(kinds, TRANSFER_KINDS)
        """Mask of actions whose input comes through a receive."""
        home = schedule.ranks_of_actions[self.producer]
        from_others = known & (self.receives | (home != self.ranks))
        self.came: Integers = np.flatnonzero(takes_input & from_others)
        self.came_back: Integers = np.flatnonzero(takes_gradient & from_others)
        """Actions whose input, or gradient, comes from another rank."""
        self.taking: Integers = np.sort(np.concatenate([self.came, self.came_back]))
        """Both of these, rank by rank."""
        every = np.arange(schedule.ranks + 1)
        self.taking_of: list[int] = np.searchsorted(self.ranks[self.taking], every).tolist()
        """First of each rank among these, and their number."""
        self.sends: Integers = np.flatnonzero(
            (hands_output & self._elsewhere(schedule, 1))
            | (hands_gradient & self._elsewhere(schedule, -1))
        )
        """Actions whose result goes to another rank."""
        goes_on = self.stops % self.width + 2 < 2 * self.counts[self.ranks]
        self.sends_on: Integers = self.sends[goes_on[self.sends]]
        """Those that are not the last of their rank."""
        head = self.stages == schedule.stages - 1
        passes = self.forward & head, self.backward & head
        if schedule.vocabulary:
            first, second = VOCABULARY_KINDS
            passes = self.kinds == first, self.kinds == second
        self.head: tuple[Integers, Integers] = (
            np.flatnonzero(passes[0]), np.flatnonzero(passes[1]),
        )  # fmt: skip
        """Forwards and backwards of the head, or of its shards."""
        self.alone: bool = bool(closes.all())
        """True if no actions overlap: no two of them start together."""
        self.counted: dict[object, Integers] = {}
        """Numbers of tensors at every moment that depend on the order alone, by what keeps them."""

    def _producers(self) -> Integers:
        """Return positions of the results that actions compute with, −1 for none.

        Of the passes of neighboring stages, as :func:`primary_of` returns them without transfers.
        """
        found = np.full(len(self.positions), -1)
        units = microbatches_of(self.program)
        width = int(units.max(initial=0)) + 1
        cells = self.stages * width + units
        for hands, takes, stage in (
            (self.forward, self.takes_input, -1), (self.backward, self.takes_gradient, 1),
        ):  # fmt: skip
            table = np.full((int(self.stages.max(initial=0)) + 1) * width, -1)
            table[cells[hands]] = self.positions[hands]
            found[takes] = table[cells[takes] + stage * width]
        return found

    def _handing(self, direction: int) -> Mask:
        offsets = boundary_offsets().items()
        return among(self.kinds, tuple(kind for kind, offset in offsets if offset == direction))

    def _elsewhere(self, schedule: Schedule, offset: int) -> Mask:
        """Return whether the stage `offset` away from each action's is on another rank."""
        table = np.asarray(schedule.placement.table)
        copies = schedule.places_of(self.program) // schedule.stages % schedule.placement.copies
        other = np.clip(self.stages + offset, 0, schedule.stages - 1)
        found: Mask = table[copies, other] != self.ranks
        return found


def rank_programs(schedule: Schedule) -> RankPrograms:
    """Return the work of all ranks; the result is kept with the schedule."""
    if RankPrograms not in schedule.derived:
        schedule.derived[RankPrograms] = RankPrograms(schedule)
    found: RankPrograms = schedule.derived[RankPrograms]
    return found


class Moments:
    """The moments of all ranks' work in a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.schedule = timeline, timeline.schedule
        self.work = rank_programs(timeline.schedule)
        self.begins: Floats = timeline.start[self.work.heads]
        """Start of each group, rank by rank; shape ``(groups,)``."""

    def groups(self, rank: int) -> slice:
        """Return the part of all groups that a rank runs."""
        first = int(self.work.first[rank])
        return slice(first, first + int(self.work.counts[rank]))

    def times(self, rank: int) -> Floats:
        """Return the times of a rank's moments; shape ``(2 * groups,)``."""
        heads = self.work.heads[self.groups(rank)]
        times = np.stack([self.timeline.start[heads], self.timeline.end[heads]], axis=1)
        return times.ravel()

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

    def during(self, times: Floats, rank: int) -> Integers:
        """Return a rank's group that runs at each time, or ran last before it; at least the first.

        As the moment of its start, as :meth:`before` does.
        """
        return self._last(times, rank, "right")

    def before(self, times: Floats, rank: int) -> Integers:
        """Return the last group of a rank that begins before each time."""
        return self._last(times, rank, "left")

    def _last(self, times: Floats, rank: int, side: Literal["left", "right"]) -> Integers:
        begins = self.begins[self.groups(rank)]
        groups = np.maximum(np.searchsorted(begins, times, side=side) - 1, 0)
        return 2 * groups + rank * self.work.width

    def taken(self, starts: Floats, stops: Floats) -> Floats:
        """Return what every rank holds from every moment on, by what actions add at both ends.

        Of all actions, shape ``(n,)``; the result is as that of :meth:`held`.
        """
        work = self.work
        if not work.alone:
            return self.held((work.starts, starts), (work.stops, stops))
        changes = np.zeros((len(work.counts), work.width))
        flat = changes.ravel()
        flat[work.starts], flat[work.stops] = starts, stops
        return np.cumsum(changes, axis=1, out=changes)

    def held(self, *changes: tuple[Integers, Floats | float]) -> Floats:
        """Return what every rank holds from every moment on, by pairs of moments and changes.

        Shape ``(ranks, width)``; rows of ranks with fewer moments go on as they end.
        """
        ranks, width = len(self.work.counts), self.work.width
        if not changes:
            return np.zeros((ranks, width))
        moments, amounts = zip(*changes, strict=True)
        each = [np.broadcast_to(one, len(when)) for when, one in zip(moments, amounts, strict=True)]
        when = np.concatenate(moments)
        if not len(when):
            return np.zeros((ranks, width))
        # Logits are on one rank alone.
        low, high = int(when.min()) // width, int(when.max()) // width + 1
        found = np.bincount(when - low * width, np.concatenate(each), (high - low) * width)
        sums = np.zeros((ranks, width))
        np.cumsum(found.reshape(-1, width), axis=1, out=sums[low:high])
        return sums
