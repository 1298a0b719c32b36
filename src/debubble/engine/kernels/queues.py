"""Transfers that ranks queue in the order of their programs.

A rank has one queue for all its transfers, one for each peer, or one for each peer and direction.
A transfer runs when both its ends head their queues, which the end of another one may bring about.
"""

from __future__ import annotations

from typing import NamedTuple

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, helper, unsigned
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.layout import Frame, Item, add_node, give

# Of an end that was posted, from posted[end * ROW] on: the other end and the end after it on its
# queue, each and 1; the node, and 1, that was the last of its rank then; its cost index where it is
# a send; and whether nothing is in front of it.
OTHER, BEHIND, AFTER, TIME, HEAD, ROW = range(6)


class Queues(NamedTuple):
    """Queues of ends of transfers; queue q is a rank's for one peer and direction.

    ``posted`` has a row for every end. A queue's last posted end is ``last[q] − 1``, its last
    transfer to run ``node[q]``, and the node after which that had been posted ``after[q] − 1``.
    ``ready`` holds ends of transfers that can run.
    """

    peers: int
    ways: int
    posted: Array
    last: Array
    node: Array
    after: Array
    ready: Array


@helper
def queue_of(rank: int, far: int, receives: int, queues: Queues) -> int:
    """The queue of a rank for what it exchanges with another."""
    spot = (rank * queues.peers + min(far, queues.peers - 1)) * queues.ways
    return spot + receives * (queues.ways - 1)


@helper
def post(item: Item, end: int, time: int, far: int, frame: Frame, queues: Queues) -> int:
    """Put an end of a transfer on its queue; returns how many transfers can run, 0 or 1."""
    posted, here, rank = queues.posted, item.here, item.rank
    sends = frame.program.kinds[item.row + at.SENDS] != 0
    if end >= 0:
        posted[ROW * here + OTHER] = end + 1
        posted[ROW * end + OTHER] = here + 1
    if sends:
        posted[ROW * here + TIME] = time
    spot = queue_of(rank, far, 0 if sends else 1, queues)
    before = queues.last[spot] - 1
    queues.last[spot] = here + 1
    posted[ROW * here + AFTER] = frame.turns.last_node[rank] + 1
    frame.state[at.QUEUED_ENDS] += 1
    if before >= 0 and frame.graph.node[before] == 0:
        posted[ROW * before + BEHIND] = here + 1
        return 0
    posted[ROW * here + HEAD] = 1
    return add_ready(here, 0, queues)


@helper
def add_ready(end: int, count: int, queues: Queues) -> int:
    """Note a transfer of which one end heads its queue as ready if the other does, too."""
    other = queues.posted[ROW * end + OTHER] - 1
    if other >= 0 and queues.posted[ROW * other + HEAD] == 1:
        queues.ready[count] = end
        count += 1
    return count


@helper
def run_ready(count: int, frame: Frame, queues: Queues) -> None:
    """Run the `count` transfers that are ready, and those that become so."""
    actions, kinds, posted = frame.program.actions, frame.program.kinds, queues.posted
    while count > 0:
        count -= 1
        send = queues.ready[count]
        receive = posted[unsigned(ROW * send + OTHER)] - 1
        if kinds[(actions[unsigned(send)] & KIND_MASK) * at.WIDTH + at.SENDS] == 0:
            send, receive = receive, send
        n = join_queues(send, receive, frame, queues)
        frame.graph.node[unsigned(send)] = n
        frame.graph.node[unsigned(receive)] = n
        frame.state[at.QUEUED_ENDS] -= 2
        action = actions[unsigned(send)]
        key = kinds[(action & KIND_MASK) * at.WIDTH + at.RESULT] * frame.sizes.cells
        key += ((action >> STAGE_SHIFT) & STAGE_MASK) * frame.sizes.units
        give(key + (action >> MICROBATCH_SHIFT), n, frame)
        for end in (send, receive):
            following = posted[unsigned(ROW * end + BEHIND)] - 1
            if following >= 0:
                posted[ROW * following + HEAD] = 1
                count = add_ready(following, count, queues)


@helper
def join_queues(send: int, receive: int, frame: Frame, queues: Queues) -> int:
    """Add the node of a transfer that heads its queues, after all that it waits for; returns it.

    It waits for what ran before on its two queues, and for what its ranks had computed when they
    posted it, where that is not the same as for the transfer in front of it.
    """
    rare, sizes, posted = frame.rare, frame.sizes, queues.posted
    time = posted[unsigned(ROW * send + TIME)]
    source = rare.a[time - sizes.base]
    if sizes.lanes > 1:
        source = source % sizes.ranks
    target = rare.b[time - sizes.base]
    if rare.kind[time - sizes.base] == at.CARRY:
        source = frame.program.rank_of[rare.a[time - sizes.base]]
        target = frame.program.rank_of[target]
    sending, receiving = queue_of(source, target, 0, queues), queue_of(target, source, 1, queues)
    sent_after, received_after = posted[ROW * send + AFTER], posted[ROW * receive + AFTER]
    joined = queues.node[unsigned(sending)]
    rest = 0
    for choice in range(3):
        more = 0
        if choice == 0:
            if queues.node[unsigned(receiving)] != joined:
                more = queues.node[unsigned(receiving)]
        elif choice == 1:
            if queues.after[unsigned(sending)] != sent_after:
                more = sent_after - 1
        elif queues.after[unsigned(receiving)] != received_after:
            more = received_after - 1
        if more == 0:
            continue
        if joined == 0:
            joined = more
        elif rest == 0:
            rest = more
        else:
            joined = add_node(joined, rest, frame)
            rest = more
    n = add_node(joined, rest, frame)
    frame.graph.cost[unsigned(n)] = time
    queues.node[unsigned(sending)] = n
    queues.node[unsigned(receiving)] = n
    queues.after[unsigned(sending)] = sent_after
    queues.after[unsigned(receiving)] = received_after
    return n
