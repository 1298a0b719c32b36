"""Walks through a schedule with a time for every action and every message of its own.

A walk is a graph with a node for every action, or overlapped group, and one for every message. An
action begins after the one before it on its rank, its inputs, and messages that hold it up. A
message begins after all that its mode of transfers names, see :mod:`.p2p_modes`. Entries of the
vector of times are, for n actions: 0, the times of actions, those of the messages that each
receives, and the negative time for which a group runs without the input of a member.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import group_bounds
from debubble.core.schedule import Schedule
from debubble.diagnosis.observed import Indices, Times
from debubble.diagnosis.p2p_modes import OVERLAPPED, FittedMode, MessageRules, rules_of
from debubble.engine.event_graph import EventGraph


@dataclass(frozen=True, eq=False)
class Walk:
    """Graph of the actions and messages of a schedule in a mode of transfers."""

    schedule: Schedule
    graph: EventGraph
    message: Indices
    """Node of the message that each action receives, 0 for none; shape ``(actions,)``."""

    def vectors(self, times: Times, messages: Times, leads: Times | None = None) -> Times:
        """Return vectors of times; the arguments have shape ``(rows, actions)``."""
        zeros = np.zeros((len(times), 1))
        leads = np.zeros_like(times) if leads is None else leads
        return np.hstack([zeros, times, messages, -leads])

    def lengths(self, times: Times, messages: Times, leads: Times | None = None) -> Times:
        """Return the time from the start of the walk to its last end, shape ``(rows,)``."""
        return self.graph.makespans(self.vectors(times, messages, leads))

    def ends(self, times: Times, messages: Times, leads: Times | None = None) -> Times:
        """Return the end of every action, shape ``(rows, actions)``."""
        found = [self.graph.evaluate(vector) for vector in self.vectors(times, messages, leads)]
        return np.stack(found)[:, self.graph.node]


def walk_of(schedule: Schedule, mode: FittedMode) -> Walk | None:
    """Return the walk through a schedule in a mode; None if its actions wait for each other."""
    key = (Walk, *mode.key)
    if key not in schedule.derived:
        rules = rules_of(mode, schedule)
        parts = None if rules is None else _compiled(schedule, rules)
        # The arrays are kept, not the graph: it points back at the schedule.
        schedule.derived[key] = parts
    parts = schedule.derived[key]
    if parts is None:
        return None
    (first, second, lag, cost), node, message = parts
    none = np.zeros(0, dtype=np.int32)
    graph = EventGraph(
        schedule, "overlapped", first, second, lag, cost, node, none, none, none, none, 0
    )
    return Walk(schedule, graph, message)


def any_walk(schedule: Schedule, mode: FittedMode) -> Walk:
    """Return the walk through a schedule in a mode, or without waits for receivers in it."""
    found = walk_of(schedule, mode) or walk_of(schedule, OVERLAPPED)
    assert found is not None, "the schedule cannot run"
    return found


Edges = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]

Parts = tuple[Edges, NDArray[np.int32], Indices]


def _compiled(schedule: Schedule, rules: MessageRules) -> Parts | None:
    """Return the edges of a graph, the node of every action and of the message it receives."""
    count = len(schedule)
    first, behind = group_bounds(schedule.actions)
    last = behind - 1
    group = np.flatnonzero(last == np.arange(count))
    before = np.where(np.isin(first, schedule.offsets[:-1]), -1, first - 1)
    messages = np.flatnonzero(rules.source >= 0)
    # Things are groups, by the index of their last action, and messages, from `count` on. Edges
    # are (thing, thing before it, index of the lag).
    far = np.full(count, -1)
    far[messages] = count + messages
    no_lag = np.zeros(len(messages), dtype=np.int64)
    lead = np.where(first[messages] < messages, 1 + 2 * count + messages, 0)
    edges = [(group, before[group], np.zeros(len(group), dtype=np.int64)),
             (last[messages], far[messages], lead)]  # fmt: skip
    for action in (rules.held, rules.taken):
        place = np.where(action >= 0, last[action], -1)[messages]
        edges += [(place, far[messages], no_lag)]
    for action in (rules.source, rules.posted):
        place = np.where(action >= 0, last[action], -1)[messages]
        edges += [(far[messages], place, no_lag)]
    for ahead in rules.ahead:
        place = np.where(ahead >= 0, far[ahead], -1)[messages]
        edges += [(far[messages], place, no_lag)]
    to, of, lag = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    some = (to >= 0) & (of >= 0)
    to, of, lag = to[some], of[some], lag[some]
    order = _sorted(2 * count, np.concatenate([group, far[messages]]), to, of)
    return None if order is None else _joined(count, order, to, of, lag, last)


def _sorted(size: int, things: Indices, to: Indices, of: Indices) -> list[int] | None:
    """Return things in an order in which edges go forward; None if there is a cycle."""
    waits = np.bincount(to, minlength=size)
    sort = np.argsort(of, kind="stable")
    begins = np.searchsorted(of[sort], np.arange(size + 1)).tolist()
    following, left = to[sort].tolist(), waits.tolist()
    order = things[waits[things] == 0].tolist()
    for thing in order:
        for after in following[begins[thing] : begins[thing + 1]]:
            left[after] -= 1
            if not left[after]:
                order.append(after)
    return order if len(order) == len(things) else None


def _joined(
    count: int, order: list[int], to: Indices, of: Indices, lag: Indices, last: Indices
) -> Parts:
    """Return a graph of nodes with at most two predecessors each, joins included."""
    place = np.zeros(2 * count, dtype=np.int64)
    place[order] = np.arange(len(order))
    # The edges of each thing in the order of things, those without a lag first.
    sort = np.lexsort((lag > 0, place[to]))
    to, of, lag = place[to[sort]], of[sort], lag[sort]
    number = np.bincount(to, minlength=len(order))
    plain = np.bincount(to[lag == 0], minlength=len(order)) > 0
    # The first edge without a lag is the first predecessor of the first node.
    extra = number - plain
    nodes = np.maximum(extra, 1)
    node = np.cumsum(nodes)  # the last one of every thing
    begin = np.cumsum(number) - number
    rank = np.arange(len(to)) - begin[to]
    first, second, lags, cost = np.zeros((4, 1 + int(nodes.sum())), dtype=np.uint32)
    inner = np.ones(len(first), dtype=bool)
    inner[0] = False
    inner[node - nodes + 1] = False
    first[inner] = np.flatnonzero(inner) - 1
    leading = (rank == 0) & plain[to]
    first[(node - nodes + 1)[to[leading]]] = node[place[of[leading]]]
    spot = (node - nodes + 1)[to] + rank - plain[to]
    first_of = node[place[of]]
    second[spot[~leading]] = first_of[~leading]
    lags[spot[~leading]] = lag[~leading]
    things = np.asarray(order)
    cost[node] = 1 + things
    every = np.zeros(2 * count, dtype=np.int64)
    every[things] = node
    return (first, second, lags, cost), every[last].astype(np.int32), every[count:]
