"""Longest path through a graph whose nodes stand in topological order, forwards and backwards."""

from __future__ import annotations

import math

from debubble.engine.jit import Array, kernel


@kernel(writes=("end",))
def evaluate(
    first: Array, second: Array, lag: Array, cost: Array, costs: Array, end: Array
) -> float:
    """End time of every node, and the last one; node 0 is the common start, at time 0."""
    last = 0.0
    end[0] = 0.0
    for n in range(1, len(first)):
        ready = end[second[n]] + costs[lag[n]]
        time = end[first[n]]
        if ready > time:
            time = ready
        time += costs[cost[n]]
        end[n] = time
        if time > last:
            last = time
    return last


LANES = 8
"""Cost vectors evaluated at once: a constant, so that the inner loop is unrolled."""


@kernel(writes=("last",))
def evaluate_lanes(
    first: Array, second: Array, lag: Array, cost: Array, costs: Array, end: Array, last: Array
) -> None:
    """Evaluate LANES cost vectors at once: ``costs[c, k]``, ``end[n, k]``."""
    for k in range(LANES):
        end[0, k] = 0.0
        last[k] = 0.0
    for n in range(1, len(first)):
        a = first[n]
        b = second[n]
        wait = lag[n]
        work = cost[n]
        for k in range(LANES):
            time = max(end[a, k], end[b, k] + costs[wait, k]) + costs[work, k]
            end[n, k] = time
            last[k] = max(last[k], time)


@kernel(writes=("latest",))
def latest_ends(
    first: Array,
    second: Array,
    lag: Array,
    cost: Array,
    costs: Array,
    makespan: float,
    latest: Array,
) -> None:
    """Latest end of every node that does not delay the makespan."""
    for n in range(len(first)):
        latest[n] = makespan
    for n in range(len(first) - 1, 0, -1):
        start = latest[n] - costs[cost[n]]
        if start < latest[first[n]]:
            latest[first[n]] = start
        start -= costs[lag[n]]
        if start < latest[second[n]]:
            latest[second[n]] = start


@kernel(writes=("late",))
def delayed_ends(
    first: Array,
    second: Array,
    lag: Array,
    cost: Array,
    costs: Array,
    end: Array,
    movable: Array,
    late: Array,
) -> None:
    """Latest end of every movable node that delays no other one; the others keep theirs."""
    for n in range(len(first)):
        late[n] = math.inf if movable[n] else end[n]
    for n in range(len(first) - 1, 0, -1):
        if late[n] == math.inf or late[n] < end[n]:
            late[n] = end[n]
        start = late[n] - costs[cost[n]]
        if movable[first[n]] and start < late[first[n]]:
            late[first[n]] = start
        start -= costs[lag[n]]
        if movable[second[n]] and start < late[second[n]]:
            late[second[n]] = start


@kernel(writes=("path",))
def trace_back(
    first: Array, second: Array, lag: Array, costs: Array, end: Array, from_node: int, path: Array
) -> int:
    """Nodes of one longest path, last first; a tie goes to the rank's own previous action."""
    length = 0
    n = from_node
    while n > 0:
        path[length] = n
        length += 1
        if end[second[n]] + costs[lag[n]] > end[first[n]]:
            n = second[n]
        else:
            n = first[n]
    return length
