"""Looped placements between depth first and breadth first: how long a chunk keeps its turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from debubble.core.actions import Program
from debubble.core.sequence import backward, forward, moved, sequence
from debubble.schedules.interleaved import (
    FILL_AND_WORK,
    Table,
    forwards_and_backwards,
    in_two_sizes,
)
from debubble.schedules.one_f_one_b import ramp, ramp_peaks
from debubble.schedules.registry import Constraint, makespan_is, peak_is, register

TIME = makespan_is(FILL_AND_WORK, condition="no latency, m ≥ p")


@register(
    "looped-bfs",
    title="All microbatches through one chunk, then through the next: breadth first",
    year=2022,
    source="@lamypoirier2023breadth; @pytorch ScheduleLoopedBFS",
    default_chunks=2,
    aliases=("breadth-first", "loopedbfs"),
    forms=(TIME, peak_is("m")),
)
def looped_bfs(*, ranks: int, microbatches: int, chunks: int) -> Iterator[Program]:
    """Chunk after chunk runs all its forwards, then in reverse all its backwards.

    Every chunk's weights are needed in two stretches per iteration only, so that a sharded model
    gathers them twice and reduces their gradients once, behind the work of other chunks. Memory is
    GPipe's: every microbatch stays on every rank. Backwards take the microbatches in reverse.

    When to use it: weights that are sharded over replicas (FSDP, ZeRO-3) and have to be gathered
    for every change of chunk: here two stretches per chunk and step. Memory has to hold all
    microbatches, so recompute goes with it.

    p = 2, m = 3, B twice as long as F::

        r0 | F0 F1 F2 f0 f1 f2 .  .  .  b2--- b1--- b0--- B2--- B1--- B0---
        r1 | .  F0 F1 F2 f0 f1 f2 b2--- b1--- b0--- B2--- B1--- B0--- .  .
    """
    stages = ranks * np.arange(chunks)
    numbers = np.arange(microbatches)
    first = sequence(
        forward(np.repeat(stages, microbatches), np.tile(numbers, chunks)),
        backward(np.repeat(stages[::-1], microbatches), np.tile(numbers[::-1], chunks)),
    )
    for rank in range(ranks):
        yield moved(first, rank)


def group_sizes(microbatches: int, wanted: int) -> tuple[int, int]:
    """Return the size of the smaller groups, and how many have one more; at least `wanted` in each.

    As many groups as there can be, of sizes that differ by one at most, the larger ones first.
    """
    groups = max(1, microbatches // wanted)
    return divmod(microbatches, groups)


def grouped_table(microbatches: int, chunks: int, wanted: int) -> Table:
    """Return chunk and microbatch at every position, in the groups of :func:`group_sizes`."""
    size, larger = group_sizes(microbatches, wanted)
    return in_two_sizes(microbatches, chunks, larger * (size + 1), size + 1, size)


def largest_group(microbatches: int, wanted: int) -> int:
    """Return microbatches of the first group, which no other has more of."""
    size, larger = group_sizes(microbatches, wanted)
    return size + (larger > 0)


@register(
    "flexible-interleaved",
    title="Interleaved 1F1B for any number of microbatches",
    year=2024,
    source="@llama2024herd, section 3.3",
    default_chunks=2,
    aliases=("llama3-interleaved",),
    constraints=(
        Constraint(
            "group_size",
            "a group_size (microbatches a chunk handles in a row) of at least ranks",
            lambda k: k.group_size is None or k.group_size >= k.ranks,
        ),
    ),
    forms=(
        TIME,
        peak_is(
            "min((v − 1)g + 2(p − 1 − r) + 1, m·v)/v with g the largest group",
            lambda k: ramp_peaks(k, (k.v - 1) * largest_group(k.m, k.group_size or k.p), pace=2),
            condition="m ≥ p",
        ),
    ),
)
def flexible_interleaved(
    *, ranks: int, microbatches: int, chunks: int, group_size: int | None = None
) -> Iterator[Program]:
    """Groups of at least N microbatches pass chunk after chunk, for any N from p to m.

    N = p is depth first: the least memory. N = m is breadth first in its forwards: the fewest
    changes of chunk, and the most time to hide communication behind. What does not divide evenly is
    spread over the groups instead of forming a short one, which would leave ranks waiting or stuck.

    When to use it: several chunks and a number of microbatches that groups do not divide, or a
    choice between memory (small groups) and latency (large ones).

    p = 2, m = 3, B twice as long as F::

        r0 | F0 F1 F2 f0 f1 f2 .  b0--- .  b1--- .  b2--- B0--- B1--- B2---
        r1 | .  F0 F1 F2 f0 b0--- f1 b1--- f2 b2--- B0--- B1--- B2--- .  .
    """
    wanted = group_size or ranks
    table = grouped_table(microbatches, chunks, wanted)
    first, last = forwards_and_backwards(table, ranks, chunks)
    return ramp(ranks, first, last, (chunks - 1) * largest_group(microbatches, wanted), pace=2)


@register(
    "maxtext-circular",
    title="Chunk after chunk in lockstep, transfers behind a whole iteration",
    year=2024,
    source="@maxtext src/MaxText/layers/pipeline.py, pipeline_delay_activation_forwarding",
    default_chunks=2,
    aliases=("circular", "circular-pipeline"),
    constraints=(
        Constraint(
            "microbatches",
            "with several chunks at least as many microbatches as ranks, with delay twice as many",
            lambda k: k.chunks == 1 or k.microbatches >= (2 if k.delay else 1) * k.ranks,
        ),
    ),
    forms=(
        makespan_is(
            FILL_AND_WORK,
            condition="no latency",
            holds=lambda k: k.chunks == 1 or k.m >= k.p,
        ),
        makespan_is(
            "(m·v + p − 1)(F + B + 2c)",
            accuracy="upper bound",
            holds=lambda k: k.c > 0 and not k.delay,
            condition="in lockstep, latency between iterations",
        ),
        makespan_is(
            "(m·v + 2(p − 1))(F + B)",
            accuracy="upper bound",
            holds=lambda k: k.delay and 0 < k.c <= min(k.F, k.B),
            condition="in lockstep, latency hidden behind an iteration: c ≤ F and B",
        ),
        peak_is("m"),
    ),
)
def maxtext_circular(
    *, ranks: int, microbatches: int, chunks: int, delay: bool = False
) -> Iterable[Program]:
    """Rank r runs chunk q on microbatch k in iteration q·m + k + d·r, all ranks at the same time.

    A compiler for TPUs unrolls the loop: m·v + d(p − 1) iterations forward, and their reverse
    backward. With d = 1 every iteration ends in a transfer that all wait for. With the option
    `delay` d = 2: it runs alongside the next iteration, for p − 1 more of them each way, and
    several chunks need m ≥ 2p. The order of a rank is that of looped-bfs either way. Here it goes
    on as soon as its input is there, not when all others do: what lockstep takes is an upper bound,
    and for F = B = c exactly what `delay` takes.

    When to use it: to judge a job of MaxText, or whether delay pays there, which is when
    (m·v + p − 1)c is more than (p − 1)F. Where ranks need no lockstep, flexible-interleaved takes
    as long, or less, at a fraction of the memory.

    p = 2, m = 3, B twice as long as F::

        r0 | F0 F1 F2 f0 f1 f2 .  .  .  b2--- b1--- b0--- B2--- B1--- B0---
        r1 | .  F0 F1 F2 f0 f1 f2 b2--- b1--- b0--- B2--- B1--- B0--- .  .

    Parameters
    ----------
    delay
        Send alongside the next iteration.
    """
    del delay  # moves no action; the time of lockstep depends on it
    return looped_bfs(ranks=ranks, microbatches=microbatches, chunks=chunks)
