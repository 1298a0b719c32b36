"""Longest path through a graph whose nodes stand in topological order, forwards and backwards."""

from __future__ import annotations

import math

from debubble.engine.jit import Array, kernel
from debubble.engine.kernels.layout import Maybe


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
    first: Array, second: Array, lag: Array, cost: Array, costs: Array, least: Maybe, latest: Array
) -> None:
    """Lower the latest end of every node to one that delays no later node.

    Not below its ``least``, if that is not None, for which infinity stands where nothing bounds it.
    """
    for n in range(len(first) - 1, -1, -1):
        if least is not None:
            if latest[n] == math.inf or latest[n] < least[n]:
                latest[n] = least[n]
        start = latest[n] - costs[cost[n]]
        if start < latest[first[n]]:
            latest[first[n]] = start
        start -= costs[lag[n]]
        if start < latest[second[n]]:
            latest[second[n]] = start


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
