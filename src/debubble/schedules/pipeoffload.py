"""PipeOffload: interleaved orders whose activations wait for their backward on the host.

One building block is repeated evenly: in every *slot* a rank runs one chunk forward and one chunk
backward, so that every chunk has its forward every v slots. In a slot the stream of copies has to
carry one activation out and one back. Let k be the time of these two copies divided by F + I + W.
Up to k = 1 offloading everything is hidden behind the compute; beyond, the step takes k times as
long. For a transformer k = 10/(3(6h + s)) · B_c/B_o with h its hidden size, s its sequence length,
B_c the compute and B_o the host bandwidth; Fig. 1 of the paper follows this for s = 4096.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from debubble.core.actions import Kind, Program
from debubble.core.sequence import as_kind, backward_input, forward, merge
from debubble.schedules.registry import Constraint, makespan_is, peak_is, register


def chunk_slots(ranks: int, chunks: int) -> list[int]:
    """Return the slots of microbatch 0's forwards on rank 0; microbatch j is j·v later.

    A microbatch takes half a slot from rank to rank, ⌈p/2⌉ slots from chunk to chunk; more where
    the slot is that of another chunk.
    """
    slots: list[int] = []
    for _ in range(chunks):
        slot = slots[-1] + (ranks + 1) // 2 if slots else 0
        while any((slot - other) % chunks == 0 for other in slots):
            slot += 1
        slots.append(slot)
    return slots


def uniform(ranks: int, microbatches: int, chunks: int, offloaded: int) -> Iterator[Program]:
    """Repeat one building block evenly, and offload the first chunks of every rank.

    A slot holds at most one F, OFFLOAD, RELOAD, I and W, in this order. The reload is for the I two
    slots later: what is copied in between, and the slot's own offload, then fit before it. What
    lives for less than three slots stays.

    The forward reaches the next rank in the same slot of that rank, whose slots are half a slot
    later, and the backward the rank before in the next slot: half a slot each way, from which the
    slots of a chunk follow. That leaves no repeating bubble as long as F and I take at most half of
    F + I + W.
    """
    slots = np.array(chunk_slots(ranks, chunks))
    chunk, number = np.divmod(np.arange(chunks * microbatches), microbatches)
    begin = slots[chunk] + number * chunks
    stage = chunk * ranks
    # Backwards take the slots of the forwards, chunks in reverse.
    back = slots[chunks - 1 - chunk] + number * chunks + slots[-1]
    for rank in range(ranks):
        end = back + ranks - 1 - rank
        F, I = forward(stage + rank, number), backward_input(stage + rank, number)
        away = (chunk < offloaded) & (end - begin >= 3)
        yield merge(
            (begin, F),
            (begin[away], as_kind(F[away], Kind.OFFLOAD)),
            (end[away] - 2, as_kind(F[away], Kind.RELOAD)),
            (end, I),
            (end, as_kind(I, Kind.W)),
        )


def _steady(k: Any) -> bool:
    period = k.F + k.I + k.W
    return bool(k.c == 0 and 2 * max(k.F, k.I) <= period and 2 * k.copy <= period)


def _kept_chunks(k: Any) -> int:
    """Return the most chunks on rank 0 with the first half offloaded, without those in transit.

    Chunk c runs forward in slot f(c) and backward in slot f(v − 1 − c) + f(v − 1) + p − 1, and the
    next microbatch v slots later.
    """
    slots = chunk_slots(k.p, k.v)
    lives = (slots[k.v - 1 - c] + slots[-1] + k.p - slots[c] for c in range(k.v // 2, k.v))
    return sum(-(-life // k.v) for life in lives)


TIME = makespan_is(
    "(m + p − 1)·v(F + I + W)",
    accuracy="upper bound",
    holds=_steady,
    condition="no latency; F, I and a copy take at most (F + I + W)/2 each",
)
SOURCE = "@wan2025pipeoffload"


@register(
    "pipeoffload-half",
    copies_activations=True,
    title="Half of the chunks wait for their backward on the host: a quarter of the memory",
    year=2025,
    source=SOURCE,
    default_chunks=2,
    aliases=("po-h",),
    constraints=(
        Constraint(
            "chunks",
            "an even number of chunks, half of which are offloaded",
            lambda k: k.chunks % 2 == 0,
        ),
    ),
    forms=(
        TIME,
        peak_is(
            "(Σ ⌈slots a chunk lives/v⌉ over the chunks that stay, + 3)/v, about (v + 2)p/(8v)",
            lambda k: min(_kept_chunks(k) + 3, k.m * k.v) * k.unit,
            accuracy="upper bound",
            condition="copies take no time",
        ),
    ),
)
def pipeoffload_half(*, ranks: int, microbatches: int, chunks: int) -> Iterator[Program]:
    """Offload the first half of every rank's chunks, whose activations live longest.

    In GIS-H chunk c lives for (v − c)p slots of which v make a period, p(v + 1)/2 chunks in all.
    The second half of them is p(v + 2)/8: half of the copies save more than half of the memory.
    With copies that take no time and F = I = W the peaks are, in units, with m = 4p,

    ===== ===== ============ =========== ======== =========================
    p     v     (v+2)p/(8v)  this order  GIS-H    bubble here, of 1F1B
    ===== ===== ============ =========== ======== =========================
    4     2     1            2           3        9, 18
    8     2     2            3           6        23, 42
    8     4     1.5          2.25        5        41, 84
    16    4     3            3.75        10       93, 180
    16    8     2.5          2.875       9        179, 360
    ===== ===== ============ =========== ======== =========================

    where bubbles are makespans less m·v(F + I + W). The paper bounds this order's by that of 1F1B.
    Copies that take k(F + I + W)/2 each are hidden up to k = 1.

    When to use it: well under half of the memory of 1f1b, several chunks, and a link to the host
    that copies half of the activations while ranks compute.

    p = 2, m = 4::

        r0 | F0 .  f0 F1 .  i0 w0 f1 I0 W0 F2 i1 w1 f2 I1 W1 F3 i2 w2 f3 I2 W2 .  i3 w3 I3 W3
        r1 | .  F0 .  f0 i0 w0 F1 I0 W0 f1 i1 w1 F2 I1 W1 f2 i2 w2 F3 I2 W2 f3 i3 w3 I3 W3 .
    """
    return uniform(ranks, microbatches, chunks, chunks // 2)


@register(
    "pipeoffload-full",
    copies_activations=True,
    title="All chunks wait for their backward on the host: memory of three chunks",
    year=2025,
    source=SOURCE,
    default_chunks=2,
    aliases=("po-f",),
    forms=(
        TIME,
        peak_is(
            "3/v",
            lambda k: min(3, k.m * k.v) * k.unit,
            accuracy="upper bound",
            condition="copies take no time",
        ),
    ),
)
def pipeoffload_full(*, ranks: int, microbatches: int, chunks: int) -> Iterator[Program]:
    """The order of PO-H with everything offloaded that lives for three slots or more.

    In any slot a rank holds the chunk that runs forward and what the backwards of this slot and of
    the next need, or, once the former is gone, what this and the next two need: three chunks,
    whatever p, v and m. That is 3M/(pv), where the paper has O(M/(pv)). Copies that fill the stream
    (k = 1) still cost no time for even p, and five chunks where p = 16, v = 4: those that run
    while the stream is behind.

    When to use it: memory for about three chunks, and a link to the host that copies a chunk both
    ways while it computes. Otherwise pipeoffload-half, or v-min without any copies.

    p = 3, m = 3::

        r0 | F0 F1 .  f0 F2 f1 .  .  i0 w0 f2 .  .  i1 w1 .  I0 W0 i2 w2 I1 W1 I2 W2
        r1 | .  F0 F1 .  f0 F2 .  i0 w0 f1 .  .  i1 w1 f2 I0 W0 i2 w2 I1 W1 I2 W2 .
        r2 | .  .  F0 F1 .  f0 i0 w0 F2 .  f1 i1 w1 I0 W0 f2 i2 w2 I1 W1 I2 W2 .  .
    """
    return uniform(ranks, microbatches, chunks, chunks)
