"""Interleaving over slices of sequences: Seq1F1B-I and its relatives; MEPipe splits backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from debubble.core.actions import Kind, Program
from debubble.core.sequence import moved
from debubble.schedules.interleaved import forwards_and_backwards
from debubble.schedules.looped import grouped_table, largest_group
from debubble.schedules.one_f_one_b import ramp, ramp_peaks
from debubble.schedules.registry import ClosedForm, Constraint, makespan_is, peak_is, register
from debubble.schedules.slices import CUT, alike, cut_of, same_size
from debubble.schedules.zero_bubble import split

MINDSPORE = "@mindspore"


def least_group(ranks: int, slices: int) -> int:
    """Return the microbatches with as many slices as ranks: fewer leave ranks waiting, or stuck."""
    return -(-ranks // slices)


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
            lambda k: k.group_size is None or k.group_size >= least_group(k.ranks, k.slices),
        ),
    ),
    forms=_forms(
        lambda k: k.group_size or least_group(k.ranks, k.slices), _pace, "min(v, 2)(p − 1 − r)",
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
    wanted = group_size or least_group(ranks, slices)
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
    forms=_forms(lambda k: least_group(k.ranks, k.slices), lambda _: 1, "p − 1 − r"),
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
    return _orders(ranks, microbatches, chunks, slices, least_group(ranks, slices), 1)


def _before_turn(microbatches: int, ranks: int, chunks: int, slices: int) -> int:
    """Return the forwards of the last rank up to and with the first slice that can come back."""
    return (chunks - 1) * largest_group(microbatches, least_group(ranks, slices)) * slices + slices


def _least(k: Any) -> int:
    return _before_turn(k.microbatches, k.ranks, k.chunks, k.slices)


def _in_flight(k: Any) -> int:
    return int(k.in_flight or _least(k) + k.ranks - 1)


@register(
    "mepipe",
    title="Split backward over slices and chunks, as many units in flight as memory allows",
    year=2025,
    source="@sun2025mepipe (SVPP)",
    default_chunks=2,
    aliases=("svpp",),
    constraints=(
        Constraint(
            "in_flight",
            "an in_flight (slices of chunks on the first rank before its first backward) from what "
            "the last rank has to run before it can turn around, to 2(ranks − 1) more",
            lambda k: k.in_flight is None or 0 <= k.in_flight - _least(k) <= 2 * (k.ranks - 1),
        ),
    ),
    forms=(
        makespan_is(
            "m·v(F + I + W) + (p − 1)(F + I − W)/s",
            lambda k: k.m * k.v * k.s * (k.F + k.I + k.W) + (k.p - 1) * (k.F + k.I - k.W),
            holds=lambda k: (
                alike(k, Kind.F, Kind.I, Kind.W)
                and (k.m - 1) * k.s + 1 >= k.p
                and _in_flight(k) == _least(k) + k.p - 1
            ),
            condition="no latency, slices take the same time, W ≤ F and I, (m − 1)s + 1 ≥ p, "
            "in_flight left out",
        ),
        peak_is(
            "((v − 1)g + s + p − 1)/(v·s), g slices in a group, or in_flight/(v·s); capped by m",
            lambda k: min(_in_flight(k), k.m * k.v * k.s) * k.unit,
            condition="kept_for_weight = 1",
        ),
    ),
)
def mepipe(
    *, ranks: int, microbatches: int, chunks: int, slices: int = 4, in_flight: int | None = None
) -> Iterator[Program]:
    """Interleaved 1F1B over slices; the weights' part of the backward fills the gaps.

    Groups of at least p slices, whole microbatches of them, pass chunk after chunk and come back
    with chunks and slices in reverse. The first slice to come back is the last one of the first
    microbatch, after (v − 1)g + s forwards of the last rank, g slices in a group. Rank r runs
    x_r = ⌈x(p − 1 − r)/(p − 1)⌉ more, and its W trails I by x − x_r, so that no rank holds more
    than `in_flight` = (v − 1)g + s + x units.

    x = p − 1, the default, is the least that keeps every rank busy in between: the makespan is the
    work of a rank and (p − 1)(F + I − W)/s, at a memory of (v·max(p, s) + min(p, s) − 1)/(v·s)
    microbatches of a rank where s ≥ p, or s divides p and groups divide m. Fewer in flight save
    memory down to x = 0, where ranks wait for every slice to come back. More, up to 2(p − 1), hide
    latency and level out F, I and W that are not alike, as ZB-H2 does. MEPipe takes weights' parts
    apart into single matrix products and fits them into gaps as they come; here W is one action
    for a slice and has a fixed place.

    When to use it: long sequences in slices, a backward that can be split, fast links and little
    memory: at equal times and without latency no other here waits less. With latency it loses much;
    give `in_flight` more, or take seqpipe.

    p = 2, m = 1, s = 2::

        r0 | F0.0 F0.1 f0.0 f0.1 .    .    i0.1 w0.1 i0.0 w0.0 I0.1 W0.1 I0.0 W0.0
        r1 | .    F0.0 F0.1 f0.0 f0.1 i0.1 i0.0 w0.1 I0.1 w0.0 I0.0 W0.1 W0.0 .
    """
    table = grouped_table(microbatches, chunks, least_group(ranks, slices))
    forwards, backwards = forwards_and_backwards(table, ranks, chunks, slices)
    least = _before_turn(microbatches, ranks, chunks, slices)
    extra = ranks - 1 if in_flight is None else in_flight - least
    for rank in range(ranks):
        ahead = -(-extra * (ranks - 1 - rank) // max(ranks - 1, 1))
        yield split(moved(forwards, rank), moved(backwards, rank), least - 1 + ahead, extra - ahead)
