"""MEPipe: slices, chunks and split backward together, with a chosen number of units in flight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from debubble.core.actions import Kind, Program
from debubble.core.sequence import moved
from debubble.schedules.interleaved import forwards_and_backwards
from debubble.schedules.looped import grouped_table, largest_group
from debubble.schedules.registry import Constraint, makespan_is, peak_is, register
from debubble.schedules.slices import alike
from debubble.schedules.zero_bubble import split


def _before_turn(microbatches: int, ranks: int, chunks: int, slices: int) -> int:
    """Return the forwards of the last rank up to and with the first slice that can come back."""
    return (chunks - 1) * largest_group(microbatches, -(-ranks // slices)) * slices + slices


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
    size = -(-ranks // slices)
    table = grouped_table(microbatches, chunks, size)
    forwards, backwards = forwards_and_backwards(table, ranks, chunks, slices)
    least = _before_turn(microbatches, ranks, chunks, slices)
    extra = ranks - 1 if in_flight is None else in_flight - least
    for rank in range(ranks):
        ahead = -(-extra * (ranks - 1 - rank) // max(ranks - 1, 1))
        yield split(moved(forwards, rank), moved(backwards, rank), least - 1 + ahead, extra - ahead)
