"""Data dependencies of all actions of a schedule: the table of kinds, applied.

Program order is not part of it: that actions of one stream run one after the other follows from the
programs themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Action, among, kinds_of, microbatches_of, stages_of
from debubble.core.carries import WAYS, carry_steps
from debubble.core.embedding_and_head import first_stages
from debubble.core.kinds import KINDS, TRANSFER_KINDS, Kind, Need, Of
from debubble.core.schedule import Schedule

Positions = NDArray[np.int64]

BY_CELL = (Of.STAGE, *WAYS, Of.LAST_STAGE, Of.EVERY_SHARD)
"""Needs that name single actions by stage and microbatch."""

DENSE = 4
"""A table of all (stage, microbatch) is made while it has at most this many entries per action."""


@dataclass(frozen=True, eq=False)
class Waits:
    """Pairs of actions of which one waits for the other."""

    consumer: Positions
    producer: Positions
    """As `consumer`, positions in the schedule, sorted by consumer and, of one consumer, in the
    order of its kind's needs; shape ``(pairs,)``."""
    offsets: Positions
    """The pairs of action i are ``offsets[i]`` to ``offsets[i + 1]``; shape ``(n + 1,)``."""

    def of(self, position: int) -> Positions:
        """Return positions of what one action waits for."""
        return self.producer[self.offsets[position] : self.offsets[position + 1]]


def waits_for(schedule: Schedule) -> Waits:
    """Return the data dependencies of every action; program order is not among them.

    Where transfers are actions, results of other ranks come through their receives. A missing
    action is left out: schedules that lack actions, or have one twice (the first counts), are for
    :func:`debubble.check`. The result is kept with the schedule.

    Examples
    --------
    >>> import debubble as db
    >>> schedule = db.make("1f1b", ranks=2, microbatches=1)
    >>> [list(map(str, program)) for program in schedule]
    [['0F0', '0B0'], ['1F0', '1B0']]
    >>> waits = waits_for(schedule)
    >>> list(zip(waits.consumer.tolist(), waits.producer.tolist()))
    [(1, 3), (1, 0), (2, 0), (3, 2)]
    """
    if Waits not in schedule.derived:
        found = ActionIndex(schedule).waits()
        # Arrays only: what points back at the schedule would keep both alive.
        schedule.derived[Waits] = found
    waits: Waits = schedule.derived[Waits]
    return waits


def primary_of(schedule: Schedule) -> Positions:
    """Return the position of the result that each action computes with, −1 for none.

    That is the first of its needs that somebody meets: the stage before for a forward, the stage
    after for a backward, its own forward on the last stage.
    """
    waits = waits_for(schedule)
    found = np.full(len(schedule), -1, dtype=np.int64)
    some = np.flatnonzero(np.diff(waits.offsets))
    found[some] = waits.producer[waits.offsets[some]]
    return found


