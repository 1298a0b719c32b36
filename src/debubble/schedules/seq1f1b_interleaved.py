"""Interleaved 1F1B over slices of sequences, with a full backward: Seq1F1B-I and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from debubble.core.actions import Kind, Program
from debubble.schedules.interleaved import forwards_and_backwards
from debubble.schedules.looped import grouped_table, largest_group
from debubble.schedules.one_f_one_b import ramp, ramp_peaks
from debubble.schedules.registry import ClosedForm, Constraint, makespan_is, peak_is, register
from debubble.schedules.slices import CUT, alike, cut_of, same_size

MINDSPORE = "@mindspore"


def least_group(case: Any) -> int:
    """Return the microbatches with as many slices as ranks: fewer leave ranks waiting, or stuck."""
    return -int(-case.ranks // case.slices)


def _orders(
    ranks: int, microbatches: int, chunks: int, slices: int, wanted: int, pace: int
) -> Iterator[Program]:
    """Yield programs in groups of `wanted` or more; rank r warms up `pace` more than r + 1."""
    table = grouped_table(microbatches, chunks, wanted)
    forwards, backwards = forwards_and_backwards(table, ranks, chunks, slices)
    least = (chunks - 1) * largest_group(microbatches, wanted) * slices + slices - 1
    return ramp(ranks, forwards, backwards, least, pace)


def _forms(
    wanted: Callable[[Any], int], pace: Callable[[Any], int], steps: str
) -> tuple[ClosedForm, ...]:
    """Return closed forms for groups of at least `wanted` microbatches and a `pace` of warm-up."""

    def held(k: Any) -> list[float]:
        least = (k.v - 1) * largest_group(k.m, wanted(k)) * k.s + k.s - 1
        return ramp_peaks(k, least, pace(k))

    return (
        makespan_is(
            "m·v(F + B) + (p − 1)(F + B)/s",
            lambda k: (k.m * k.v * k.s + k.p - 1) * (k.F + k.B),
            holds=lambda k: alike(k, Kind.F, Kind.B) and k.m * k.s >= k.p,
            condition="no latency, slices take the same time, m·s ≥ p",
        ),
        peak_is(
            f"min((v − 1)g·s + {steps} + s, m·v·s)/(v·s) with g the largest group",
            held,
            holds=same_size,
            condition="slices of the same length",
        ),
    )


def _pace(case: Any) -> int:
    return min(int(case.chunks), 2)


@register(
    "seq1f1b-interleaved",
    title="Interleaved 1F1B over slices of every sequence",
    year=2024,
    source="@sun2025seq1f1b; @megatron chunked pipeline parallelism (pull request 3116); seqvpp in "
    f"{MINDSPORE}",
    default_chunks=2,
    aliases=("seq1f1b-i", "seqvpp", "chunked-pp"),
    cut=cut_of,
    constraints=(
        CUT,
        Constraint(
            "group_size",
            "a group_size (microbatches a chunk handles in a row) with at least as many slices as "
            "there are ranks",
            lambda k: k.group_size is None or k.group_size >= least_group(k),
        ),
    ),
    forms=_forms(
        lambda k: k.group_size or least_group(k), _pace, "min(v, 2)(p − 1 − r)",
    ),
)  # fmt: skip
def seq1f1b_interleaved(
    *,
    ranks: int,
    microbatches: int,
    chunks: int,
    slices: int = 4,
    group_size: int | None = None,
    cut: str = "flops",  # noqa: ARG001 - where to cut changes no order; cut_of reads it
) -> Iterator[Program]:
    """Groups of g microbatches, at least p slices, pass chunk after chunk, slice by slice.

    Forwards take the chunks and in them the slices in order, backwards both in reverse. Rank r
    warms up with (v − 1)g·s + 2(p − 1 − r) + s − 1 slices of chunks (one chunk: p − 1 − r), then
    alternates. Bubble and memory are those of interleaved 1F1B with s times smaller units: with
    s ≥ p a group is one microbatch, and rank 0 holds 1 + 2(p − 1)/(v·s) microbatches.

    When to use it: sequences so long that a microbatch is one sequence, and memory is tight. The
    fewer microbatches there are, the more it gains over interleaved-1f1b. mepipe is this with a
    split backward; seqpipe has larger groups, for latency; seqsmartvpp half the ramp, for memory.

    Groups are ⌈p/s⌉ microbatches. Rounded down, as in MindSpore, they lack slices where s does not
    divide p: with p = 5 and s = 2 the bubble grows with m, with p = 6 and s = 4 it is a deadlock.

    p = 2, m = 1, s = 2, B twice as long as F::

        r0 | F0.0 F0.1 f0.0 f0.1 .    .    .    b0.1----- b0.0----- B0.1----- B0.0-----
        r1 | .    F0.0 F0.1 f0.0 f0.1 b0.1----- b0.0----- B0.1----- B0.0----- .    .

    Parameters
    ----------
    group_size
        Microbatches g that a chunk handles in a row, ⌈p/s⌉ if not given. What does not divide
        evenly is spread over the groups.
    """
    wanted = group_size or -(-ranks // slices)
    return _orders(ranks, microbatches, chunks, slices, wanted, min(chunks, 2))


@register(
    "seqpipe",
    title="Interleaved 1F1B over slices, in groups of p microbatches",
    year=2025,
    source=MINDSPORE,
    default_chunks=2,
    cut=cut_of,
    constraints=(CUT,),
    forms=_forms(lambda k: k.ranks, _pace, "min(v, 2)(p − 1 − r)"),
)
def seqpipe(
    *,
    ranks: int,
    microbatches: int,
    chunks: int,
    slices: int = 4,
    cut: str = "flops",  # noqa: ARG001 - as above
) -> Iterator[Program]:
    """A chunk handles p microbatches in a row, as in interleaved 1F1B, each slice by slice.

    The bubble is that of seq1f1b-interleaved; (v − 1)p whole microbatches of a chunk stay on every
    rank, so that slices save little memory.

    When to use it: when changes of chunk are dear, as with sharded weights that have to be
    gathered for each, and memory for the activations of interleaved 1F1B is there.

    Rank 0 with p = 2, m = 2, s = 2::

        F0.0 F0.1 F1.0 F1.1 f0.0 f0.1 f1.0 f1.1 b0.1 b0.0 b1.1 b1.0 B0.1 B0.0 B1.1 B1.0
    """
    return _orders(ranks, microbatches, chunks, slices, ranks, min(chunks, 2))


@register(
    "seqsmartvpp",
    title="Interleaved 1F1B over slices with half its ramp",
    year=2025,
    source=MINDSPORE,
    default_chunks=2,
    cut=cut_of,
    constraints=(CUT,),
    forms=_forms(least_group, lambda _: 1, "p − 1 − r"),
)
def seqsmartvpp(
    *,
    ranks: int,
    microbatches: int,
    chunks: int,
    slices: int = 4,
    cut: str = "flops",  # noqa: ARG001 - as above
) -> Iterator[Program]:
    """Rank r warms up with one more slice than its neighbor, not two: p − 1 units less on rank 0.

    Without latency it is as fast as seq1f1b-interleaved. With latency every group pays for it
    again: on 8 ranks with 2 chunks, 16 microbatches of 4 slices and a fifth of a slice's F for a
    transfer, ranks wait 67.4 instead of 27 of these.

    When to use it: when memory decides, and transfers are hidden or take next to nothing.

    Rank 0 with p = 2, m = 2, s = 2::

        F0.0 F0.1 f0.0 f0.1 F1.0 b0.1 F1.1 b0.0 f1.0 B0.1 f1.1 B0.0 b1.1 b1.0 B1.1 B1.0
    """
    return _orders(ranks, microbatches, chunks, slices, -(-ranks // slices), 1)
