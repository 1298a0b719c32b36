"""1F1B-V: a V with whole backwards, in two thirds of the activations of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import MICROBATCH_SHIFT, Program
from debubble.core.placement import Placement
from debubble.core.sequence import backward, by_slot, forward, sequence
from debubble.schedules.registry import ClosedForm, register

PERIOD = 6
"""Slots from one microbatch to the next: F of two chunks, and B of two, twice as long."""


def building_block(ranks: int) -> NDArray[np.int64]:
    """Slots of one microbatch: F of stage 0, 1, …, S − 1, then B of stage S − 1, …, 0.

    Forwards take a slot each, without a pause. In the six slots of a period, they occupy the slots
    r and 2p − 1 − r of rank r, one even and one odd, so that the gaps between them have room for
    backwards of two slots. Going from rank to rank, a backward keeps to such gaps with two slots
    per stage, and a pause of three after every third.
    """
    stage = np.arange(2 * ranks)
    pauses = (stage + (1 - ranks) % 3) // 3 + (ranks % 3 == 0)
    return np.concatenate([stage, 2 * ranks + 2 * stage + 3 * pauses])


def squeezed(ranks: int, microbatches: int) -> NDArray[np.int64]:
    """Slots after every action has moved to an earlier free one, memory permitting.

    One action after the other, in the order of their slots, moves to the earliest slot that is free
    behind what it waits for: its input, and the same stage's work for the microbatch before. A
    forward moves only as far as its rank holds fewer activations, in all slots until the old one,
    than the fullest rank without any move. In the steady part there is nothing to move to.

    Returns
    -------
    ndarray
        Slots of shape ``(2S, microbatches)``, in the order of :func:`building_block`.
    """
    start = building_block(ranks)
    steps = len(start)
    stages = steps // 2
    home = np.concatenate([np.arange(ranks), np.arange(ranks)[::-1]] * 2).tolist()
    slots = start[:, None] + PERIOD * np.arange(microbatches)
    span = int(slots.max()) + 2

    # A backward gives its memory back in its second slot.
    change = np.zeros((ranks, span), dtype=np.int64)
    np.add.at(change, (np.repeat(home[:stages], microbatches), slots[:stages].ravel()), 1)
    np.add.at(change, (np.repeat(home[stages:], microbatches), slots[stages:].ravel() + 1), -1)
    held = change.cumsum(axis=1)
    room = (held.max() - held).tolist()
    busy = [bytearray(span) for _ in range(ranks)]
    for step, row in enumerate(slots.tolist()):
        for slot in row:
            busy[home[step]][slot : slot + 1 + (step >= stages)] = b"\1\1"[: 1 + (step >= stages)]

    ends = np.zeros((steps + 1, microbatches + 1), dtype=np.int64).tolist()
    result = slots.copy()
    for index in np.argsort(slots, axis=None, kind="stable").tolist():
        step, number = divmod(index, microbatches)
        rank, size = home[step], 1 + (step >= stages)
        slot = int(slots[step, number])
        taken, free = busy[rank], room[rank]
        earliest = max(ends[step - 1][number], ends[step][number - 1])
        if size == 1:
            back = slot
            while back > earliest and free[back - 1]:
                back -= 1
            earliest = back
        taken[slot : slot + size] = bytes(size)
        place = taken.find(bytes(size), earliest, slot + size)
        taken[place : place + size] = b"\1\1"[:size]
        for moment in range(place, slot):
            free[moment + size - 1] += -1 if size == 1 else 1
        ends[step][number] = place + size
        result[step, number] = place
    return result
