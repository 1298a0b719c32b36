"""1F1B, eager or with overlapped pairs: alternate one forward and one backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from debubble.core.actions import PAIR_SHIFT, Program
from debubble.core.sequence import backward, forward, moved
from debubble.schedules.registry import makespan_is, peak_is, register

FILL_AND_WORK = "(m + p − 1)(F + B)"


def warm_alternate_drain(
    forwards: Program, backwards: Program, warm_up: int, together: bool = False
) -> Program:
    """Return `warm_up` forwards, then forward and backward in turn, then the other backwards.

    With `together` a forward and the backward after it are an overlapped pair.
    """
    count = len(forwards)
    warm_up = min(warm_up, count)
    drain = 2 * count - warm_up
    program = np.empty(2 * count, dtype=np.int64)
    program[:warm_up] = forwards[:warm_up]
    program[warm_up:drain:2] = forwards[warm_up:]
    program[warm_up + 1 : drain : 2] = backwards[: count - warm_up]
    program[drain:] = backwards[count - warm_up :]
    if together:
        program[warm_up:drain:2] |= 1 << PAIR_SHIFT
        program[warm_up + 1 : drain : 2] |= 2 << PAIR_SHIFT
    return program


def ramp(
    ranks: int, forwards: Program, backwards: Program, least: int, pace: int, together: bool = False
) -> Iterator[Program]:
    """Yield rank 0's forwards and backwards on every rank, with warm-ups that shrink.

    The last rank has `least` forwards of warm-up, every rank `pace` more than the next.
    """
    for rank in range(ranks):
        warm_up = least + pace * (ranks - 1 - rank)
        yield moved(warm_alternate_drain(forwards, backwards, warm_up, together), rank)


def ramp_peaks(k: Any, least: int, pace: int) -> list[float]:
    """Return activations per rank under :func:`ramp`: its warm-up and one more, at most all."""
    counts = (least + pace * (k.p - 1 - rank) + 1 for rank in range(k.p))
    return [min(count, k.m * k.v * k.s) * k.unit for count in counts]


def one_stage_per_rank(
    ranks: int, microbatches: int, least: int, pace: int, together: bool = False
) -> Iterator[Program]:
    """Yield the programs of :func:`ramp` with one stage on every rank."""
    numbers = range(microbatches)
    return ramp(ranks, forward(0, numbers), backward(0, numbers), least, pace, together)


@register(
    "1f1b",
    title="One forward, one backward",
    year=2019,
    source="@fan2021dapple; PipeDream-Flush: @narayanan2021memory",
    chunks=1,
    aliases=("pipedream-flush", "dapple"),
    forms=(
        makespan_is(FILL_AND_WORK, condition="no latency"),
        makespan_is(
            f"{FILL_AND_WORK} + 2c((p − 1)m/p + p − 2)",
            holds=lambda k: 0 < k.c <= min(k.F, k.B) / 2 and k.m % k.p == 0 and k.p > 1,
            condition="p divides m, small latency: only p − r microbatches may be in flight, so "
            "a round trip is paid once per p microbatches",
        ),
        peak_is("min(p − r, m)"),
    ),
)
def one_f_one_b(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """Rank r starts with p − 1 − r forwards, then alternates, then drains.

    At most p − r microbatches are in flight on rank r, whatever their number: the time of GPipe at
    a memory that does not grow with m.

    When to use it: one stage per rank, and a backward that cannot be split. It sends the least,
    every framework runs it, and other schedules are measured by it. With memory to spare several
    chunks (interleaved-1f1b) have a smaller bubble; with slow links eager-1f1b has.

    p = 4, m = 6, B twice as long as F::

        r0 | F0 F1 F2 F3 .  .  .  .  .  .  B0--- F4 B1--- F5 B2--- .  B3--- .  B4--- .  B5---
        r1 | .  F0 F1 F2 .  .  .  .  B0--- F3 B1--- F4 B2--- F5 B3--- .  B4--- .  B5--- .  .
        r2 | .  .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- .  B5--- .  .  .  .
        r3 | .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- .  .  .  .  .  .
    """
    return one_stage_per_rank(ranks, microbatches, least=0, pace=1)


@register(
    "eager-1f1b",
    title="1F1B with twice the warm-up, hides latency",
    year=2022,
    source="@zhuang2023optimizing",
    chunks=1,
    forms=(
        makespan_is(
            f"{FILL_AND_WORK} + 2(p − 1)c",
            holds=lambda k: 2 * k.c <= k.F + k.B,
            condition="2c ≤ F + B",
        ),
        peak_is("min(2(p − r) − 1, m)"),
    ),
)
def eager_1f1b(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """Rank r starts with 2(p − 1 − r) forwards, so that results are there before they are needed.

    Up to 2(p − r) − 1 microbatches in flight buy that a round trip of latency is paid once, not
    once per p microbatches.

    When to use it: one stage per rank, whole backwards, slow links, and room for nearly twice as
    many activations as 1f1b's. Without latency it gains nothing.

    p = 4, m = 6, B twice as long as F::

        r0 | F0 F1 F2 F3 F4 F5 .  .  .  .  B0--- .  B1--- .  B2--- .  B3--- .  B4--- .  B5---
        r1 | .  F0 F1 F2 F3 F4 .  .  B0--- F5 B1--- .  B2--- .  B3--- .  B4--- .  B5--- .  .
        r2 | .  .  F0 F1 F2 .  B0--- F3 B1--- F4 B2--- F5 B3--- .  B4--- .  B5--- .  .  .  .
        r3 | .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- .  .  .  .  .  .
    """
    return one_stage_per_rank(ranks, microbatches, least=0, pace=2)


@register(
    "1f1b-overlap",
    title="1F1B with forward and backward executed together",
    year=2025,
    source="@megatron, combined 1F1B for expert-parallel overlap",
    chunks=1,
    forms=(
        makespan_is("p(F + B) + (m − 1)·O", condition="no latency, m ≥ 2p − 1, O ≥ F and O ≥ B"),
        peak_is("min(2(p − r), m)"),
    ),
)
def overlapped_1f1b(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """Rank r starts with 2(p − 1 − r) + 1 forwards, then runs a forward and a backward together.

    Twice the warm-up of 1F1B makes the two halves of a pair independent of each other, so that the
    communication of one can hide behind the computation of the other.

    When to use it: experts with one stage per rank, whose all-to-all hides behind another
    microbatch's computing, and room for twice the activations of 1f1b. Give the time of a pair, O,
    or `overlap_factor`: without one there is nothing to gain.

    p = 3, m = 6, B twice as long as F::

        r0 | F0 F1 F2 F3 F4 .  .  .  .  F5------ B1--- .  B2--- B3--- .  B4--- B5---
           |                            B0------
        r1 | .  F0 F1 F2 .  .  F3------ F4------ F5------ B3--- .  B4--- B5--- .  .
           |                   B0------ B1------ B2------
        r2 | .  .  F0 F1------ F2------ F3------ F4------ F5------ B5--- .  .  .  .
           |          B0------ B1------ B2------ B3------ B4------
    """
    return one_stage_per_rank(ranks, microbatches, least=1, pace=2, together=True)
