"""Compile any program into an event graph: rules say what waits for what, one kernel sorts.

The sweeps of :mod:`debubble.engine.kernels.compile` and :mod:`debubble.engine.kernels.streams` know
the kinds they compile and are faster; this compiler takes every program, and a kind of action that
is new to it costs one rule: a function of an :class:`Events` that returns :class:`Edges`.

An *event* is something that takes time on one stream. Actions are events, the two halves of a pair
and the two ends of a transfer are one; rules add further events, such as transfers that are not
actions, or joins of no duration that many events wait for.

Collectives
-----------
``UNSHARD`` and ``REDUCE_GRAD`` run on the collective stream of their rank, in the order of the
program. Each is issued when its rank has done all computing that stands before it, and occupies
no compute. What computes on a stage waits for the end of the last ``UNSHARD`` before it, unless a
``RESHARD``, which takes no time, came in between; a ``REDUCE_GRAD`` waits for the weight gradients
of its iteration, and an optimizer step for the ``REDUCE_GRAD`` before it.

Copies of activations
---------------------
``OFFLOAD`` and ``RELOAD`` run on a copy stream of their rank, one for both directions, in the order
of the program. A copy is issued when its rank has done all computing that stands before it in the
program, and occupies nothing but the copy stream: no compute, and no channel of boundary
activations. A backward for input, a full backward and a recompute wait for the end of the reload. W
follows its I and finds what is kept for it in place.

Where two ranks share a link to the host (``Costs.host_link_shared_by``), the copies of both run on
one stream, in the order in which they would be issued were copies free and everything else took one
unit of time. That order extends the order of events without sharing, so that it never adds a cycle;
where ranks are in step, it takes their copies in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    Kind,
    computes,
    kinds_of,
    microbatches_of,
    pairs_of,
    stages_of,
    unpack,
)
from debubble.core.schedule import Schedule
from debubble.engine.event_graph import LINK, TIMED_KINDS, EventGraph, lanes_of
from debubble.engine.kernels.events import WIDTH, WORK, join_edges, sort_events
from debubble.engine.modes import P2PMode

Ids: TypeAlias = NDArray[np.integer]
"""Positions of actions, or numbers of events: an action's event has the action's position."""


class Edges(NamedTuple):
    """What waits for what: event ``consumer[i]`` starts ``lag[i]`` after ``producer[i]`` ends.

    ``lag`` holds cost indices. ``turn`` says that consumers wait for their turn on a stream, not
    for data; that only matters to whoever explains a deadlock.
    """

    consumer: Ids
    producer: Ids
    lag: Ids | int = 0
    turn: bool = False


class Events:
    """The actions of a schedule as columns, and the events made of them so far.

    Parameters
    ----------
    schedule, mode, shared
        What is compiled, how transfers are treated, and how many ranks share a host link.

    Notes
    -----
    Columns have one entry per action, in the schedule's order; rules fill the last ones.

    * ``own[i]`` is the cost index of action i, −1 where it is part of another action's event;
    * ``event[i]`` is the event that action i is part of;
    * ``carrier[i]`` is the transfer that the result of action i goes through, −1 where none;
    * ``meets[i]`` is the other end of a send or receive that is queued, −1 for all else;
    * ``turns`` are the positions and events that occupy ranks one after the other, sorted.
    """

    def __init__(self, schedule: Schedule, mode: P2PMode, shared: int) -> None:
        self.schedule, self.mode, self.shared = schedule, mode, shared
        actions = schedule.actions
        self.kind = kinds_of(actions).astype(np.int8)
        self.stage = stages_of(actions)
        self.unit = microbatches_of(actions)
        self.pair = pairs_of(actions).astype(np.int8)
        self.rank: Ids = np.repeat(
            np.arange(schedule.ranks, dtype=np.int32), np.diff(schedule.offsets)
        )
        self.own: Ids = np.full(len(actions), -1, dtype=np.int32)
        self.event: Ids = np.arange(len(actions), dtype=np.int32)
        self.carrier: Ids = np.full(len(actions), -1, dtype=np.int32)
        self.meets: Ids = np.full(len(actions), -1, dtype=np.int32)
        alone = np.flatnonzero(computes(self.kind) & (self.pair <= 1))
        self.turns: tuple[Ids, Ids] = (alone, alone)
        self._added: list[Ids] = []
        self._events = len(actions)
        self._of: dict[tuple[Kind, ...], Ids] = {}
        self._where: dict[tuple[Kind, ...], Ids] = {}
        self._needed: dict[Any, tuple[Ids, Ids]] = {}
        self._dynamic: list[tuple[int, Ids, Ids]] = []
        self._indices: dict[int, Ids] = {}
        self.lanes = lanes_of(schedule)
        self.places = schedule.slices * schedule.placement.copies * schedule.stages
        self._costs = 1 + TIMED_KINDS * self.places + schedule.ranks

    @cached_property
    def place(self) -> Ids:
        """Place of each action: its stage, of which copy, for which slice."""
        return self.schedule.places_of(self.schedule.actions)

    @cached_property
    def cell(self) -> Ids:
        """One number per (stage, microbatch)."""
        return self.stage * self.schedule.units + self.unit

    @cached_property
    def present(self) -> frozenset[Kind]:
        """The kinds that occur."""
        return frozenset(Kind(kind) for kind in np.flatnonzero(np.bincount(self.kind)).tolist())

    def of(self, *kinds: Kind) -> Ids:
        """Positions of the actions of some kinds."""
        if kinds not in self._of:
            found = np.zeros(0, dtype=bool)
            for kind in self.present.intersection(kinds):
                same = self.kind == kind
                found = found | same if len(found) else same
            self._of[kinds] = np.flatnonzero(found)
        return self._of[kinds]

    def where(self, *kinds: Kind) -> Ids:
        """Position of the action of one of these kinds in every cell, −1 where there is none."""
        if kinds not in self._where:
            table = np.full(self.schedule.stages * self.schedule.units, -1, dtype=np.int32)
            positions = self.of(*kinds)
            table[self.cell[positions]] = positions
            self._where[kinds] = table
        return self._where[kinds]

    def needed(
        self, kinds: tuple[Kind, ...], wanted: tuple[Kind, ...], step: int = 0
    ) -> tuple[Ids, Ids]:
        """Actions of some kinds, and what each needs: actions of other kinds `step` stages away.

        Positions of both; −1 where what is needed does not exist, and nothing for actions whose
        stage has no such neighbour.
        """
        key = (kinds, wanted, step)
        if key not in self._needed:
            here = self.of(*kinds)
            if step:
                away = self.stage[here] + step
                here = here[(away >= 0) & (away < self.schedule.stages)]
            found = self.where(*wanted)[self.cell[here] + step * self.schedule.units]
            self._needed[key] = here, found
        return self._needed[key]

    def of_slice(self, kinds: tuple[Kind, ...], step: int) -> tuple[Ids, Ids]:
        """Actions of some kinds, and the same of the next slice (`step` 1) or the one before.

        Positions of both, as of :meth:`needed`.
        """
        here = self.of(*kinds)
        part = self.unit[here] % self.schedule.slices + step
        here = here[(part >= 0) & (part < self.schedule.slices)]
        return here, self.where(*kinds)[self.cell[here] + step]

    def home(self, positions: Ids, step: int = 0) -> Ids:
        """Ranks of the stages `step` stages away from those of some actions."""
        return self.schedule.homes[self.place[positions] + step]

    def after_turn(self, positions: Ids) -> Edges:
        """Edges from what occupies each action's rank last before the action is reached."""
        spots, events = self.turns
        index = np.searchsorted(spots, positions)
        index, positions = index[index > 0] - 1, positions[index > 0]
        same = self.rank[spots[index]] == self.rank[positions]
        return Edges(self.event[positions[same]], events[index[same]], turn=True)

    def add(self, work: Ids) -> Ids:
        """Add an event for every cost index in `work`; returns their numbers."""
        self._added.append(work)
        self._events += len(work)
        return np.arange(self._events - len(work), self._events, dtype=np.int32)

    def text(self, position: int) -> str:
        """An action as text."""
        return self.schedule.text(unpack(int(self.schedule.actions[position])))

    @property
    def work(self) -> Ids:
        """Cost indices of all events, −1 for numbers that are no event."""
        return np.concatenate([self.own, *self._added]).astype(np.int32, copy=False)

    def link(self, source: Ids, target: Ids, unit: Ids | int = 0) -> Ids:
        """Cost indices of the links between ranks, for the slices of some units."""
        ranks, lanes = self.schedule.ranks, self.lanes
        key = ((unit % lanes) * ranks + source) * ranks + target
        new, index = self._index(LINK, key, lanes * ranks * ranks)
        self._dynamic.append((LINK, new // ranks, new % ranks))
        return index

    def pair_time(self, kind: Kind, forward: Ids, backward: Ids) -> Ids:
        """Cost indices of pairs with a backward of one kind, by the places of both halves."""
        places = self.places
        new, index = self._index(kind, forward * places + backward, places * places)
        self._dynamic.append((kind, new // places, new % places))
        return index

    def place_time(self, kind: Kind, place: Ids) -> Ids:
        """Cost indices of a kind on places that few schedules have: of copies, S and T."""
        new, index = self._index(kind, place, self.places)
        self._dynamic.append((kind, new, self.schedule.homes[new]))
        return index

    def collective_time(self, kind: Kind, place: Ids) -> Ids:
        """Cost indices of the collectives of the stages of copies."""
        new, index = self._index(kind, place, self.places)
        self._dynamic.append((kind, new, new))
        return index

    def _index(self, kind: int, key: Ids, size: int) -> tuple[Ids, Ids]:
        """Keys that get their cost index now, and the indices of all keys."""
        index = self._indices.setdefault(kind, np.zeros(size, dtype=np.int32))
        used = np.zeros(size, dtype=bool)
        used[key] = True
        new = np.flatnonzero(used & (index == 0))
        index[new] = np.arange(self._costs, self._costs + len(new))
        self._costs += len(new)
        return new, index[key]

    def dynamic(self) -> list[NDArray[np.int32]]:
        """Kinds and both parameters of the costs that were indexed."""
        kinds = [np.full(len(new), kind) for kind, new, _ in self._dynamic]
        columns = [kinds, [a for _, a, _ in self._dynamic], [b for _, _, b in self._dynamic]]
        empty = np.empty(0, dtype=np.int32)
        return [np.concatenate([empty, *column]).astype(np.int32) for column in columns]


SLICES = (((Kind.F,), -1), ((Kind.I, Kind.B), 1))
"""Kinds that wait for the same of another slice of the microbatch, and the step to it."""

Rule: TypeAlias = Callable[[Events], Iterable[Edges]]
"""What some events wait for; a rule may also fill in columns and add events."""


def takers(events: Events) -> list[tuple[tuple[Kind, ...], tuple[Kind, ...], int]]:
    """Kinds that take the result of a neighbouring stage: themselves, whose, and the step to it."""
    forward, backward = (Kind.F,), (Kind.I, Kind.B)
    found = [(forward, forward, -1), (backward, backward, 1)]
    if events.schedule.recompute_after == "gradient" and Kind.R in events.present:
        found.append(((Kind.R,), backward, 1))
    return found


def compile_events(schedule: Schedule, mode: P2PMode, shared: int = 1) -> EventGraph:
    """Lower any schedule to an event graph.

    Parameters
    ----------
    schedule
        Any schedule; in modes in which it matters where receives stand, with its transfers.
    mode
        What a transfer does, see :mod:`debubble.engine.modes` and
        :func:`debubble.engine.rules.sends`.
    shared
        How many neighbouring ranks share one link to the host.

    Raises
    ------
    ScheduleError
        When the order cannot run: an action twice, without what it needs, or a circle of actions
        that wait for each other, of which the shortest is shown.
    """
    return _compile(schedule, mode, shared)


def _compile(schedule: Schedule, mode: P2PMode, shared: int) -> EventGraph:
    from debubble.engine.malformed import refuse_malformed
    from debubble.engine.rules import RULES

    events = Events(schedule, mode, shared)
    refuse_malformed(events)
    edges = [edge for rule in RULES for edge in rule(events) if len(edge.consumer)]
    consumer, producer, lag = (
        np.concatenate([np.empty(0, dtype=np.int32), *column]).astype(np.int32, copy=False)
        for column in (
            [edge.consumer for edge in edges],
            [edge.producer for edge in edges],
            [np.broadcast_to(edge.lag, len(edge.consumer)) for edge in edges],
        )
    )
    work = events.work

    def zeros(size: int) -> NDArray[np.int32]:
        return np.zeros(size, dtype=np.int32)

    table = zeros(WIDTH * (len(work) + 1))
    table[WORK:-WIDTH:WIDTH] = work
    into, wait, out = (np.empty(len(consumer), dtype=np.int32) for _ in range(3))
    steps = len(work) + 2 * len(consumer)
    joins = join_edges.run(steps, consumer, producer, lag, table, into, wait, out)
    size = 1 + int(np.count_nonzero(work >= 0)) + joins
    first, second, lag_of, cost = (np.empty(size, dtype=np.uint32) for _ in range(4))
    for column in (first, second, lag_of, cost):
        column[0] = 0
    place = zeros(len(work))
    nodes = sort_events.run(
        steps, table, into, wait, out, np.empty(len(work), dtype=np.int32), place,
        first, second, lag_of, cost,
    )  # fmt: skip
    if nodes < size:
        from debubble.engine.circles import explain_circle

        raise explain_circle(events, edges, place)
    carrier = events.carrier[:0] if mode == "overlapped" else events.carrier
    sent = np.where(carrier >= 0, place[carrier], 0).astype(np.int32)
    kinds, a, b = events.dynamic()
    completed = len(events.of(Kind.W, Kind.B))
    return EventGraph(
        schedule, mode, first, second, lag_of, cost, place[events.event], sent, kinds, a, b,
        completed, False, shared,
    )  # fmt: skip
