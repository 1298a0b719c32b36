"""Search for the nodes of a graph that come to an end; the others wait for ever."""

from __future__ import annotations

from debubble.engine.jit import Array, kernel


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
