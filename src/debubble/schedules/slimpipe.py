"""SlimPipe: 1F1B over equal slices whose attention the ranks share out evenly."""

from __future__ import annotations

from collections.abc import Iterator

from debubble.core.actions import Kind, Program
from debubble.schedules._slices import alike, microbatch_by_microbatch
from debubble.schedules.one_f_one_b import ramp, ramp_peaks
from debubble.schedules.registry import Constraint, makespan_is, peak_is, register


@register(
    "slimpipe",
    title="1F1B over equal slices of every sequence, attention evened out over ranks",
    year=2025,
    source="@li2025slimpipe",
    exchange=lambda k: k.exchange and k.slices > 1,
    constraints=(
        Constraint(
            "slices",
            "at least as many slices as ranks where there are several chunks, so that a slice is "
            "back on a rank when its next chunk has its turn",
            lambda k: k.chunks == 1 or k.slices >= k.ranks,
        ),
    ),
    forms=(
        makespan_is(
            "(m·v·s + p − 1)(F + B)/s, exchange counted in F and B",
            lambda k: (k.m * k.v * k.s + k.p - 1) * (k.F + k.B),
            holds=lambda k: alike(k, Kind.F, Kind.B),
            condition="no latency, slices take the same time",
        ),
        peak_is(
            "1 + 2(p − 1 − r)/(v·s), capped by m", lambda k: ramp_peaks(k, k.v * k.s - 1, pace=2)
        ),
    ),
)
def slimpipe(
    *,
    ranks: int,
    microbatches: int,
    chunks: int,
    slices: int = 4,
    exchange: bool = True,  # noqa: ARG001 - changes no order; a field of the schedule
) -> Iterator[Program]:
    """Rank r starts with v·s − 1 + 2(p − 1 − r) forwards of slices, then alternates, then drains.

    The slices of a microbatch pass one chunk after the other, and come back in reverse: the last
    rank turns around after v·s forwards, and every rank before it is two ahead of the next, which
    hides latency. A unit is a share 1/(v·s) of a rank's microbatch, so that rank r holds
    1 + 2(p − 1 − r)/(v·s) of them: with p ranks that is a p-th of the model's activations for one
    microbatch, and little more. Fill and drain take (p − 1)(F + B)/(v·s) of a microbatch's times.

    Equal slices take equal memory and messages, but later ones more attention. SlimPipe evens it
    out: ranks that hold a later slice send queries, or keys and values, to ranks that hold an
    earlier one. The model here: with ``exchange`` every slice does the mean share of the
    attention, and each action takes its share of the cost ``exchange`` longer, I and B twice that.
    In truth ranks are level among each other at any time while the level itself goes up and down
    with the slices that are in flight; the sum over a microbatch is the same.

    When to use it: sequences so long that one microbatch alone is nearly too much: activations
    shrink with the number of ranks, and attention is evened out over them. Needs links that carry
    keys and values.

    p = 2, m = 2, s = 2, B twice as long as F::

        r0 | F0.0 F0.1 F1.0 F1.1 .    B0.1----- .    B0.0----- .    B1.1----- B1.0-----
        r1 | .    F0.0 F0.1 B0.1----- F1.0 B0.0----- F1.1 B1.1----- B1.0----- .    .
    """
    forwards, backwards = microbatch_by_microbatch(ranks, microbatches, chunks, slices)
    return ramp(ranks, forwards, backwards, least=chunks * slices - 1, pace=2)
