"""Sends and receives that are actions: find the other end, and run the transfer.

``ends[key] − 1`` is the end of the transfer of a result that was reached first. A transfer is in
the graph once, as the node of both its ends:

* where nothing but the result waits for it, when its send is reached;
* where transfers block, when the second of its ends is reached, between the two groups of
  transfers that these are in;
* where they are queued, when both its ends head their queues, see
  :mod:`debubble.engine.kernels.queues`.
"""

from __future__ import annotations

from typing import NamedTuple

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT
from debubble.engine.jit import Array, helper
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.layout import (
    Graph,
    Program,
    Rare,
    Results,
    Sizes,
    Turns,
    add_node,
    give,
    link_cost,
    push,
)
from debubble.engine.kernels.queues import Queues, post, run_ready


class Ends(NamedTuple):
    """Ends of transfers.

    ``first`` is the end of the transfer of a result that was reached first, and 1. ``made`` is the
    position behind that of a result's producer. ``last`` holds the positions behind those of the
    last send and receive of every link that found each other.

    Where transfers block, a rank in a group of them has ``begins[rank] − 1`` and ``stops[rank]`` as
    its bounds, and ``unmet[rank]`` of its transfers have not begun.
    """

    first: Array
    made: Array
    last: Array
    begins: Array
    stops: Array
    unmet: Array


@helper
def find_end(
    here: int, key: int, link: int, sends: bool, ends: Ends, state: Array
) -> tuple[int, int, int]:
    """Look for the other end of a transfer, −1 while it was not reached.

    Returns it, and the last send and receive of the link that found each other before. One of these
    comes later than this pair's where its receives are not in the order of its sends.
    """
    send_before, receive_before = ends.last[2 * link] - 1, ends.last[2 * link + 1] - 1
    end = ends.first[key] - 1
    if end < 0:
        ends.first[key] = here + 1
        state[at.OPEN_ENDS] += 1
    else:
        state[at.OPEN_ENDS] -= 1
        send, receive = end, here
        if sends:
            send, receive = here, end
        if (send < send_before or receive < receive_before) and state[at.OVERTAKEN] == 0:
            state[at.OVERTAKEN] = here + 1
        ends.last[2 * link] = send + 1
        ends.last[2 * link + 1] = receive + 1
    return end, send_before, receive_before


@helper
def enter_group(rank: int, here: int, program: Program, ends: Ends) -> None:
    """Find the bounds of a group of transfers: its last one, copies in between included."""
    if ends.begins[rank] > 0:
        return
    ends.begins[rank] = here + 1
    ends.stops[rank] = here + 1
    for member in range(here + 1, program.offsets[rank + 1]):
        sort = program.kinds[(program.actions[member] & KIND_MASK) * at.WIDTH + at.SORT]
        if sort == at.TRANSFER:
            ends.stops[rank] = member + 1
        elif sort != at.COPY and sort != at.COLLECTIVE:
            break


@helper
def leave_group(rank: int, n: int, program: Program, graph: Graph, turns: Turns, ends: Ends) -> int:
    """Go on behind a group of transfers, all of which have begun, when the last of them ends."""
    joined = 0
    for member in range(ends.begins[rank] - 1, ends.stops[rank]):
        if program.kinds[(program.actions[member] & KIND_MASK) * at.WIDTH + at.SORT] != at.TRANSFER:
            continue
        if joined == 0:
            joined = graph.node[member]
        else:
            n = add_node(n, joined, graph.node[member], graph)
            joined = n - 1
    turns.last_node[rank] = joined
    ends.begins[rank] = 0
    return n


@helper
def meet(
    n: int, source: int, target: int, send_before: int, receive_before: int, graph: Graph,
    turns: Turns, ends: Ends,
) -> None:  # fmt: skip
    """What a blocking transfer waits for: both ranks, or the link's last in the same two groups."""
    if (
        send_before >= 0
        and send_before >= ends.begins[source] - 1
        and receive_before >= ends.begins[target] - 1
    ):
        graph.first[n] = graph.node[send_before]
    else:
        graph.first[n] = turns.last_node[source]
        graph.second[n] = turns.last_node[target]


@helper
def met(far: int, tail: int, turns: Turns, ends: Ends) -> int:
    """One transfer less that the other rank waits for; it goes on where that was the last."""
    ends.unmet[far] -= 1
    if ends.unmet[far] == 0 and turns.next_action[far] == ends.stops[far]:
        tail = push(far, tail, turns.queue)
    return tail


@helper
def run_transfer(
    n: int, here: int, end: int, key: int, time: int, tail: int, graph: Graph, turns: Turns,
    results: Results,
) -> tuple[int, int]:  # fmt: skip
    """Add the node of a transfer, for both ends, with its result; what it waits for is there."""
    graph.cost[n] = time
    graph.node[here] = n
    if end >= 0:
        graph.node[end] = n
    tail = give(key, n, tail, results.node, turns.queue)
    return n + 1, tail


@helper
def transfer(
    n: int, tail: int, here: int, rank: int, row: int, place: int, cell: int, one_by_one: bool,
    blocking: bool, queued: bool, sizes: Sizes, program: Program, graph: Graph, rare: Rare,
    turns: Turns, results: Results, link_node: Array, sent: Array, ends: Ends, queues: Queues,
    state: Array,
) -> tuple[int, int]:  # fmt: skip
    """Reach an end of a transfer; nothing runs where it overtakes another and must not."""
    kinds = program.kinds
    results.seen[cell] |= kinds[row + at.BIT]
    step = kinds[row + at.TOWARDS]
    far = program.rank_of[place + step]
    sends = kinds[row + at.SENDS] != 0
    key = kinds[row + at.RESULT] * sizes.cells + cell
    source, target = rank, far
    if sends:
        if len(sent) > 0:
            sent[ends.made[key] - 1] = here + 1
    else:
        key += step * sizes.units
        source, target = far, rank
    link = source * sizes.ranks + target
    time = link_cost(link, sizes, rare, state)
    if sizes.lanes > 1:
        time += (program.actions[here] >> MICROBATCH_SHIFT) % sizes.slices
    end, send_before, receive_before = find_end(here, key, link, sends, ends, state)
    if blocking or queued:
        if state[at.OVERTAKEN] > 0:
            return n, tail
    if blocking:
        enter_group(rank, here, program, ends)
        if end < 0:
            ends.unmet[rank] += 1
        else:
            meet(n, source, target, send_before, receive_before, graph, turns, ends)
            tail = met(far, tail, turns, ends)
            n, tail = run_transfer(n, here, end, key, time, tail, graph, turns, results)
    elif queued:
        count = post(here, end, time, rank, far, sends, graph, turns, queues, state)
        n, tail = run_ready(
            n, tail, count, sizes, program, graph, rare, turns, results, queues, state
        )
    elif sends:
        graph.first[n] = turns.last_node[rank]
        if one_by_one:
            graph.second[n] = link_node[link]
            link_node[link] = n
        n, tail = run_transfer(n, here, end, key, time, tail, graph, turns, results)
    elif end >= 0:
        graph.node[here] = graph.node[end]
    return n, tail
