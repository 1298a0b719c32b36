"""Interleaved schedules with split backward: weights' part fills the drain of every chunk."""

from __future__ import annotations

from collections.abc import Iterator

from debubble.core.actions import Program
from debubble.core.sequence import interleaved_table, moved
from debubble.schedules.interleaved import forwards_and_backwards
from debubble.schedules.registry import Constraint, makespan_is, peak_is, register
from debubble.schedules.zero_bubble import split


def in_rounds(microbatches: int, ranks: int) -> int:
    """Return the microbatches of a round: rounds of equal size, at least p each."""
    return microbatches // max(1, microbatches // ranks)


def trailing_weights(
    ranks: int, microbatches: int, chunks: int, size: int, lag: int
) -> Iterator[Program]:
    """Yield programs in groups of a size, with W trailing I by `lag` times r on rank r.

    Rank r warms up with (v − 1)g + p − 1 − r forwards.
    """
    table = interleaved_table(microbatches, chunks, size)
    first, last = forwards_and_backwards(table, ranks, chunks)
    for rank in range(ranks):
        warm_up = (chunks - 1) * size + ranks - 1 - rank
        yield split(moved(first, rank), moved(last, rank), warm_up, lag * rank)


@register(
    "interleaved-zb",
    title="Interleaved 1F1B with split backward and half its warm-up",
    year=2023,
    source="@qi2024zero; @pytorch ScheduleInterleavedZeroBubble",
    default_chunks=2,
    aliases=("interleaved-zero-bubble", "interleavedzerobubble"),
    constraints=(
        Constraint(
            "microbatches",
            "microbatches in equal rounds: a multiple of microbatches // ranks",
            lambda k: k.microbatches % max(1, k.microbatches // k.ranks) == 0,
        ),
    ),
    forms=(
        makespan_is(
            "m·v(F + I + W) + (p − 1)(F + I − W)",
            condition="no latency, m ≥ p, W ≤ F and I",
        ),
        peak_is(
            "((v − 1)g + p)/v with g = m / (m // p), capped by m",
            lambda k: min((k.v - 1) * in_rounds(k.m, k.p) + k.p, k.m * k.v) * k.unit,
            condition="kept_for_weight = 1",
        ),
    ),
)
def interleaved_zb(*, ranks: int, microbatches: int, chunks: int) -> Iterator[Program]:
    """ZB-H1 over several chunks: W trails I by r on rank r, and fills the drain.

    Rank r warms up with (v − 1)g + p − 1 − r forwards, half of interleaved 1F1B's ramp, so that all
    ranks hold at most (v − 1)g + p chunks until W.

    When to use it: a backward that can be split, several chunks, fast links, and the memory of
    1f1b. The shorter warm-up makes latency cost more than in gis; zb-v, on two chunks, is ordered
    for it.

    p = 2, m = 4::

        r0 | F0 F1 f0 f1 .  i0 w0 F2 i1 w1 F3 I0 W0 f2 I1 W1 f3 i2 w2 i3 w3 I2 W2 I3 W3
        r1 | .  F0 F1 f0 i0 f1 i1 w0 F2 I0 w1 F3 I1 W0 f2 i2 W1 f3 i3 w2 I2 w3 I3 W2 W3
    """
    size = in_rounds(microbatches, ranks)
    return trailing_weights(ranks, microbatches, chunks, size, lag=1)
