"""Times of their own for single actions: measured ones, jitter, microbatches that differ.

A compiled schedule pays the same cost for every action of a kind and stage. Here every action has
an entry of the cost vector for itself, behind those of the graph, so that all that reads a graph
(evaluation, critical path, slack, pictures) works with them as it stands.
"""

from __future__ import annotations

import reprlib
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import computes, group_bounds, kinds_of
from debubble.core.cost_fields import LARGEST_COST
from debubble.core.cost_table import CostTable
from debubble.core.errors import CostError
from debubble.engine.event_graph import EventGraph
from debubble.engine.microbatch_times import set_transfers, stretch

Floats = NDArray[np.float64]


def shared_costs(graph: EventGraph) -> int:
    """Return the number of entries of a graph's cost vector without times of single actions."""
    return graph.dynamic_costs + len(graph.dynamic_kind)


def with_action_times(graph: EventGraph, *, delays: bool = False) -> EventGraph:
    """Return the graph with an entry of the cost vector for every action.

    With c entries that actions share (see :func:`shared_costs`), entry c + a is the time of action
    a of n, where it computes; an overlapped pair takes the time of its second half. With `delays`,
    which needs the p2p mode ``"overlapped"`` and no sends and receives, entry c + n + a is the
    delay of what action a receives from another rank.

    Examples
    --------
    >>> import debubble as db
    >>> import numpy as np
    >>> schedule, costs = db.make("1f1b", ranks=2, microbatches=2), db.Costs(F=1, B=2)
    >>> timeline = db.simulate(schedule, costs)
    >>> graph = with_action_times(timeline.graph)
    >>> slow = timeline.duration.copy()
    >>> slow[0] = 5.0
    >>> timeline.makespan, float(graph.evaluate(np.concatenate([timeline.costs, slow])).max())
    (9.0, 13.0)
    """
    shared, count = shared_costs(graph), len(graph.node)
    works = np.flatnonzero(computes(kinds_of(graph.schedule.actions)))
    node = graph.node[works]
    cost = graph.cost.astype(np.uint32)
    cost[node] = shared + works
    lag = graph.lag
    if delays:
        assert not len(graph.sent), "transfers that are nodes have no delays of their own"
        lag = lag.astype(np.uint32)
        # Each member of a group waits at a node of its own; the last one is that of the group.
        _, behind = group_bounds(graph.schedule.actions)
        waiting = node - (behind[works] - 1 - works)
        waits = lag[waiting] > 0
        lag[waiting[waits]] = shared + count + works[waits]
    return replace(graph, cost=cost, lag=lag, base=graph.base or graph)


def with_times(
    graph: EventGraph, table: CostTable, durations: Floats | None = None
) -> tuple[EventGraph, Floats]:
    """Return a graph in which every node has a time of its own, and its cost vector.

    `durations` are times of actions, shape ``(n,)``, in place of what the table says; those of
    actions that do not compute are not used, and an overlapped pair takes that of its second half.
    """
    plain = graph.base or graph
    shared = plain.cost_vector(table)
    times, delays = shared[plain.cost], shared[plain.lag]
    if table.lengths is not None:
        stretch(plain, table, table.lengths, times, delays)
    if table.boundaries is not None:
        set_transfers(plain, table, times, delays)
    if durations is not None:
        works = np.flatnonzero(computes(kinds_of(graph.schedule.actions)))
        times[plain.node[works]] = durations[works]
    node = np.arange(len(times), dtype=np.uint32)
    cost = np.where(node > 0, len(shared) + node, 0).astype(np.uint32)
    lag = np.where(plain.lag > 0, len(shared) + len(times) + node, 0).astype(np.uint32)
    return replace(plain, cost=cost, lag=lag, base=plain), np.concatenate([shared, times, delays])


def checked(durations: ArrayLike, count: int) -> Floats:
    """Return the given times of `count` actions.

    Raises CostError when there is not a time for each.
    """
    try:
        times = np.asarray(durations, dtype=np.float64)
    except (TypeError, ValueError):
        shown = reprlib.repr(durations)
        raise CostError(f"durations is {shown}; give one number per action") from None
    if times.shape != (count,):
        raise CostError(
            f"durations has the shape {times.shape} for {count:,} actions; give one time for each"
        )
    wrong = np.flatnonzero(~((times >= 0) & (times <= LARGEST_COST)))
    if len(wrong):
        raise CostError(
            f"durations[{wrong[0]}] is {times[wrong[0]]:g}; give a time from 0 to {LARGEST_COST:g}"
        )
    return times