def unmet(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Yield positions of actions that wait for one that is not there, and that one.

    All actions exist. Of alternatives it is the first. What schedules may do without is never
    missing, but what was offloaded has to come back.
    """
    lookup = ActionIndex(schedule)
    for spec in KINDS:
        here = lookup.positions((spec.kind,))
        for need in spec.needs if len(here) else ():
            if need.of in BY_CELL and need.when(schedule):
                yield from lookup.unmet(here, need)


class ActionIndex:
    """Index of a schedule's actions by kind, stage and microbatch."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        actions = schedule.actions
        self.kind = kinds_of(actions)
        self.stage, self.unit = stages_of(actions), microbatches_of(actions)
        self.rank = schedule.ranks_of_actions
        # Whole microbatches, so that the slice after the last is in no other stage's cells.
        self.units = (int(self.unit.max(initial=0)) // schedule.slices + 1) * schedule.slices
        self.cell = self.stage * self.units + self.unit
        size = (int(self.stage.max(initial=0)) + 1) * self.units
        self._dense = size if size <= max(4096, DENSE * len(actions)) else 0
        self._by_kind: dict[tuple[Kind, ...], Positions] = {}
        self._tables: dict[tuple[Kind, ...], Positions] = {}

    def positions(self, kinds: tuple[Kind, ...]) -> Positions:
        """Return positions of the actions of some kinds."""
        if kinds not in self._by_kind:
            self._by_kind[kinds] = np.flatnonzero(among(self.kind, kinds))
        return self._by_kind[kinds]

    def find(self, kinds: tuple[Kind, ...], cells: Positions) -> Positions:
        """Return the position of the first action of these kinds in every cell, −1 for none."""
        here = self.positions(kinds)
        if self._dense:
            if kinds not in self._tables:
                table = np.full(self._dense, -1, dtype=np.int64)
                table[self.cell[here[::-1]]] = here[::-1]
                self._tables[kinds] = table
            inside = (cells >= 0) & (cells < self._dense)
            return np.where(inside, self._tables[kinds][np.where(inside, cells, 0)], -1)
        if not len(here):
            return np.full(len(cells), -1, dtype=np.int64)
        keys, first = np.unique(self.cell[here], return_index=True)
        spot = np.minimum(np.searchsorted(keys, cells), len(keys) - 1)
        return np.where(keys[spot] == cells, here[first[spot]], -1)

    def waits(self) -> Waits:
        """Return every pair, sorted by consumer."""
        blocks = [
            self._of_need(self.positions((spec.kind,)), need)
            for spec in KINDS
            if len(self.positions((spec.kind,)))
            for need in spec.needs
            if need.when(self.schedule)
        ]
        counts = np.zeros(len(self.kind), dtype=np.int64)
        for consumer, _ in blocks:
            counts += np.bincount(consumer, minlength=len(counts))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        # All needs of a kind are filled in one after the other: no pair has to be sorted.
        free = offsets[:-1].copy()
        producers = np.empty(offsets[-1], dtype=np.int64)
        for consumer, producer in blocks:
            # Consumers are sorted: of several pairs of one each takes the next place.
            opens = np.diff(consumer, prepend=-1) > 0
            place = free[consumer]
            if not opens.all():
                begin = np.flatnonzero(opens)
                run = np.diff(np.append(begin, len(consumer)))
                place += np.arange(len(consumer)) - np.repeat(begin, run)
            producers[place] = producer
            free[consumer] = place + 1
        return Waits(np.repeat(np.arange(len(counts)), counts), producers, offsets)

    def _of_need(self, here: Positions, need: Need) -> tuple[Positions, Positions]:
        """Return consumers, sorted, and producers of one need of the actions `here`."""
        if need.of is Of.ITERATION:
            return self._of_iteration(here, need.kinds)
        if need.of in BY_CELL:
            here, _, found = self._by_cell(here, need)
        elif need.of is Of.LATEST:
            found = self._latest(here, need.kinds)
        else:
            return self._of_ranks(here, need)
        return here[found >= 0], found[found >= 0]

    def unmet(self, here: Positions, need: Need) -> Iterator[tuple[int, Action]]:
        """Yield the actions among `here` whose need is not met, and what is missing."""
        here, cells, found = self._by_cell(here, need)
        lacks = found < 0
        if need.optional:
            undone = KINDS[need.kinds[0]].undoes
            lacks &= False if undone is None else self.find((undone,), cells) >= 0
        for index in np.flatnonzero(lacks).tolist():
            position, cell = int(here[index]), int(cells[index])
            came = need.through if cell == self.cell[position] else None
            stage, unit = divmod(cell, self.units)
            yield position, Action(stage, need.kinds[0] if came is None else came, unit)

    def _by_cell(self, here: Positions, need: Need) -> tuple[Positions, Positions, Positions]:
        """Return consumers, the cell of what each needs and its position, −1 for none.

        What comes through a receive is looked for in the cell of its consumer.
        """
        schedule = self.schedule
        if need.last_stage_only:
            here = here[self.stage[here] == schedule.stages - 1]
        if need.of is Of.LAST_STAGE:
            cells = (schedule.stages - 1) * self.units + self.unit[here]
        elif need.of is Of.EVERY_SHARD:
            first = first_stages(schedule.placement) if schedule.vocabulary else here[:0]
            cells = (first[None, :] * self.units + self.unit[here][:, None]).ravel()
            here = np.repeat(here, len(first))
        elif need.of in WAYS:
            step = carry_steps(schedule.carries, schedule.stages)[WAYS[need.of]][self.stage[here]]
            here, step = here[step != 0], step[step != 0]
            cells = self.cell[here] + step * self.units
        else:
            if need.stage:
                away = self.stage[here] + need.stage
                here = here[(away >= 0) & (away < schedule.stages)]
            if need.slice:
                part = self.unit[here] % schedule.slices + need.slice
                here = here[(part >= 0) & (part < schedule.slices)]
            cells = self.cell[here] + need.stage * self.units + need.slice
        found = self.find(need.kinds, cells)
        if need.through is not None and len(self.positions(TRANSFER_KINDS)):
            far = (found >= 0) & (self.rank[found] != self.rank[here])
            cells[far] = self.cell[here[far]]
            found[far] = self.find((need.through,), cells[far])
        return here, cells, found

    def _latest(self, here: Positions, kinds: tuple[Kind, ...]) -> Positions:
        """Return the last action of some kinds before each, of its stage and in its program."""
        there = self.positions(kinds)
        if not len(there):
            return np.full(len(here), -1, dtype=np.int64)
        count = len(self.kind)
        group = self.rank * (int(self.stage.max()) + 1) + self.stage
        keys = np.sort(group[there] * count + there)
        spot = np.searchsorted(keys, group[here] * count + here) - 1
        key = keys[np.maximum(spot, 0)]
        same = (spot >= 0) & (key // count == group[here])
        return np.where(same, key % count, -1)

    def _of_iteration(
        self, here: Positions, kinds: tuple[Kind, ...]
    ) -> tuple[Positions, Positions]:
        """Return all of the same stage and rank in the iteration whose number actions carry."""
        schedule = self.schedule
        there = self.positions(kinds)
        period = schedule.microbatches * schedule.slices
        wide, steps = int(self.stage.max(initial=0)) + 1, self.units + 1
        of = (self.rank * wide + self.stage) * steps
        # One after the last iteration is of the last.
        keys = of[here] + np.minimum(self.unit[here], min(self.units, schedule.iterations - 1))
        order = np.argsort(keys, kind="stable")
        here, keys = here[order], keys[order]
        wanted = of[there] + self.unit[there] // period
        spot = np.searchsorted(keys, wanted)
        found = spot < len(keys)
        found[found] = keys[spot[found]] == wanted[found]
        consumer, producer = here[spot[found]], there[found]
        order = np.argsort(consumer, kind="stable")
        return consumer[order], producer[order]

    def _of_ranks(self, here: Positions, need: Need) -> tuple[Positions, Positions]:
        """Return optimizer steps and the last action of some kinds before, of one or more ranks."""
        schedule = self.schedule
        there = self.positions(need.kinds)
        before = np.searchsorted(there, here) - 1
        last = np.where(before >= 0, there[np.maximum(before, 0)], -1) if len(there) else before
        last = np.where((last >= 0) & (self.rank[last] == self.rank[here]), last, -1)
        if need.of is Of.OWN_RANK:
            return here[last >= 0], last[last >= 0]
        # Step k of every rank, counted in its program.
        rank = self.rank[here]
        number = np.arange(len(here)) - np.searchsorted(rank, rank)
        table = np.full((int(number.max(initial=0)) + 1, schedule.ranks), -1, dtype=np.int64)
        table[number, rank] = last
        producers = table[number]
        if need.of is Of.EARLIER_RANKS:
            producers = np.where(np.arange(schedule.ranks) <= rank[:, None], producers, -1)
        consumers = np.repeat(here, schedule.ranks)
        found = producers.ravel()
        return consumers[found >= 0], found[found >= 0]


def last_before(schedule: Schedule, chosen: NDArray[np.bool_]) -> Positions:
    """Return the position of the last chosen action before each in its program, −1 for none."""
    index = np.where(chosen, np.arange(len(schedule)), -1)
    last = np.concatenate([[-1], np.maximum.accumulate(index)[:-1]]) if len(index) else index
    opening = np.repeat(schedule.offsets[:-1], np.diff(schedule.offsets))
    return np.where(last >= opening, last, -1)
