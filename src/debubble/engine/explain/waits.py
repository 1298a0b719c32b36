"""Waits among actions in a p2p mode, and the shortest cycle of them.

What actions of one rank need of each other stands in front of them, as
:mod:`debubble.engine.explain.action_faults` has seen, and so do copies and collectives, which
nothing else waits for. What is left are the results of other ranks, the order in which a rank
computes, and where its transfers stand.

An action has two nodes where several run together: one for who waits for it, and one, its *own*,
for what holds it up on its rank. Between them stands all that runs together with it: the other end
of a transfer, the rest of its group, the same step of other ranks.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import among, group_bounds, kinds_of, pairs_of
from debubble.core.errors import ScheduleError
from debubble.core.kind_relations import ranks_stepped_with
from debubble.core.kinds import (
    COMPUTE_KINDS,
    KINDS,
    STEP_KINDS,
    TRANSFER_KINDS,
    WAIT_KINDS,
    Of,
)
from debubble.core.schedule import Schedule
from debubble.core.waits import last_before, waits_for
from debubble.engine.explain import words
from debubble.engine.explain.cycle import shortest_cycle
from debubble.engine.explain.words import ORDER, Verb, WaitStep
from debubble.engine.modes import MODE, P2PMode

Numbers: TypeAlias = NDArray[np.int64]

_RECEIVES = np.array([spec.receives for spec in KINDS])
_VERBS = (*Verb, None)
"""Edges by number; of None are those between two nodes of what runs together."""


def deadlock(schedule: Schedule, mode: P2PMode) -> ScheduleError:
    """Return the error for actions that wait for each other: the shortest cycle of them."""
    cycle = cycle_of(schedule, mode)
    assert cycle, "actions that cannot run wait for each other"
    return words.deadlock(schedule, cycle)


def cycle_of(schedule: Schedule, mode: P2PMode) -> list[WaitStep]:
    """Return the shortest cycle of actions that wait for each other, empty where there is none."""
    tail, head, verb = _Edges(schedule, mode).arrays()
    edges = shortest_cycle(tail, head, verb == _VERBS.index(Verb.WAITS))
    count = len(schedule)
    path = [(int(tail[edge]), _VERBS[verb[edge]], int(head[edge]) % count) for edge in edges]
    return _links(path, count) if path else []


def _links(path: list[tuple[int, Verb | None, int]], count: int) -> list[WaitStep]:
    """Return a cycle of edges as links between actions, from the first that waits for another rank.

    Where several actions run together, the path goes through a node of them all, which is said of
    the action it came from. Of several turns in a row only the last is said.
    """
    links: list[WaitStep] = []
    came = next(tail for tail, _, _ in path if tail < count)
    while path[0][0] != came:
        path = [*path[1:], path[0]]
    for tail, verb, head in path:
        came = tail % count if tail < 2 * count else came
        if verb is None or came == head:
            continue
        if links and verb in ORDER and links[-1].verb is verb and links[-1].wanted == came:
            links[-1] = links[-1]._replace(wanted=head)
        else:
            links.append(WaitStep(came, verb, head))
    if links[0].verb in ORDER and links[0].verb is links[-1].verb:
        last = links.pop()
        links[0] = links[0]._replace(waiting=last.waiting)
    first = min((link.waiting, index) for index, link in enumerate(links) if link.verb not in ORDER)
    return links[first[1] :] + links[: first[1]]


class _Edges:
    """The graph of waits, as arrays of edges.

    Of n actions, node i is action i, node n + i its own turn where others run together with it, and
    nodes from 2n on stand for all that run together.
    """

    def __init__(self, schedule: Schedule, mode: P2PMode) -> None:
        self.schedule, self.spec = schedule, MODE[mode]
        self.count = len(schedule)
        self.kind = kinds_of(schedule.actions)
        self.rank = schedule.ranks_of_actions
        self.begin = group_bounds(schedule.actions)[0]
        # A wait for a copy takes no time, but what stands behind it does not begin before it.
        self.compute = among(self.kind, (*COMPUTE_KINDS, *WAIT_KINDS))
        self.before = last_before(schedule, self.compute)
        self.steps = among(self.kind, STEP_KINDS)
        waits = waits_for(schedule)
        met = _RECEIVES[self.kind[waits.consumer]]
        self.other_end = np.full(self.count, -1, dtype=np.int64)
        self.other_end[waits.consumer[met]] = waits.producer[met]
        self.other_end[waits.producer[met]] = waits.consumer[met]
        self.meets = self.spec.receives is not None
        self.stepped_with = ranks_stepped_with(schedule)
        joint = pairs_of(schedule.actions) > 0
        if self.meets:
            joint |= self.other_end >= 0
        if self.stepped_with is Of.EVERY_RANK:
            joint |= self.steps
        self.own = np.arange(self.count) + self.count * joint
        self._parts: list[tuple[Numbers, Numbers, Numbers]] = []
        both = np.flatnonzero(joint)
        self._add(both, self.own[both])
        self._groups(np.flatnonzero(pairs_of(schedule.actions)))
        self._results(waits.consumer, waits.producer)
        self._turns()
        self._steps(np.flatnonzero(self.steps))
        ends = np.flatnonzero(self.other_end >= 0)
        if self.meets:
            self._add(ends, self.own[self.other_end[ends]], Verb.WAITS)
        if self.spec.blocks:
            self._blocked(ends)
        if self.spec.queued:
            self._queues(ends)

    def arrays(self) -> tuple[Numbers, Numbers, Numbers]:
        """Tails, heads, and numbers of verbs."""
        tail, head, verb = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return tail, head, verb

    def _add(self, tail: Numbers, head: Numbers, verb: Verb | None = None) -> None:
        self._parts.append((tail, head, np.full(len(tail), _VERBS.index(verb))))

    def _groups(self, members: Numbers) -> None:
        """Add waits of the members of a group, which start together."""
        group = 2 * self.count + self.begin[members]
        self._add(members, group)
        self._add(group, self.own[members], Verb.TOGETHER)

    def _results(self, consumer: Numbers, producer: Numbers) -> None:
        """Add waits of compute actions for results of other ranks, or for their receives."""
        far = self.compute[consumer] & ~self.steps[consumer]
        received = self.other_end[producer] >= 0
        far &= received | (self.rank[consumer] != self.rank[producer])
        consumer, producer, received = consumer[far], producer[far], received[far]
        if not self.meets:
            # Where a receive stands does not matter.
            producer = np.where(received, self.other_end[producer], producer)
        self._add(self.own[consumer], producer, Verb.WAITS)

    def _turns(self) -> None:
        """Add waits for turns: a rank computes one action at a time, with transfers in between."""
        issued = self.compute | among(self.kind, TRANSFER_KINDS)
        if not self.meets:
            issued &= ~_RECEIVES[self.kind]
        here = np.flatnonzero(issued)
        ahead = self.before[self.begin[here]]
        self._add(self.own[here[ahead >= 0]], ahead[ahead >= 0], Verb.RUNS_AFTER)

    def _steps(self, steps: Numbers) -> None:
        """Add waits of a step for the same step of other ranks: all, or the one before."""
        rank = self.rank[steps]
        number = np.arange(len(steps)) - np.searchsorted(rank, rank)
        if self.stepped_with is Of.EVERY_RANK:
            together = 2 * self.count + steps[number]
            self._add(steps, together)
            self._add(together, self.own[steps], Verb.WAITS)
        elif self.stepped_with is Of.EARLIER_RANKS:
            later = np.flatnonzero(rank > 0)
            earlier = np.searchsorted(rank, rank[later] - 1) + number[later]
            self._add(self.own[steps[later]], steps[earlier], Verb.WAITS)

    def _blocked(self, ends: Numbers) -> None:
        """Add waits of compute actions for all transfers since the compute action before."""
        computing = np.append(np.flatnonzero(self.compute), -1)
        following = computing[np.searchsorted(computing[:-1], ends)]
        held_up = (following >= 0) & (self.rank[following] == self.rank[ends])
        ends, following = ends[held_up], following[held_up]
        held = np.flatnonzero(np.isin(self.begin, following) & self.compute)
        self._add(self.own[held], 3 * self.count + self.begin[held])
        self._add(3 * self.count + following, ends, Verb.RUNS_AFTER)

    def _queues(self, ends: Numbers) -> None:
        """Add waits of an end of a transfer for the one before it on its queue."""
        queue = self.rank[ends]
        if self.spec.by_peer:
            queue = queue * self.schedule.ranks + self.rank[self.other_end[ends]]
        if self.spec.by_direction:
            queue = 2 * queue + _RECEIVES[self.kind[ends]]
        order = np.argsort(queue, kind="stable")
        ends, queue = ends[order], queue[order]
        same = queue[1:] == queue[:-1]
        self._add(self.own[ends[1:][same]], ends[:-1][same], Verb.QUEUED)
