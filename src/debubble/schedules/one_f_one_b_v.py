"""1F1B-V: a V with whole backwards, in two thirds of the activations of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.core.sequence import backward, by_slot, forward
from debubble.engine.jit import Array, kernel
from debubble.schedules.registry import Constraint, makespan_is, peak_is, register

PERIOD = 6
"""Slots from one microbatch to the next: F of two chunks, and B of two, twice as long."""

MAX_RANKS = 1024
"""Limit for the memory of :func:`squeezed`, which goes over 32·ranks slots of every rank."""


def building_block(ranks: int) -> NDArray[np.int64]:
    """Return slots of one microbatch: F of stage 0, 1, …, S − 1, then B of stage S − 1, …, 0.

    Forwards take a slot each, without a pause. In the six slots of a period they occupy the slots
    r and 2p − 1 − r of rank r, one even and one odd, so that the gaps between them have room for
    backwards of two slots. Going from rank to rank, a backward keeps to such gaps with two slots
    per stage, and a pause of three after every third.
    """
    stage = np.arange(2 * ranks)
    pauses = (stage + (1 - ranks) % 3) // 3 + (ranks % 3 == 0)
    return np.concatenate([stage, 2 * ranks + 2 * stage + 3 * pauses])


def squeezed(ranks: int, microbatches: int) -> NDArray[np.int64]:
    """Return the slots of all microbatches after every action has moved to an earlier free one.

    A forward moves only as far as its rank, until the old slot, holds fewer activations than the
    fullest rank does without any move. So the fill and the drain become shorter, at the same peak.
    Shape ``(2S, microbatches)``, rows in the order of :func:`building_block`.
    """
    start = building_block(ranks)
    stages = 2 * ranks
    homes = np.tile(np.concatenate([np.arange(ranks), np.arange(ranks)[::-1]]), 2)
    sizes, gains = np.repeat([1, 2], stages), np.repeat([1, -1], stages)
    slots = start[:, None] + PERIOD * np.arange(microbatches)
    lasts = slots + sizes[:, None] - 1
    span = int(lasts.max()) + 1

    busy = np.zeros((ranks, span), dtype=np.int8)
    busy[homes[:, None], slots] = busy[homes[:, None], lasts] = 1
    held = np.zeros((ranks, span), dtype=np.int32)
    held[homes[:, None], lasts] = gains[:, None]
    np.cumsum(held, axis=1, out=held)

    result = slots.ravel()
    order = np.argsort(result, kind="stable")
    squeeze.run(
        4 * len(order), order, result, homes, sizes, gains, microbatches, span, busy.ravel(),
        (held.max() - held).ravel(),
    )  # fmt: skip
    return result.reshape(slots.shape)


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


def all_slots(ranks: int, microbatches: int) -> NDArray[np.int64]:
    """Return the result of :func:`squeezed`, with the steady part repeated instead of computed.

    Moves reach less than 9p/4 microbatches from the first on and 3p/2 before the last: in between,
    all slots of a microbatch are a period after those of the one before.
    """
    few = min(microbatches, 4 * ranks + 8)
    slots = squeezed(ranks, few)
    steady, more = 9 * ranks // 4 + 4, microbatches - few
    if more == 0:
        return slots
    again = slots[:, steady - 1 : steady] + PERIOD * np.arange(1, more + 1)
    return np.hstack([slots[:, :steady], again, slots[:, steady:] + PERIOD * more])


def _as_drawn(k: Any) -> bool:
    """Return whether slots are as long as the actions in them."""
    return bool(k.B == 2 * k.F and k.m >= k.p)


@register(
    "1f1b-v",
    title="V placement, whole backwards: the bubble of 1F1B or less in 2/3 of its memory",
    year=2024,
    source="@qi2024controllable; sail-sg v1f1b.py",
    placement=Placement.wave,
    chunks=2,
    aliases=("v-1f1b", "1f1bv"),
    constraints=(
        Constraint("ranks", f"at most {MAX_RANKS:,} ranks", lambda k: k.ranks <= MAX_RANKS),
    ),
    forms=(
        makespan_is(
            "(6m + 5(p − 1))F",
            holds=lambda k: _as_drawn(k) and k.p % 3 == 1,
            condition="no latency, B = 2F, m ≥ p, p = 1 mod 3",
        ),
        makespan_is(
            "(6m + 5(p − 1))F, 1F to 4F too long",
            accuracy="upper bound",
            holds=lambda k: _as_drawn(k) and k.p % 3 != 1,
            condition="no latency, B = 2F, m ≥ p, p = 0 or 2 mod 3",
        ),
        makespan_is(
            "2(m + p − 1)(F + max(B, 2F))",
            accuracy="upper bound",
            holds=lambda k: k.B <= 4 * k.F and not _as_drawn(k),
            condition="no latency, B ≤ 4F",
        ),
        peak_is("min(⌊2p/3⌋ + 1, m)"),
    ),
)
def one_f_one_b_v(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """One microbatch's forwards and backwards, repeated every six slots, then squeezed.

    On a V, a rank that holds its activations of the way down for long holds those of the way back
    only for a short time. A microbatch occupies the two stages of rank r for about 8p − 4r and 4r
    slots, which is 8p on every rank; with a new one every 6 slots that makes 4p/3 chunks, two
    thirds of the p microbatches of 1F1B: ⌊2p/3⌋ + 1 exactly. See :func:`building_block` for the
    slots and :func:`squeezed` for what follows; the result is the order of the authors' code.

    A slot is as long as F, and B takes two. With B = 2F the bubble is 5(p − 1)F or up to 4F less,
    where 1F1B, in the same unit of a chunk's F, has 6(p − 1)F. It does not grow with m for a longer
    B, but for B < 2F every microbatch loses 2F − B, for some p twice that: the slots of B stay as
    long as two F. The bounds are measured, for p ≤ 48.

    When to use it: memory for less than 1f1b holds, and a backward that cannot be split, as in
    stages that are compiled or checkpointed. B should take about twice as long as F, and links be
    fast; otherwise every microbatch loses time.

    p = 4, m = 4, B twice as long as F::

        r0 | F0F1F2F3. . . f0b0--f1b1--f2b2--. . . . . . f3b3--B0--. . B1--. . B2--. . B3--
        r1 | . F0F1F2F3. f0. f1. b0--f2b1--. b2--. . . f3B0--. b3--B1--. . B2--. . B3--. .
        r2 | . . F0F1F2f0. f1. f2. . b0--F3b1--. B0--f3b2--. B1--. b3--B2--. . B3--. . . .
        r3 | . . . F0f0F1f1F2f2. . . . . b0--B0--F3f3b1--B1--b2--B2--. b3--B3--. . . . . .
    """
    slots = all_slots(ranks, microbatches)
    numbers = np.arange(microbatches)
    for rank in range(ranks):
        stage = np.array([rank, 2 * ranks - 1 - rank])
        actions = [forward(stage[:, None], numbers), backward(stage[:, None], numbers)]
        rows = [slots[stage], slots[4 * ranks - 1 - stage]]
        yield by_slot(np.concatenate(actions, axis=None), np.concatenate(rows, axis=None))
