"""1F1B over sequence slices: less fill and drain, less memory, for long sequences."""

from __future__ import annotations

from collections.abc import Iterator

from debubble.core.actions import Kind, Program
from debubble.schedules._slices import CUT, alike, cut_of, microbatch_by_microbatch, same_size
from debubble.schedules.one_f_one_b import ramp, ramp_peaks
from debubble.schedules.registry import makespan_is, peak_is, register


@register(
    "seq1f1b",
    title="1F1B over slices of every sequence",
    year=2024,
    source="@sun2025seq1f1b",
    chunks=1,
    cut=cut_of,
    constraints=(CUT,),
    forms=(
        makespan_is(
            "(m·s + p − 1)(F + B)/s",
            lambda k: (k.m * k.s + k.p - 1) * (k.F + k.B),
            holds=lambda k: alike(k, Kind.F, Kind.B),
            condition="no latency, slices take the same time",
        ),
        peak_is(
            "min(s + p − 1 − r, m·s)/s",
            lambda k: ramp_peaks(k, k.s - 1, pace=1),
            holds=same_size,
            condition="slices of the same length",
        ),
    ),
)
def seq1f1b(
    *,
    ranks: int,
    microbatches: int,
    slices: int = 4,
    cut: str = "flops",  # noqa: ARG001 - where to cut changes no order; cut_of reads it
) -> Iterator[Program]:
    """Rank r starts with s + p − 2 − r forwards of slices, then alternates, then drains.

    Causal attention fixes the order within a microbatch: a slice's forward needs the keys and
    values of the slices before it, its backward the gradients that the slices after it leave for
    them. So forwards take the slices in order and backwards in reverse, and the last rank can turn
    around after a whole microbatch, s slices, where 1F1B turns around after one unit. A unit is s
    times smaller than there: fill and drain take (p − 1)(F + B)/s of a microbatch's times, and at
    most s + p − 1 − r slices are in flight on rank r, little more than one microbatch.

    Attention makes later slices longer. ``cut="flops"`` shortens them until all take the same
    time, ``cut="tokens"`` makes all slices equally long.

    When to use it: sequences so long that the activations of p microbatches do not fit, in slices
    that still fill a device. Links have to be fast: a round trip is paid for every few slices. With
    several chunks see seq1f1b-interleaved.

    p = 2, m = 2, s = 2, B twice as long as F::

        r0 | F0.0 F0.1 F1.0 .    .    B0.1----- F1.1 B0.0----- .    B1.1----- B1.0-----
        r1 | .    F0.0 F0.1 B0.1----- F1.0 B0.0----- F1.1 B1.1----- B1.0----- .    .
    """
    forwards, backwards = microbatch_by_microbatch(ranks, microbatches, 1, slices)
    return ramp(ranks, forwards, backwards, least=slices - 1, pace=1)
