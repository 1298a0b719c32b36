"""Sort any graph of events and write it with at most two predecessors per node.

Edges come as arrays in any order and are first put together by event, into few arrays that are
read from front to back: many events of many ranks are in the air at once, and every array more
costs each of them a line of the cache.
"""

from __future__ import annotations

from debubble.engine.jit import Array, kernel

INTO, OUT, MISSING, WORK, WIDTH = 0, 1, 2, 3, 4
"""Fields of an event in ``events``: where its edges in and out begin, how many events it still
waits for, and its cost index, −1 where there is no such event; and how many fields there are."""


@kernel(writes=("events", "into", "wait", "out"))
def join_edges(
    consumer: Array, producer: Array, lag: Array, events: Array, into: Array, wait: Array,
    out: Array,
) -> int:  # fmt: skip
    """Put edges together by event; returns how many joins the graph takes.

    ``into`` and ``wait`` are the producers and lags of the edges of event 0, then 1, …, in the
    order of the edge arrays, and ``out`` the consumers. ``events`` has one event more than there
    are, which ends the lists of the last.

    A node takes one predecessor without lag and another with any; each further one takes a join,
    and so does the first when neither it nor the second is without lag.
    """
    for e in range(len(consumer)):
        events[consumer[e] * WIDTH + INTO] += 1
        events[producer[e] * WIDTH + OUT] += 1
    begin = 0
    leave = 0
    for c in range(0, len(events), WIDTH):
        events[c + MISSING] = events[c + INTO]
        begin += events[c + INTO]
        leave += events[c + OUT]
        events[c + INTO] = begin
        events[c + OUT] = leave
    # Filled from the back, after which every list begins where its event says.
    for e in range(len(consumer) - 1, -1, -1):
        c = consumer[e] * WIDTH + INTO
        events[c] -= 1
        into[events[c]] = producer[e]
        wait[events[c]] = lag[e]
        p = producer[e] * WIDTH + OUT
        events[p] -= 1
        out[events[p]] = consumer[e]
    joins = 0
    for c in range(0, len(events), WIDTH):
        if events[c + MISSING] >= 2:
            e = events[c + INTO]
            joins += events[c + MISSING] - 1
            if wait[e] == 0 or wait[e + 1] == 0:
                joins -= 1
    return joins


@kernel(writes=("events", "queue", "place", "first", "second", "lag", "cost"))
def sort_events(
    events: Array, into: Array, wait: Array, out: Array, queue: Array, place: Array, first: Array,
    second: Array, lag: Array, cost: Array,
) -> int:  # fmt: skip
    """Fill the graph's arrays in topological order; returns how many entries were written.

    ``place[c]`` becomes the node of event c, and stays 0 when it waits for itself. Events whose
    turn has come stand in a queue, first come, first served.
    """
    waiting = 0
    for c in range(len(place)):
        if events[c * WIDTH + MISSING] == 0 and events[c * WIDTH + WORK] >= 0:
            queue[waiting] = c
            waiting += 1
    n = 1
    head = 0
    while head < waiting:
        c = queue[head]
        head += 1
        here = c * WIDTH
        gathered = 0
        other = 0
        until = 0
        for e in range(events[here + INTO], events[here + WIDTH + INTO]):
            p = place[into[e]]
            if gathered == 0 and wait[e] == 0:
                gathered = p
            elif other == 0:
                other = p
                until = wait[e]
            else:
                first[n] = gathered
                second[n] = other
                lag[n] = until
                cost[n] = 0
                gathered = n
                n += 1
                other = p
                until = wait[e]
        first[n] = gathered
        second[n] = other
        lag[n] = until
        cost[n] = events[here + WORK]
        place[c] = n
        n += 1
        for e in range(events[here + OUT], events[here + WIDTH + OUT]):
            follower = out[e] * WIDTH + MISSING
            events[follower] -= 1
            if events[follower] == 0:
                queue[waiting] = out[e]
                waiting += 1
    return n


@kernel(writes=("last", "before"))
def follow(key: Array, last: Array, before: Array) -> None:
    """``before[i]`` becomes the last index before i with the same key, −1 where there is none.

    ``last`` has a −1 for every key.
    """
    for i in range(len(key)):
        before[i] = last[key[i]]
        last[key[i]] = i
