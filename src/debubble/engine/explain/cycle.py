"""The shortest cycle of a graph of waits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from debubble.engine.jit import Array, kernel

Numbers = NDArray[np.int64]

SEARCHED = 2_000_000
"""Edges that a search looks at, about; beyond, not every node is tried as the start of a cycle.

Then only those are at which streams stand, that is, nodes without an edge of no cost. Some cycle
leads through them, and most often a shortest one.
"""

FEWEST = 2
"""No cycle is cheaper: an action in front of one of its own rank is found without a search."""


def shortest_cycle(tail: Numbers, head: Numbers, costs: NDArray[np.bool_]) -> list[int]:
    """Return the cycle of the fewest edges that cost anything, as indices of edges; empty for none.

    Node ``tail[i]`` waits for ``head[i]``, and each edge of the cycle begins where the one before
    ends. No nodes wait for each other through edges for which `costs` is false.
    """
    size = int(max(tail.max(initial=-1), head.max(initial=-1))) + 1
    stuck = _unsettled(tail, head, size)
    inside = np.flatnonzero(stuck[tail] & stuck[head])
    # Of what is stuck, leave out what waits for a cycle without being on one, or between two.
    waited = _unsettled(head[inside], tail[inside], size)
    inside = inside[waited[tail[inside]] & waited[head[inside]]]
    if not len(inside):
        return []
    inside = inside[np.argsort(tail[inside], kind="stable")]
    graph = _Graph(tail[inside], head[inside], costs[inside])
    best: list[int] = []
    for start in graph.starts():
        cycle = graph.through(start, graph.cost(best) if best else len(inside) + 1)
        best = cycle or best
        if best and graph.cost(best) <= FEWEST:
            break
    found: list[int] = inside[best].tolist()
    return found


def _unsettled(tail: Numbers, head: Numbers, size: int) -> NDArray[np.bool_]:
    """Return whether each node waits for ever."""
    waiting = np.bincount(tail, minlength=size)
    begin = np.concatenate([[0], np.cumsum(np.bincount(head, minlength=size))])
    follower = tail[np.argsort(head, kind="stable")]
    mark_reachable.run(size + len(tail), begin, follower, waiting, np.zeros(size, dtype=np.int64))
    found: NDArray[np.bool_] = waiting > 0
    return found


@kernel(writes=("waiting", "queue"))
def mark_reachable(begin: Array, follower: Array, waiting: Array, queue: Array) -> None:
    """End every node that can; ``waiting`` stays above 0 for those that cannot.

    ``waiting[v]`` is how many nodes v waits for, and ``follower[begin[v]:begin[v + 1]]`` are those
    that wait for v.
    """
    last = 0
    for v in range(len(waiting)):
        if waiting[v] == 0:
            queue[last] = v
            last += 1
    head = 0
    while head < last:
        v = queue[head]
        head += 1
        for e in range(begin[v], begin[v + 1]):
            waiting[follower[e]] -= 1
            if waiting[follower[e]] == 0:
                queue[last] = follower[e]
                last += 1


class _Graph:
    """Nodes numbered from 0, of which each is on an edge, and the edges sorted by their tails."""

    def __init__(self, tail: Numbers, head: Numbers, costs: NDArray[np.bool_]) -> None:
        first = np.flatnonzero(np.diff(tail, prepend=-1))
        nodes, begin = tail[first], np.append(first, len(tail))
        numbers = np.repeat(np.arange(len(nodes)), np.diff(begin))
        free = np.bincount(numbers[~costs], minlength=len(nodes))
        self.stands = np.flatnonzero(free == 0).tolist()
        self.begin = begin.tolist()
        self.tail = numbers.tolist()
        self.head = np.searchsorted(nodes, head).tolist()
        self.costs = costs.tolist()

    def edges(self, node: int) -> range:
        """Return the edges from a node."""
        return range(self.begin[node], self.begin[node + 1])

    def cost(self, path: list[int]) -> int:
        """Return the number of edges of a path that cost something."""
        return sum(self.costs[edge] for edge in path)

    def starts(self) -> list[int]:
        """Nodes through which cycles are looked for."""
        room = max(1, SEARCHED // len(self.tail))
        if len(self.begin) <= room:
            return list(range(len(self.begin) - 1))
        # From one such node to the next leads back to one that was there, which is on a cycle.
        stands, seen, node = set(self.stands), set(), 0
        while node not in seen:
            if node in stands:
                seen.add(node)
            edges = self.edges(node)
            node = self.head[next((edge for edge in edges if not self.costs[edge]), edges[0])]
        return [node, *(other for other in self.stands[:room] if other != node)]

    def through(self, start: int, most: int) -> list[int]:
        """Return the cheapest cycle through a node that costs less than `most`, empty for none.

        Of several, one that goes on along edges of no cost as far as they lead: to where a rank
        stands, behind which all else on its stream waits.
        """
        came: dict[int, int] = {}
        level = [start]
        cost = 0
        while level and cost < most:
            reached: list[int] = []
            level.reverse()
            while level:
                node = level.pop()
                reached.append(node)
                free = [edge for edge in self.edges(node) if not self.costs[edge]]
                level += self._arrive(free, came)
            if start in came or cost + 1 == most:
                break
            dear = (e for node in reversed(reached) for e in self.edges(node) if self.costs[e])
            level = self._arrive(dear, came)
            cost += 1
        if start not in came:
            return []
        path = [came[start]]
        while self.tail[path[-1]] != start:
            path.append(came[self.tail[path[-1]]])
        return path[::-1]

    def _arrive(self, edges: Iterable[int], came: dict[int, int]) -> list[int]:
        """Nodes that some edges lead to for the first time."""
        found = []
        for edge in edges:
            if self.head[edge] not in came:
                came[self.head[edge]] = edge
                found.append(self.head[edge])
        return found
