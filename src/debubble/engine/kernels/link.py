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

from debubble.core.actions import KIND_MASK
from debubble.engine.jit import Array, helper, unsigned
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.carry import carry_cost, end_step
from debubble.engine.kernels.layout import (
    DONE,
    FAILED,
    Frame,
    Item,
    Maybe,
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


class Transfers(NamedTuple):
    """Arrays for sends and receives that are actions."""

    ends: Ends
    queues: Queues


class Link(NamedTuple):
    """A transfer: its ranks, the key of its result, and its cost index."""

    source: int
    target: int
    key: int
    time: int


@helper
def run_transfer(item: Item, frame: Frame, transfers: Transfers, carry: Maybe) -> int:
    """Reach an end of a transfer, which must not overtake another; returns an outcome."""
    kinds, row, rules, ends = frame.program.kinds, item.row, frame.rules, transfers.ends
    here, rank = item.here, item.rank
    frame.results.seen[unsigned(item.cell)] |= kinds[row + at.BIT]
    step = end_step(item, frame, carry)
    far = frame.program.rank_of[unsigned(item.place + step)]
    sends = kinds[row + at.SENDS] != 0
    key = kinds[row + at.RESULT] * frame.sizes.cells + item.cell
    carries = kinds[row + at.TOWARDS] == 0
    source, target = rank, far
    if sends:
        if len(frame.graph.sent) > 0:
            maker = unsigned(ends.made[unsigned(key)] - 1)
            if carries:
                frame.graph.carried[maker] = here + 1
            else:
                frame.graph.sent[maker] = here + 1
    else:
        key += step * frame.sizes.units
        source, target = far, rank
    time = 0
    if not carries:
        time = link_cost(source, target, item.unit, frame)
    if carry is not None:
        if carries:
            ends_at = (item.place, item.place + step) if sends else (item.place + step, item.place)
            time = carry_cost(ends_at[0], ends_at[1], frame, carry)
    link = Link(source, target, key, time)
    end, send_before, receive_before = find_end(here, sends, link, frame, ends)
    if (rules.blocking or rules.queued) and frame.state[at.OVERTAKEN] > 0:
        return FAILED
    if rules.blocking:
        enter_group(rank, here, frame, ends)
        if end < 0:
            ends.unmet[rank] += 1
        else:
            n = meet(send_before, receive_before, link, frame, ends)
            leave_one_less(far, frame, ends)
            end_transfer(n, here, end, link, frame)
    elif rules.queued:
        count = post(item, end, link.time, far, frame, transfers.queues)
        run_ready(count, frame, transfers.queues)
    elif sends:
        end_transfer(begin_send(item, link, frame), here, end, link, frame)
    elif end >= 0:
        frame.graph.node[unsigned(here)] = frame.graph.node[unsigned(end)]
    return DONE


@helper
def find_end(here: int, sends: bool, link: Link, frame: Frame, ends: Ends) -> tuple[int, int, int]:
    """Look for the other end of a transfer, −1 while it was not reached.

    Returns it, and the last send and receive of the link that found each other before. One of these
    comes later than this pair's where its receives are not in the order of its sends.
    """
    state, spot = frame.state, 2 * (link.source * frame.sizes.ranks + link.target)
    last, key = ends.last, unsigned(link.key)
    send_before, receive_before = last[unsigned(spot)] - 1, last[unsigned(spot + 1)] - 1
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
        last[unsigned(spot)] = send + 1
        last[unsigned(spot + 1)] = receive + 1
    return end, send_before, receive_before


@helper
def enter_group(rank: int, here: int, frame: Frame, ends: Ends) -> None:
    """Find the bounds of a group of transfers: its last one, copies in between included."""
    if ends.begins[rank] > 0:
        return
    program = frame.program
    ends.begins[rank] = here + 1
    ends.stops[rank] = here + 1
    for member in range(here + 1, program.offsets[rank + 1]):
        sort = program.kinds[(program.actions[member] & KIND_MASK) * at.WIDTH + at.SORT]
        if sort == at.TRANSFER:
            ends.stops[rank] = member + 1
        elif sort != at.COPY and sort != at.COLLECTIVE:
            break


@helper
def leave_group(rank: int, frame: Frame, ends: Ends) -> None:
    """Go on after a group of transfers, all of which have begun, when the last of them ends."""
    program, node = frame.program, frame.graph.node
    joined = 0
    for member in range(ends.begins[rank] - 1, ends.stops[rank]):
        if program.kinds[(program.actions[member] & KIND_MASK) * at.WIDTH + at.SORT] != at.TRANSFER:
            continue
        if joined == 0:
            joined = node[member]
        else:
            joined = add_node(joined, node[member], frame)
    frame.turns.last_node[rank] = joined
    ends.begins[rank] = 0


@helper
def meet(send_before: int, receive_before: int, link: Link, frame: Frame, ends: Ends) -> int:
    """Add the node of a blocking transfer, after all that it waits for; returns it.

    That is both ranks, or the link's last transfer where it is in the same two groups.
    """
    last_node = frame.turns.last_node
    if (
        send_before >= 0
        and send_before >= ends.begins[link.source] - 1
        and receive_before >= ends.begins[link.target] - 1
    ):
        return add_node(frame.graph.node[send_before], 0, frame)
    return add_node(last_node[link.source], last_node[link.target], frame)


@helper
def leave_one_less(far: int, frame: Frame, ends: Ends) -> None:
    """Count a transfer that the other rank waits for as begun; it goes on after the last one."""
    ends.unmet[far] -= 1
    if ends.unmet[far] == 0 and frame.turns.next_action[far] == ends.stops[far]:
        push(far, frame)


@helper
def begin_send(item: Item, link: Link, frame: Frame) -> int:
    """Add the node of a transfer that waits for its sender alone, or for its link, too."""
    graph, state, turns = frame.graph, frame.state, frame.turns
    n: int = state[at.NODES]
    state[at.NODES] = n + 1
    graph.first[unsigned(n)] = turns.last_node[unsigned(item.rank)]
    # The zero that is there is not written once more: most stores here miss the cache.
    if frame.rules.one_by_one:
        number = unsigned(link.source * frame.sizes.ranks + link.target)
        graph.second[unsigned(n)] = turns.link_node[number]
        turns.link_node[number] = n
    return n


@helper
def end_transfer(n: int, here: int, end: int, link: Link, frame: Frame) -> None:
    """Give a node to a transfer, for both its ends, and hand on its result."""
    frame.graph.cost[unsigned(n)] = link.time
    frame.graph.node[unsigned(here)] = n
    if end >= 0:
        frame.graph.node[unsigned(end)] = n
    give(link.key, n, frame)
