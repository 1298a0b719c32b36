"""Interleaved schedules with split backward: W fills the drain, or comes right after I."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from debubble.core.actions import Program
from debubble.core.sequence import interleaved_table, moved
from debubble.schedules.interleaved import forwards_and_backwards, group
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


def _half(k: Any) -> int:
    return int(k.ranks + 1) // 2


def _longer(k: Any, size: int) -> float:
    """Return the makespan in groups of a size, F = I = W."""
    work = k.m * k.v * (k.F + k.I + k.W) + (k.p - 1) * (k.F + k.I)
    return float(work + (k.p - size) * (k.v - 1) * k.F)


def _peak(k: Any, size: int) -> float:
    return float(min((k.v - 1) * size + k.p, k.m * k.v) * k.unit)


SOURCE = "@wan2025pipeoffload"


@register(
    "gis",
    title="Interleaved 1F1B in the memory of 1F1B, backward split",
    year=2025,
    source=SOURCE,
    default_chunks=2,
    aliases=("group-interleaved",),
    constraints=(
        Constraint(
            "group_size",
            "a group_size from half of ranks to ranks",
            lambda k: k.group_size is None or _half(k) <= k.group_size <= k.ranks,
        ),
        Constraint(
            "microbatches",
            "microbatches in whole groups: a multiple of group_size (ranks, when not given)",
            lambda k: k.microbatches % group(k) == 0,
        ),
    ),
    forms=(
        makespan_is(
            "m·v(F + I + W) + (p − 1)(F + I)",
            holds=lambda k: group(k) == k.p,
            condition="no latency, g = p",
        ),
        makespan_is(
            "m·v(F + I + W) + (p − 1)(F + I) + (p − g)(v − 1)F",
            lambda k: _longer(k, group(k)),
            holds=lambda k: group(k) < k.p,
            condition="no latency, g < p, F = I = W",
        ),
        peak_is("(g(v − 1) + p)/v, capped by m", lambda k: _peak(k, group(k))),
    ),
)
def gis(
    *, ranks: int, microbatches: int, chunks: int, group_size: int | None = None
) -> Iterator[Program]:
    """Interleaved 1F1B with half its warm-up ramp and a split backward, W right after I.

    Rank r holds at most g(v − 1) + p chunks, M in all for g = p, where interleaved 1F1B holds
    p − 1 more. As the next rank waits for I only, the shorter ramp costs nothing. Smaller groups
    save memory for a longer warm-up.

    When to use it: several chunks in the memory of 1f1b and a backward that can be split, by a
    plain fixed order. For equal times it waits twice as long as interleaved-zb, with slow links
    hardly longer.

    p = 2, m = 4::

        r0 | F0 F1 f0 f1 .  i0 w0 F2 i1 w1 F3 I0 W0 f2 I1 W1 f3 i2 w2 .  i3 w3 I2 W2 I3 W3
        r1 | .  F0 F1 f0 i0 w0 f1 i1 w1 F2 I0 W0 F3 I1 W1 f2 i2 w2 f3 i3 w3 I2 W2 I3 W3 .
    """
    return trailing_weights(ranks, microbatches, chunks, group_size or ranks, lag=0)


@register(
    "gis-h",
    title="Group-interleaved with groups of half the ranks: about half the memory",
    year=2025,
    source=SOURCE,
    default_chunks=2,
    constraints=(
        Constraint(
            "microbatches",
            "microbatches in whole groups: a multiple of half of ranks, rounded up",
            lambda k: k.microbatches % _half(k) == 0,
        ),
    ),
    forms=(
        makespan_is(
            "m·v(F + I + W) + (p − 1)(F + I) + (p − g)(v − 1)F with g = ⌈p/2⌉",
            lambda k: _longer(k, _half(k)),
            condition="no latency, F = I = W",
        ),
        peak_is("(⌈p/2⌉(v − 1) + p)/v, capped by m", lambda k: _peak(k, _half(k))),
    ),
)
def gis_h(*, ranks: int, microbatches: int, chunks: int) -> Iterator[Program]:
    """GIS with groups of ⌈p/2⌉ microbatches, the smallest that keep every rank busy in between.

    Peak memory falls to ⌈p/2⌉(v − 1) + p chunks; filling takes (p − ⌈p/2⌉)(v − 1) forwards longer.

    When to use it: as gis, in less memory yet: with many chunks about half of it, for a longer
    warm-up.

    p = 3, m = 4::

        r0 | F0 F1 .  f0 f1 F2 .  .  i0 w0 F3 i1 w1 f2 I0 W0 f3 I1 W1 .  i2 w2 .  i3 w3 I2 W2 I3 W3
        r1 | .  F0 F1 .  f0 f1 .  i0 w0 F2 i1 w1 F3 I0 W0 f2 I1 W1 f3 i2 w2 .  i3 w3 I2 W2 I3 W3 .
        r2 | .  .  F0 F1 .  f0 i0 w0 f1 i1 w1 F2 I0 W0 F3 I1 W1 f2 i2 w2 f3 i3 w3 I2 W2 I3 W3 .  .
    """
    return trailing_weights(ranks, microbatches, chunks, (ranks + 1) // 2, lag=0)
