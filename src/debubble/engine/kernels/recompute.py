"""Find earlier places for recomputes, in the time a rank waits."""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, kernel

REACH = 512
"""Actions back to which a place is looked for: bounds the work, and covers every warm-up."""


@kernel(writes=("place", "refused"))
def fill_waits(
    actions: Array,
    offsets: Array,
    start: Array,
    end: Array,
    added: Array,
    freed: Array,
    limit: Array,
    share: float,
    wait: Array,
    held: Array,
    place: Array,
    refused: Array,
) -> int:
    """Move recomputes that delay what follows them into earlier waits; returns how many.

    ``wait`` and ``held`` are filled with how long the rank waits before every action, and what it
    holds while that runs. A recompute moves before the nearest action with a wait of at least
    ``share`` of its time, as long as ``held`` stays within ``limit`` on the way; ``place`` is the
    position of that action, or the recompute's own. ``refused`` becomes the least that ``limit``
    did not allow.
    """
    moved = 0
    for rank in range(len(offsets) - 1):
        before = 0.0
        memory = 0.0
        for position in range(offsets[rank], offsets[rank + 1]):
            wait[position] = start[position] - before
            before = end[position]
            memory += added[position]
            held[position] = memory
            memory += freed[position]
            place[position] = position
        for position in range(offsets[rank], offsets[rank + 1] - 1):
            action = actions[position]
            if action & KIND_MASK != 4 or start[position + 1] > end[position]:
                continue
            time = end[position] - start[position]
            rest = added[position]
            spot = position - 1
            last = max(offsets[rank], position - REACH)
            while (
                spot >= last
                and actions[spot] >> STAGE_SHIFT != action >> STAGE_SHIFT
                and held[spot] + rest <= limit[rank]
                and (wait[spot] <= 0 or wait[spot] < share * time)
            ):
                spot -= 1
            if spot < last or actions[spot] >> STAGE_SHIFT == action >> STAGE_SHIFT:
                continue
            if held[spot] + rest > limit[rank]:
                refused[rank] = min(refused[rank], held[spot] + rest)
                continue
            wait[spot] -= time
            for between in range(spot, position):
                held[between] += rest
            place[position] = spot
            moved += 1
    return moved
