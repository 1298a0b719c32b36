"""Loops over longest paths, for :mod:`debubble.optimize.bounds.paths`."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from debubble.engine.jit import Array, kernel


class Arcs(NamedTuple):
    """Precedences of actions and sends, in the order in which a microbatch passes the sources.

    Parameters
    ----------
    source, target
        Rows of actions and sends: a target starts after its source.
    later
        Microbatches by which the target's is later than the source's.
    lag
        Time between the two.
    """

    source: Array
    target: Array
    later: Array
    lag: Array


@kernel(writes=("heads", "tails"), allocates=False)
def longest_paths(m: int, arcs: Arcs, times: Array, heads: Array, tails: Array) -> None:
    """Find heads of m microbatches one after the other, and tails the other way round.

    `times` are those of rows. `heads` and `tails` are zeros, at ``row · m + microbatch``.
    """
    source, target, later, lag = arcs.source, arcs.target, arcs.later, arcs.lag
    for b in range(m):
        for k in range(len(source)):
            after = b + later[k]
            if after < m:
                x, y = source[k], target[k] * m + after
                heads[y] = max(heads[y], heads[x * m + b] + times[x] + lag[k])
    for b in range(m - 1, -1, -1):
        for k in range(len(source) - 1, -1, -1):
            after = b + later[k]
            if after < m:
                x, y = source[k] * m + b, target[k]
                tails[x] = max(tails[x], lag[k] + times[y] + tails[y * m + after])


@kernel(writes=("left",))
def preemptive(by_head: Array, heads: Array, left: Array, tails: Array) -> float:
    """Run available jobs by the largest tail; tails fall, `by_head` sorts by head.

    `left`, the times, is used up. There is at least one action.
    """
    n = len(heads)
    waiting = [by_head[0]]
    now = heads[by_head[0]]
    arrived = 1
    longest = 0.0
    while arrived < n or len(waiting) > 0:
        if len(waiting) == 0:
            now = max(now, heads[by_head[arrived]])
        while arrived < n and heads[by_head[arrived]] <= now:
            heappush(waiting, by_head[arrived])
            arrived += 1
        x = waiting[0]
        end = now + left[x]
        if arrived < n and heads[by_head[arrived]] < end:
            left[x] -= heads[by_head[arrived]] - now
            now = heads[by_head[arrived]]
        else:
            now = end
            longest = max(longest, now + tails[x])
            heappop(waiting)
    return longest
