"""STP: braided pairs on a V, which hide the all-reduces of tensor parallelism."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from debubble.core.actions import Kind, Program
from debubble.core.placement import Placement
from debubble.core.sequence import alternate, as_kind, backward, forward, overlap, sequence
from debubble.schedules.registry import Constraint, bubble_is, makespan_is, peak_is, register


def _program(ranks: int, microbatches: int, rank: int) -> Program:
    """Return the order of one rank, in the nine phases of the authors' code."""
    numbers = np.arange(microbatches)
    near, far = rank, 2 * ranks - 1 - rank
    F0, F1 = forward(near, numbers), forward(far, numbers)
    B0, B1 = backward(near, numbers), backward(far, numbers)
    rest, both = ranks - 1 - rank, rank + 1

    warm_up, F0 = F0[: 2 * rest], F0[2 * rest :]
    together = alternate(F0[:both], F1[:both])
    F0, F1 = F0[both:], F1[both:]
    lone = both % 2
    more = sequence(F0[:lone], overlap(F0[lone:both:2], F0[lone + 1 : both : 2]))
    F0 = F0[both:]

    I1, W1 = as_kind(B1[:rest], Kind.I), as_kind(B1[:rest], Kind.W)
    pairs = overlap(F1[:rest], I1), overlap(F0[:rest], W1)
    turn = np.hstack([pair.reshape(-1, 2) for pair in pairs]).ravel()
    F0, F1, B1 = F0[rest:], F1[rest:], B1[rest:]

    # All but what the last phases need; the first and the last pair are of the far stage.
    steady = 2 * (microbatches - 3 * ranks + 1) + 1 + 2 * rank
    front, back = np.empty(steady, dtype=np.int64), np.empty(steady, dtype=np.int64)
    odd = steady // 2
    front[::2], front[1::2] = F1[: odd + 1], F0[:odd]
    back[::2], back[1::2] = B1[: odd + 1], B0[:odd]
    put_off = back[steady - rank :]
    back[steady - rank :] = as_kind(put_off, Kind.I)
    middle = overlap(front, back)
    F1, B1, B0 = F1[odd + 1 :], B1[odd + 1 :], B0[odd:]

    count = len(F1)
    late = overlap(F1, as_kind(B1[:count], Kind.I)).reshape(count, 2)
    drain = np.hstack([B0[:count, None], late]).ravel()
    W = as_kind(sequence(put_off, B1[:count]), Kind.W)
    B0, B1 = B0[count:], B1[count:]

    last = alternate(B0[:both], B1)
    B0 = B0[both:]
    gaps = np.hstack([W[: 2 * rest].reshape(rest, 2), B0[1:, None]]).ravel()
    return sequence(warm_up, together, more, turn, middle, drain, last, B0[:1], gaps, W[2 * rest :])


def _sums(k: Any) -> bool:
    """Return whether pairs take the sum of their parts, as B does."""
    parts = ((k.F, Kind.F), (k.I, Kind.I), (k.W, Kind.W), (k.B, Kind.B))
    whole = all(
        math.isclose(k.table.pair((int(Kind.F), 0), (int(kind), 0)), k.F + time)
        for time, kind in parts
    )
    return whole and math.isclose(k.B, k.I + k.W)


BUBBLE = "(p − 1)(2F + I + max(F, I) − 3W)"
SUMS = "no latency, pairs take the sum of their parts, B = I + W, W ≤ F and I"


@register(
    "stp",
    title="V placement with braided pairs that hide the all-reduces of tensor parallelism",
    year=2025,
    source="@qi2025synergistic; MICLAB-BUPT/STP stp/schedule.py",
    placement=Placement.wave,
    chunks=2,
    constraints=(
        Constraint(
            "microbatches",
            "at least 3·ranks − 1 microbatches",
            lambda k: k.microbatches >= 3 * k.ranks - 1,
        ),
    ),
    forms=(
        makespan_is(f"2m(F + B) + {BUBBLE}", holds=_sums, condition=SUMS),
        bubble_is(BUBBLE, holds=_sums, condition=SUMS),
        peak_is("(3p + max(1, r))/2", condition="kept_for_weight = 1"),
    ),
)
def stp(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """Two passes of a rank run as one, unit by unit: one computes while the other's ranks reduce.

    With tensor parallelism every layer ends in an all-reduce, forwards and backwards, in which a
    rank computes nothing. Here nearly all passes run in pairs of which one fills that time of the
    other: F with B or I, F with W, and in the warm-up F with F. Alone run 2p + 1 passes, whatever
    the number of microbatches.

    A pair saves no computing: give an `overlap_factor` below 1 for what the all-reduces of one pass
    hide, or the time `O` of a forward with B, I or W, and `FF` of two forwards. Where pairs take
    the sum of their parts, ranks wait
    (p − 1)(2F + 2I − 3W) for F ≤ I, as simulated for p up to 9; the authors' (p − 1)(F + B − W) is
    the same only for F = I = W. Rank r holds 3p + r chunks, and rank 0 one more; the authors' 3p is
    rank 0's where a pair frees what its backward needed before its forward takes.

    When to use it: with tensor parallelism within a node, where all-reduces are a large part of a
    layer, and memory for 1.5 to 2 times that of 1F1B. Without them zb-v waits less in less memory.

    p = 2, m = 5, B twice as long as F::

        r0 | F0 F1 F2 f0 F3 f1--- F4--- .  f2------ B0--- f3--- B1--- f4--- B2--- b4--- B3--- w2 w3 B4---
           |                i0--- w0---    b1------       i2---       i3---
        r1 | .  F0 f0 F1 f1 F2--- f2------ F4------ f3--- B1--- f4--- B2--- b3--- B3--- b4--- B4--- w1 w2
           |                F3--- b0------ B0------ i1---       i2---
    """  # noqa: E501 - the figure is as wide as its shortest order
    for rank in range(ranks):
        yield _program(ranks, microbatches, rank)
