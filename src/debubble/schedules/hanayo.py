"""Hanayo: Chimera's waves without a second copy of the model."""

from __future__ import annotations

from collections.abc import Iterator

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.schedules._waves import forms, makespan, waves
from debubble.schedules.registry import Constraint, register


@register(
    "hanayo",
    title="One copy of the model in waves across all ranks",
    year=2023,
    source="@liu2023hanayo",
    placement=Placement.wave,
    default_chunks=2,
    constraints=(
        Constraint("chunks", "an even number of chunks, two per wave", lambda k: k.chunks % 2 == 0),
    ),
    forms=forms(
        1,
        lambda k: makespan(k, copies=1),
        "m·v(F + B) + 2(p − 1)(max(F, B) + (U − 1)|B − F|)",
        "p − (p − 1 − r)/v",
    ),
)
def hanayo(*, ranks: int, microbatches: int, chunks: int) -> Iterator[Program]:
    """The two directions of Chimera become the way down and the way back of one copy.

    Cut Chimera's 2p ranks in half: by symmetry, what the other direction does on a rank of the
    upper half, the way back of the own direction does on its mirror image in the lower. That leaves
    a V on p ranks, one wave, and more waves (two chunks each) make the stages shorter: the idle
    time at the ends, 2(p − 1) slots, shrinks with them.

    In slots, microbatch i of p runs F of stage s in slot 2i + s and B in slot 2i + 2S − 1 − s. More
    microbatches form further units of p, joined like Chimera's by direct concatenation: without a
    gap when F = B, but otherwise every unit but the first loses 2(p − 1)|B − F|. With B = 2F, w
    waves therefore win over 1F1B for fewer than 3w − 1 units only. The last unit may be short.

    When to use it: to reproduce its paper, or with about as many microbatches as ranks and F close
    to B, where it waits as long as interleaved-1f1b on as many chunks. That waits less everywhere
    else.

    p = 3, m = 3, B twice as long as F::

        r0 | F0 F1 F2 .  .  f0 b0--- f1 b1--- f2 b2--- .  .  B0--- .  .  B1--- .  .  B2---
        r1 | .  F0 F1 .  f0 F2 f1 .  b0--- f2 b1--- .  B0--- b2--- B1--- .  .  B2--- .  .
        r2 | .  .  F0 f0 F1 f1 F2 f2 .  .  b0--- B0--- b1--- B1--- b2--- B2--- .  .  .  .

    Parameters
    ----------
    chunks
        Stages per rank, two for each wave.
    """
    return waves(Placement.wave(ranks, chunks), microbatches)
