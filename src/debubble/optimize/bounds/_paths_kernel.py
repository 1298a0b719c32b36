"""Loops over longest paths, for :mod:`debubble.optimize.bounds.paths`."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from debubble.engine.jit import Array, helper, kernel


class Delays(NamedTuple):
    """Times of a problem, and the waits of its actions other than for inputs; by stage."""

    stages: int
    microbatches: int
    kinds: int
    one_by_one: bool
    """True if the sends of a chain do not overlap."""
    holding: bool
    """True if the next action of a chain does not overlap its send, either."""
    times: Array
    """Of every kind and stage, at ``kind·S + stage``."""
    link: Array
    """Time to send the result of F and of I, 0 where it goes nowhere; as `times`."""
    pause: Array
    """Time from the end of I to its W."""
    redo: Array
    """Time of R, which runs between F and I: that it is work as well is not seen here."""
    last: Array
    """The last stage of the same rank."""
    spare: Array
    """Microbatches that fit into the memory in addition to the current one."""
    lag: Array
    """Time from the end of the last stage's I until its memory is free."""
    carried_from: Array
    """Stage that carries something to each, which it may have to wait for; −1 for none. As `link`:
    the gradient of what a stage carries comes from where it went."""
    carried_to: Array
    """The reverse."""
    carried_in: Array
    """Time of what is carried to each stage."""


class PathArrays(NamedTuple):
    """Zeros that become heads and tails of actions, at ``(kind·S + stage)·m + microbatch``."""

    heads: Array
    tails: Array
    leaves: Array
    follows: Array
    """As the one before, heads and tails of the sends of F and I."""


@kernel(writes=("found",), allocates=False)
def longest_paths(delays: Delays, found: PathArrays) -> None:
    """Find heads microbatch by microbatch forwards, tails backwards; actions as in a Problem."""
    for b in range(delays.microbatches):
        find_forward_heads(b, delays, found)
        find_backward_heads(b, delays, found)
    for b in range(delays.microbatches - 1, -1, -1):
        find_backward_tails(b, delays, found)
        find_forward_tails(b, delays, found)


@helper
def find_forward_heads(b: int, delays: Delays, found: PathArrays) -> None:
    """Compute the earliest starts of the forwards of a microbatch and of their sends."""
    S, m, times, link, spare = (
        delays.stages, delays.microbatches, delays.times, delays.link, delays.spare,
    )  # fmt: skip
    heads, leaves, last = found.heads, found.leaves, delays.last
    for s in range(S):
        x = s * m + b
        at = 0.0
        if b > 0:
            at = heads[x - 1] + times[s]
            if delays.holding:
                at = max(at, leaves[x - 1] + link[s])
        if s > 0:
            at = max(at, leaves[x - m] + link[s - 1])
        source = delays.carried_from[s]
        if source >= 0:
            at = max(at, heads[source * m + b] + times[source] + delays.carried_in[s])
        # A microbatch that has to be gone from the memory of the rank.
        older = b - spare[s] - 1
        if older >= 0:
            z = (S + last[s]) * m + older
            at = max(at, heads[z] + times[S + last[s]] + delays.lag[s])
        heads[x] = at
        leaves[x] = at + times[s]
        if delays.one_by_one and b > 0:
            leaves[x] = max(leaves[x], leaves[x - 1] + link[s])


@helper
def find_backward_heads(b: int, delays: Delays, found: PathArrays) -> None:
    """Compute the earliest starts of I, its sends and W of a microbatch."""
    S, m, times, link = delays.stages, delays.microbatches, delays.times, delays.link
    heads, leaves = found.heads, found.leaves
    for s in range(S - 1, -1, -1):
        x = (S + s) * m + b
        at = heads[s * m + b] + times[s] + delays.redo[s]
        if b > 0:
            at = max(at, heads[x - 1] + times[S + s])
            if delays.holding:
                at = max(at, leaves[x - 1] + link[S + s])
        if s < S - 1:
            at = max(at, leaves[x + m] + link[S + s + 1])
        source = delays.carried_from[S + s]
        if source >= 0:
            done = heads[(S + source) * m + b] + times[S + source]
            at = max(at, done + delays.carried_in[S + s])
        heads[x] = at
        leaves[x] = at + times[S + s]
        if delays.one_by_one and b > 0:
            leaves[x] = max(leaves[x], leaves[x - 1] + link[S + s])
        if delays.kinds > 2:
            w = (2 * S + s) * m + b
            at = heads[x] + times[S + s] + delays.pause[s]
            if b > 0:
                at = max(at, heads[w - 1] + times[2 * S + s])
            heads[w] = at


@helper
def find_backward_tails(b: int, delays: Delays, found: PathArrays) -> None:
    """Compute the least time after I, its sends and W of a microbatch."""
    S, m, times, link, spare = (
        delays.stages, delays.microbatches, delays.times, delays.link, delays.spare,
    )  # fmt: skip
    tails, follows = found.tails, found.follows
    for s in range(S):
        x = (S + s) * m + b
        after = 0.0
        if s > 0:
            after = times[S + s - 1] + tails[x - m]
        if b < m - 1:
            if delays.one_by_one:
                after = max(after, link[S + s] + follows[x + 1])
            if delays.holding:
                after = max(after, times[S + s] + tails[x + 1])
        follows[x] = after
        after += link[S + s]
        if delays.kinds > 2:
            w = (2 * S + s) * m + b
            if b < m - 1:
                tails[w] = tails[w + 1] + times[2 * S + s]
            after = max(after, delays.pause[s] + tails[w] + times[2 * S + s])
        if b < m - 1:
            after = max(after, tails[x + 1] + times[S + s])
        target = delays.carried_to[S + s]
        if target >= 0:
            rest = times[S + target] + tails[(S + target) * m + b]
            after = max(after, delays.carried_in[S + target] + rest)
        # Forwards that wait for memory, of any stage of this rank.
        for t in range(s + 1):
            younger = b + spare[t] + 1
            if delays.last[t] == s and younger < m:
                after = max(after, delays.lag[t] + times[t] + tails[t * m + younger])
        tails[x] = after


@helper
def find_forward_tails(b: int, delays: Delays, found: PathArrays) -> None:
    """Compute the least time after the forwards of a microbatch and after their sends."""
    S, m, times, link = delays.stages, delays.microbatches, delays.times, delays.link
    tails, follows = found.tails, found.follows
    for s in range(S - 1, -1, -1):
        x = s * m + b
        after = 0.0
        if s < S - 1:
            after = times[s + 1] + tails[x + m]
        if b < m - 1:
            if delays.one_by_one:
                after = max(after, link[s] + follows[x + 1])
            if delays.holding:
                after = max(after, times[s] + tails[x + 1])
        follows[x] = after
        after = max(link[s] + after, delays.redo[s] + times[S + s] + tails[(S + s) * m + b])
        target = delays.carried_to[s]
        if target >= 0:
            rest = times[target] + tails[target * m + b]
            after = max(after, delays.carried_in[target] + rest)
        if b < m - 1:
            after = max(after, tails[x + 1] + times[s])
        tails[x] = after


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
