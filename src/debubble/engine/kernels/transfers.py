"""Find the transfers of a schedule, decide where they are received, and write the new programs.

A transfer is named by the position of the action that produces what is sent; that of what the
action's stage carries to another that is no neighbor by this and the number n of all actions.
``consumer[x]`` is the position of the action on another rank that needs it, −1
when there is none. ``order`` lists the transfers in the order in which every rank receives them,
and ``slot`` the position of the compute action before which each is received.
"""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, PAIR_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.core.kind_relations import boundary_offsets, needs_through, transfer_of
from debubble.core.kinds import Kind
from debubble.engine.jit import Array, helper, kernel
from debubble.engine.kernels import layout as at

SEND_OF = tuple(
    int(transfer_of(kind, carried)[0]) if kind in boundary_offsets() else -1
    for carried in (False, True)
    for kind in Kind
)
"""By kind, the send of what it computes, −1 for none; then the send of what it carries."""

RECEIVE_OF = tuple(
    max(
        (-1 if n.through is None else int(n.through) for n in needs_through(kind, carried)),
        default=-1,
    )
    for carried in (False, True)
    for kind in Kind
)
"""By kind, the receive of what it computes with, −1 for none; then that of what is carried."""

KINDS = len(Kind)


@kernel(writes=("consumer",))
def find_transfers(
    actions: Array,
    home: Array,
    stages: int,
    units: int,
    kinds: Array,
    steps: Array,
    needs: Array,
    consumer: Array,
) -> int:
    """Match producers with consumers; returns how many stand on different ranks.

    ``home`` is the rank of every position, ``kinds`` are the columns of kinds. ``needs[key] − 1``
    is the first position that needs a result, whose key is (r·S + s)·U + u for result r of stage s:
    a gradient that a recompute waits for is needed there, before its backward. ``steps`` are those
    of :class:`debubble.engine.kernels.carry.Carry`, empty where nothing is carried.
    """
    for position in range(len(actions)):
        action = actions[position]
        row = (action & KIND_MASK) * at.WIDTH
        towards = kinds[row + at.TOWARDS]
        stage = ((action >> STAGE_SHIFT) & STAGE_MASK) + towards
        if towards != 0 and stage >= 0 and stage < stages:
            key = (kinds[row + at.RESULT] * stages + stage) * units + (action >> MICROBATCH_SHIFT)
            if needs[key] == 0:
                needs[key] = position + 1
        takes = kinds[row + at.CARRY_FROM]
        if len(steps) > 0 and takes != 0 and kinds[row + at.SORT] == at.WORK:
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            step = steps[(takes - 1) * stages + stage]
            if step != 0:
                key = (kinds[row + at.CARRY_RESULT] * stages + stage + step) * units
                key += action >> MICROBATCH_SHIFT
                if needs[key] == 0:
                    needs[key] = position + 1
    count = 0
    for position in range(len(actions)):
        consumer[position] = -1
        action = actions[position]
        row = (action & KIND_MASK) * at.WIDTH
        if kinds[row + at.GIVES] == 0:
            continue
        stage = (action >> STAGE_SHIFT) & STAGE_MASK
        key = (kinds[row + at.RESULT] * stages + stage) * units + (action >> MICROBATCH_SHIFT)
        needed = needs[key] - 1
        if needed >= 0 and home[needed] != home[position]:
            consumer[position] = needed
            count += 1
    for index in range(len(actions), len(consumer)):
        consumer[index] = -1
        position = index - len(actions)
        action = actions[position]
        row = (action & KIND_MASK) * at.WIDTH
        gives = kinds[row + at.CARRY_TO]
        stage = (action >> STAGE_SHIFT) & STAGE_MASK
        if (
            gives == 0
            or kinds[row + at.SORT] != at.WORK
            or steps[(gives - 1) * stages + stage] == 0
        ):
            continue
        needed = needs[((1 + gives) * stages + stage) * units + (action >> MICROBATCH_SHIFT)] - 1
        if needed >= 0 and home[needed] != home[position]:
            consumer[index] = needed
            count += 1
    return count


@kernel(writes=("order", "slot"))
def place_early(
    offsets: Array,
    home: Array,
    consumer: Array,
    start: Array,
    end: Array,
    bucket: Array,
    head: Array,
    order: Array,
    slot: Array,
) -> None:
    """Receive before the first action that starts when the producer has ended, or later.

    ``start`` and ``end`` are whole numbers, so that counting sorts the transfers by time;
    ``bucket`` has a zero for each time and one more.
    """
    for transfer in range(len(consumer)):
        if consumer[transfer] >= 0:
            bucket[end[maker(transfer, home)] + 1] += 1
    for time in range(1, len(bucket)):
        bucket[time] += bucket[time - 1]
    for transfer in range(len(consumer)):
        if consumer[transfer] >= 0:
            order[bucket[end[maker(transfer, home)]]] = transfer
            bucket[end[maker(transfer, home)]] += 1
    for rank in range(len(offsets) - 1):
        head[rank] = offsets[rank]
    for index in range(len(order)):
        transfer = order[index]
        rank = home[consumer[transfer]]
        here = head[rank]
        while start[here] < end[maker(transfer, home)]:
            here += 1
        head[rank] = here
        slot[index] = here


