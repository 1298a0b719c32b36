"""The loops behind :mod:`debubble.optimize.bounds.paths`."""

from __future__ import annotations

from heapq import heappop, heappush

from debubble.engine.jit import Array, kernel


@kernel(writes=("heads", "tails", "leaves", "follows"))
def longest_paths(
    stages: int,
    microbatches: int,
    kinds: int,
    one_by_one: bool,
    holding: bool,
    times: Array,
    link: Array,
    pause: Array,
    redo: Array,
    last: Array,
    spare: Array,
    lag: Array,
    heads: Array,
    tails: Array,
    leaves: Array,
    follows: Array,
) -> None:
    """Heads microbatch by microbatch forwards, tails backwards; actions as in a Problem.

    The results of F and I are sent: `leaves` and `follows` are the heads and tails of the sends,
    `link` their times, 0 where a result goes nowhere. `one_by_one`: the sends of a chain do not
    overlap. `holding`: nor does its next action and a send. `pause` is from the end of I to its W,
    `redo` the time of R, which runs between F and I: that it is work as well is not seen here.
    """
    S = stages
    m = microbatches
    for b in range(m):
        for s in range(S):
            x = s * m + b
            at = 0.0
            if b > 0:
                at = heads[x - 1] + times[s]
                if holding:
                    at = max(at, leaves[x - 1] + link[s])
            if s > 0:
                at = max(at, leaves[x - m] + link[s - 1])
            older = b - spare[s] - 1
            if older >= 0:
                z = (S + last[s]) * m + older
                at = max(at, heads[z] + times[S + last[s]] + lag[s])
            heads[x] = at
            leaves[x] = at + times[s]
            if one_by_one and b > 0:
                leaves[x] = max(leaves[x], leaves[x - 1] + link[s])
        for s in range(S - 1, -1, -1):
            x = (S + s) * m + b
            at = heads[s * m + b] + times[s] + redo[s]
            if b > 0:
                at = max(at, heads[x - 1] + times[S + s])
                if holding:
                    at = max(at, leaves[x - 1] + link[S + s])
            if s < S - 1:
                at = max(at, leaves[x + m] + link[S + s + 1])
            heads[x] = at
            leaves[x] = at + times[S + s]
            if one_by_one and b > 0:
                leaves[x] = max(leaves[x], leaves[x - 1] + link[S + s])
            if kinds > 2:
                w = (2 * S + s) * m + b
                at = heads[x] + times[S + s] + pause[s]
                if b > 0:
                    at = max(at, heads[w - 1] + times[2 * S + s])
                heads[w] = at
    for b in range(m - 1, -1, -1):
        for s in range(S):
            x = (S + s) * m + b
            after = 0.0
            if s > 0:
                after = times[S + s - 1] + tails[x - m]
            if b < m - 1:
                if one_by_one:
                    after = max(after, link[S + s] + follows[x + 1])
                if holding:
                    after = max(after, times[S + s] + tails[x + 1])
            follows[x] = after
            after += link[S + s]
            if kinds > 2:
                w = (2 * S + s) * m + b
                if b < m - 1:
                    tails[w] = tails[w + 1] + times[2 * S + s]
                after = max(after, pause[s] + tails[w] + times[2 * S + s])
            if b < m - 1:
                after = max(after, tails[x + 1] + times[S + s])
            # Forwards that wait for memory, of any stage of this rank.
            for t in range(s + 1):
                younger = b + spare[t] + 1
                if last[t] == s and younger < m:
                    after = max(after, lag[t] + times[t] + tails[t * m + younger])
            tails[x] = after
        for s in range(S - 1, -1, -1):
            x = s * m + b
            after = 0.0
            if s < S - 1:
                after = times[s + 1] + tails[x + m]
            if b < m - 1:
                if one_by_one:
                    after = max(after, link[s] + follows[x + 1])
                if holding:
                    after = max(after, times[s] + tails[x + 1])
            follows[x] = after
            after = max(link[s] + after, redo[s] + times[S + s] + tails[(S + s) * m + b])
            if b < m - 1:
                after = max(after, tails[x + 1] + times[s])
            tails[x] = after


@kernel(writes=("left",))
def preemptive(by_head: Array, heads: Array, left: Array, tails: Array) -> float:
    """Run what is there by the largest tail; tails fall, `by_head` sorts by head.

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
