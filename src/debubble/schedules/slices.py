"""One chunk or microbatch after the other, over sequence slices: Seq1F1B, TeraPipe, SlimPipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, Program
from debubble.core.costs import Costs
from debubble.core.placement import Placement
from debubble.core.sequence import as_kind, interleaved_table, moved, sequence
from debubble.core.slicing import even_cut
from debubble.schedules.interleaved import forwards_and_backwards
from debubble.schedules.one_f_one_b import ramp, ramp_peaks
from debubble.schedules.registry import Constraint, makespan_is, peak_is, register

CUTS = ("flops", "tokens")

CUT = Constraint(
    "cut", "a cut into slices of the same 'flops' or 'tokens'", lambda k: k.cut in CUTS
)


def microbatch_by_microbatch(
    ranks: int, microbatches: int, chunks: int, slices: int
) -> tuple[Program, Program]:
    """Return forwards and backwards of rank 0, each microbatch through all chunks in turn."""
    table = interleaved_table(microbatches, chunks, 1)
    return forwards_and_backwards(table, ranks, chunks, slices)


def cut_of(case: Any) -> tuple[float, ...]:
    """Return the share of the tokens in each slice; empty for equal slices.

    Slices of the same flops take the same time forwards, summed over all stages, by the case's
    costs: without attention they are equal.
    """
    if case.cut == "tokens" or case.slices == 1:
        return ()
    costs = case.costs or Costs()
    return even_cut(Placement.loop(case.ranks, case.chunks), case.slices, costs)


def alike(case: Any, *kinds: Kind) -> bool:
    """Return whether actions of these kinds take the same time for all slices."""
    times = case.table.duration[list(kinds)]
    return bool(np.allclose(times, times[:, :1], rtol=1e-9, atol=0))


def same_size(case: Any) -> bool:
    """Return whether all slices leave the same memory."""
    return bool(np.allclose(case.table.activation, case.unit, rtol=1e-9, atol=0))


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


def _of_slices(k: Any, kind: Kind) -> NDArray[np.float64]:
    times: NDArray[np.float64] = k.table.duration[kind].reshape(k.s, k.p)[:, 0]
    return times


def _flow(k: Any) -> float:
    passes = (_of_slices(k, Kind.F), _of_slices(k, Kind.B))
    return float(sum(k.m * times.sum() + (k.p - 1) * times.max() for times in passes))


@register(
    "terapipe",
    title="All forwards, then all backwards, over slices of every sequence",
    year=2021,
    source="@li2021terapipe",
    chunks=1,
    cut=cut_of,
    constraints=(CUT,),
    forms=(
        makespan_is(
            "m(F + B) + (p − 1)(max F + max B), each the longest slice's",
            _flow,
            condition="no latency",
        ),
        peak_is("m", lambda k: k.m * k.table.activation[:: k.p].sum()),
    ),
)
def terapipe(
    *,
    ranks: int,
    microbatches: int,
    slices: int = 4,
    cut: str = "flops",  # noqa: ARG001 - where to cut changes no order; cut_of reads it
) -> Iterator[Program]:
    """Every rank runs the forwards of all slices, then all backwards in reverse.

    As GPipe with s times as many units: fill and drain shrink by s, memory stays at all
    microbatches. Both passes are flow shops whose stages are alike, which take Σt + (p − 1) max t
    over all units.

    TeraPipe searches the lengths of the slices for the least Σt + (p − 1) max t with a dynamic
    program. Here a slice takes time in proportion to its work, so that Σt is the same for every
    cut and the best of s slices is the one with the smallest max t: ``cut="flops"``, where all
    take the same time. ``cut="tokens"`` makes all slices equally long.

    When to use it: long sequences in so few microbatches that memory holds them all. seq1f1b has as
    small a bubble in the memory of little more than one microbatch; with slow links terapipe is
    faster, as it pays latency once each way.

    p = 2, m = 2, s = 2, B twice as long as F::

        r0 | F0.0 F0.1 F1.0 F1.1 .    .    .    B1.1----- B1.0----- B0.1----- B0.0-----
        r1 | .    F0.0 F0.1 F1.0 F1.1 B1.1----- B1.0----- B0.1----- B0.0----- .    .
    """
    forwards, _ = microbatch_by_microbatch(ranks, microbatches, 1, slices)
    both = sequence(forwards, as_kind(forwards[::-1], Kind.B))
    for rank in range(ranks):
        yield moved(both, rank)


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
