"""Place sends and receives as PyTorch's schedules do, round by round over all ranks."""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, PAIR_SHIFT, STAGE_SHIFT
from debubble.core.kinds import KINDS, SEND_KINDS, kind_bits
from debubble.engine.jit import Array, kernel
from debubble.engine.kernels.transfers import RECEIVE_OF, SEND_OF

SENDS = kind_bits(SEND_KINDS)
RECEIVES = kind_bits(spec.kind for spec in KINDS if spec.receives)


@kernel(writes=("lowered", "origin", "peer"))
def write_pytorch_order(
    actions: Array,
    offsets: Array,
    home: Array,
    consumer: Array,
    producer: Array,
    head: Array,
    done: Array,
    room: Array,
    lowered: Array,
    origin: Array,
    peer: Array,
) -> bool:
    """Programs with a receive where its rank is when the sender runs; False when they lock up.

    Round by round every rank in turn runs its next action, or group of them, whose inputs others
    have computed. What it computes is sent right behind it, and received at the end of what the
    receiver has run so far.

    ``consumer`` is that of :func:`debubble.engine.kernels.transfers.find_transfers`, ``producer``
    its inverse. ``head`` has the first position of every rank, ``done`` zeros, and ``room`` where
    each rank's program begins in ``lowered``. ``origin`` becomes the position of the action, of
    that which a receive is for, or −1 for a send; ``peer`` the rank at the other end of a transfer.
    """
    left = len(actions)
    while left > 0:
        before = left
        for rank in range(len(offsets) - 1):
            begin = head[rank]
            if begin == offsets[rank + 1]:
                continue
            end = begin + 1
            while (actions[end - 1] >> PAIR_SHIFT) & 1 == 1:
                end += 1
            ready = True
            for position in range(begin, end):
                needed = producer[position]
                if needed >= 0 and done[needed] == 0:
                    ready = False
            if not ready:
                continue
            head[rank] = end
            left -= end - begin
            for position in range(begin, end):
                done[position] = 1
                here = room[rank]
                room[rank] = here + 1
                lowered[here] = actions[position]
                origin[here] = position
                peer[here] = -1
            for position in range(begin, end):
                needed = consumer[position]
                if needed < 0:
                    continue
                other = home[needed]
                here = room[rank]
                room[rank] = here + 1
                kind = SEND_OF[actions[position] & KIND_MASK]
                lowered[here] = actions[position] >> STAGE_SHIFT << STAGE_SHIFT | kind
                origin[here] = -1
                peer[here] = other
                here = room[other]
                room[other] = here + 1
                kind = RECEIVE_OF[actions[needed] & KIND_MASK]
                lowered[here] = actions[needed] >> STAGE_SHIFT << STAGE_SHIFT | kind
                origin[here] = needed
                peer[here] = rank
        if left == before:
            return False
    return True


@kernel(writes=("deferred",))
def defer_receives(
    lowered: Array,
    offsets: Array,
    origin: Array,
    peer: Array,
    waiting: Array,
    queue: Array,
    deferred: Array,
) -> None:
    """Write the programs with every receive right before the action, or group of them, it is for.

    Before it sends to a rank with a higher number, a rank posts all that it has put off of what
    that rank sends it. So of any two ranks that send to each other one receives first.

    ``waiting`` has a zero for every action; it becomes one more than the place of the receive that
    is put off for it. ``queue`` has room for as many receives as a program has.
    """
    for rank in range(len(offsets) - 1):
        here = offsets[rank]
        first = 0
        last = 0
        position = offsets[rank]
        while position < offsets[rank + 1]:
            kind = lowered[position] & KIND_MASK
            if RECEIVES >> kind & 1 != 0:
                waiting[origin[position]] = position + 1
                queue[last] = position
                last += 1
                position += 1
                continue
            while first < last and waiting[origin[queue[first]]] == 0:
                first += 1
            if SENDS >> kind & 1 != 0 and peer[position] > rank:
                for index in range(first, last):
                    receive = queue[index]
                    if peer[receive] == peer[position] and waiting[origin[receive]] != 0:
                        waiting[origin[receive]] = 0
                        deferred[here] = lowered[receive]
                        here += 1
            end = position + 1
            while (lowered[end - 1] >> PAIR_SHIFT) & 1 == 1:
                end += 1
            for member in range(position, end):
                if origin[member] >= 0 and waiting[origin[member]] != 0:
                    deferred[here] = lowered[waiting[origin[member]] - 1]
                    waiting[origin[member]] = 0
                    here += 1
            for member in range(position, end):
                deferred[here] = lowered[member]
                here += 1
            position = end