@kernel(writes=("slot",))
def place_late(
    actions: Array,
    offsets: Array,
    home: Array,
    consumer: Array,
    start: Array,
    end: Array,
    link_slot: Array,
    order: Array,
    slot: Array,
) -> None:
    """Move every receive towards its consumer, as far as that keeps no sender waiting.

    A receive before action c of its rank is reached when the action before c ends; its sender can
    wait that long when its own next action does not start sooner. ``slot`` holds the earliest
    places, as :func:`place_early` finds them. ``link_slot[link] − 1`` is where the next transfer
    from the same rank to the same rank is received: no receive moves past it.
    """
    ranks = len(offsets) - 1
    for index in range(len(order) - 1, -1, -1):
        position = maker(order[index], actions)
        latest = consumer[order[index]]
        link = home[position] * ranks + home[latest]
        # Groups begin and end as one.
        while (actions[latest] >> PAIR_SHIFT) & 3 >= 2:
            latest -= 1
        if 0 < link_slot[link] <= latest:
            latest = link_slot[link] - 1
        following = after_group(position, actions)
        here = slot[index]
        if following == offsets[home[position] + 1]:
            here = latest
        else:
            while here < latest and end[here] <= start[following]:
                here += 1
        slot[index] = here
        link_slot[link] = here + 1


@kernel(writes=("lowered", "lowered_offsets"))
def write_programs(
    actions: Array,
    offsets: Array,
    home: Array,
    consumer: Array,
    order: Array,
    slot: Array,
    sends_first: bool,
    room: Array,
    lowered: Array,
    lowered_offsets: Array,
) -> None:
    """Write programs with a send after every producer, or its group, and receives at their slots.

    Transfers between two compute actions stand as in ``order``, on every rank; with `sends_first`
    sends as their producers, and receives behind them. ``room`` has a zero for the gap before each
    action and behind each program: that before action i of rank r has the number i + r.
    """
    for index in range(len(order)):
        sender = maker(order[index], actions)
        room[after_group(sender, actions) + home[sender]] += 1
        room[slot[index] + home[slot[index]]] += 1
    here = 0
    for rank in range(len(offsets) - 1):
        for position in range(offsets[rank], offsets[rank + 1] + 1):
            # From here on ``room`` is where the next transfer of this gap is written.
            count = room[position + rank]
            room[position + rank] = here
            here += count
            if position < offsets[rank + 1]:
                lowered[here] = actions[position]
                here += 1
        lowered_offsets[rank + 1] = here
    if sends_first:
        for transfer in range(len(consumer)):
            if consumer[transfer] >= 0:
                write_send(transfer, actions, home, room, lowered)
    for index in range(len(order)):
        transfer = order[index]
        needed = actions[consumer[transfer]]
        if not sends_first:
            write_send(transfer, actions, home, room, lowered)
        gap = slot[index] + home[slot[index]]
        carried = KINDS if transfer >= len(actions) else 0
        write_end(needed, RECEIVE_OF[carried + (needed & KIND_MASK)], gap, room, lowered)


@helper
def write_send(transfer: int, actions: Array, home: Array, room: Array, lowered: Array) -> None:
    """Write the send of a transfer behind its producer, or its group."""
    sender = maker(transfer, actions)
    action, carried = actions[sender], KINDS if transfer >= len(actions) else 0
    gap = after_group(sender, actions) + home[sender]
    write_end(action, SEND_OF[carried + (action & KIND_MASK)], gap, room, lowered)


@helper
def maker(transfer: int, actions: Array) -> int:
    """Return the position of the action that makes what a transfer moves."""
    return transfer if transfer < len(actions) else transfer - len(actions)


@helper
def after_group(position: int, actions: Array) -> int:
    """Return the position behind an action, or behind the overlapped group that it is of."""
    while (actions[position] >> PAIR_SHIFT) & 1 == 1:
        position += 1
    return position + 1


@helper
def write_end(action: int, kind: int, gap: int, room: Array, lowered: Array) -> None:
    """Write an end of the transfer of what an action gives or takes to the next place of a gap."""
    lowered[room[gap]] = action >> STAGE_SHIFT << STAGE_SHIFT | kind
    room[gap] += 1
