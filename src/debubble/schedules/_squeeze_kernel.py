"""Move the actions of a repeated building block to earlier slots."""

from __future__ import annotations

from debubble.engine.jit import Array, kernel


@kernel(writes=("slots",))
def squeeze(
    order: Array,
    slots: Array,
    homes: Array,
    sizes: Array,
    gains: Array,
    microbatches: int,
    span: int,
    busy: Array,
    room: Array,
) -> None:
    """Move one action after the other to the earliest slot where its rank is free.

    Action ``piece * microbatches + i`` is a piece of microbatch i, waits for the piece before, and
    for the same piece of microbatch i − 1. It stays on rank ``homes[piece]`` for ``sizes[piece]``
    slots, and changes the activations held there by ``gains[piece]`` in its last. What takes memory
    moves only across slots in which its rank has room.

    ``busy`` and ``room`` hold a row of `span` slots for every rank; `order` lists the actions by
    slot.
    """
    for index in order:
        piece = index // microbatches
        row = homes[piece] * span
        size = sizes[piece]
        gain = gains[piece]
        old = slots[index]

        earliest = 0
        if piece > 0:
            earliest = slots[index - microbatches] + sizes[piece - 1]
        if index % microbatches > 0:
            earliest = max(earliest, slots[index - 1] + size)
        if gain > 0:
            lowest = old
            while lowest > earliest and room[row + lowest - 1] >= gain:
                lowest -= 1
            earliest = lowest

        for slot in range(row + old, row + old + size):
            busy[slot] = 0
        target = earliest
        free = 0
        while free < size:
            if busy[row + target + free]:
                target += free + 1
                free = 0
            else:
                free += 1
        for slot in range(row + target, row + target + size):
            busy[slot] = 1
        for slot in range(row + target + size - 1, row + old + size - 1):
            room[slot] -= gain
        slots[index] = target
