"""Interleaved 1F1B: several chunks per rank, depth first, plain and with overlapped pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.core.sequence import backward, forward, interleaved_table
from debubble.schedules.one_f_one_b import ramp, ramp_peaks
from debubble.schedules.registry import Constraint, makespan_is, peak_is, register

Table: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Chunk and microbatch at every position of an interleaved order."""

FILL_AND_WORK = "(m·v + p − 1)(F + B)"


def forwards_and_backwards(
    table: Table, ranks: int, chunks: int, slices: int = 1
) -> tuple[Program, Program]:
    """Return all forwards and all backwards of rank 0, every entry of the table slice by slice.

    Backwards take the chunks and the slices in reverse.
    """
    chunk, number = table
    part = np.arange(slices)
    first = number[:, None] * slices
    return (
        forward(np.repeat(chunk, slices) * ranks, (first + part).ravel()),
        backward(np.repeat(chunks - 1 - chunk, slices) * ranks, (first + part[::-1]).ravel()),
    )


def in_two_sizes(microbatches: int, chunks: int, split: int, first: int, then: int) -> Table:
    """Return chunk and microbatch by position: `split` groups of one size, then another."""
    chunk, number = (
        np.concatenate(parts)
        for parts in zip(
            interleaved_table(split, chunks, first),
            interleaved_table(microbatches - split, chunks, then),
            strict=True,
        )
    )
    number[split * chunks :] += split
    return chunk, number


def group(case: Any) -> int:
    """Return the group size of a case, as many microbatches as ranks when not given."""
    return int(case.group_size or case.ranks)


def _whole_groups(case: Any) -> bool:
    left_over = int(case.microbatches) % group(case)
    return left_over == 0 or left_over >= int(case.ranks)


def _other_group(case: Any) -> str:
    """Return the smallest group size that suits the microbatches, as text; empty for none."""
    sizes = range(case.ranks, min(case.microbatches, 4 * case.ranks) + 1)
    left_over = ((size, case.microbatches % size) for size in sizes)
    fits = next((size for size, left in left_over if left == 0 or left >= case.ranks), None)
    return f"--group-size {fits}" if fits else ""


def _short_group_runs(case: Any) -> bool:
    """Return whether a last group smaller than the number of ranks is no deadlock.

    With one group every forward is warm-up. Behind others, rank 0 pairs the last group's forwards
    with backwards that the last rank has before it needs them; too small a group comes too early.
    """
    rest = case.microbatches % group(case)
    return bool(
        case.microbatches < group(case)
        or case.chunks == 1
        or (case.chunks == 2 and rest == 1)
        or rest >= 2 * case.ranks - 2 - group(case)
    )


def _constraints(*, relaxed: bool) -> tuple[Constraint, ...]:
    """Return Megatron-LM's constraints on groups, which the option `short_last_group` may relax."""
    whole = "microbatches in groups of group_size, with none or at least `ranks` left over"
    whole += " (some others run with the option short_last_group=true)" if relaxed else ""
    any_group = "'flexible-interleaved'" if relaxed else ""

    def holds(case: Any) -> bool:
        short = relaxed and case.short_last_group and _short_group_runs(case)
        return _whole_groups(case) or short

    def instead(case: Any) -> str:
        return " or ".join(text for text in (_other_group(case), any_group) if text)

    return (
        Constraint(
            "group_size",
            "a group_size (microbatches a chunk handles in a row) from ranks to microbatches",
            lambda k: k.group_size is None or k.ranks <= k.group_size <= k.microbatches,
            lambda k: any_group,  # noqa: ARG005 - the same for every case
        ),
        Constraint(
            "microbatches",
            whole,
            holds,
            instead,
        ),
    )


@register(
    "interleaved-1f1b",
    title="1F1B over several chunks per rank, depth first",
    year=2021,
    source="@narayanan2021efficient",
    default_chunks=2,
    aliases=("interleaved", "vpp", "megatron-interleaved"),
    constraints=_constraints(relaxed=True),
    forms=(
        makespan_is(
            FILL_AND_WORK,
            holds=lambda k: k.m % group(k) == 0 or not k.short_last_group,
            condition="no latency, no short group",
        ),
        peak_is(
            "min((v − 1)g + 2(p − 1 − r) + 1, m·v)/v",
            lambda k: ramp_peaks(k, (k.v - 1) * group(k), pace=2),
        ),
    ),
)
def interleaved_1f1b(
    *,
    ranks: int,
    microbatches: int,
    chunks: int,
    group_size: int | None = None,
    short_last_group: bool = False,  # noqa: ARG001 - loosens a constraint
) -> Iterator[Program]:
    """Every rank holds v chunks of the model; groups of g microbatches pass chunk after chunk.

    The bubble is v times smaller than 1F1B's; memory and communication are larger. A larger group
    hides more latency and keeps more activations. Rank r warms up with 2(p − 1 − r) + (v − 1)g
    chunk forwards.

    When to use it: whole backwards, links that bear v times the messages, and memory for up to 1 +
    (p − 1)/(p·v) times what 1f1b holds. Where the backward can be split, interleaved-zb and zb-v
    wait less, in the memory of 1f1b.

    p = 2, m = 4, B twice as long as F::

        r0 | F0 F1 f0 f1 F2 .  b0--- F3 b1--- f2 B0--- f3 B1--- .  b2--- .  b3--- B2--- B3---
        r1 | .  F0 F1 f0 b0--- f1 b1--- F2 B0--- F3 B1--- f2 b2--- f3 b3--- B2--- B3--- .  .

    Parameters
    ----------
    group_size
        Microbatches g that a chunk handles in a row, as many as ranks if not given.
    short_last_group
        Take microbatches left over as a last group of their own also where they are fewer than
        ranks, as tools of the past did, unless that is a deadlock. It is slow: ranks wait for the
        end of the group before. flexible-interleaved has the better order, for any number.
    """
    return _groups(ranks, microbatches, chunks, group_size or ranks)


def _groups(
    ranks: int, microbatches: int, chunks: int, size: int, together: bool = False
) -> Iterator[Program]:
    """Yield programs in groups of a size; overlapped pairs take one more forward of warm-up."""
    table = interleaved_table(microbatches, chunks, size)
    first, last = forwards_and_backwards(table, ranks, chunks)
    return ramp(ranks, first, last, (chunks - 1) * size + together, pace=2, together=together)


def _overlapped_time(k: Any) -> float:
    alone = k.p * (k.v - 1) + 1
    return float((k.p - 1 + alone) * (k.F + k.B) + (k.m * k.v - alone) * k.O)


@register(
    "interleaved-overlap",
    title="Interleaved 1F1B with forward and backward executed together",
    year=2025,
    source="@megatron, --overlap-moe-expert-parallel-comm (combined 1F1B)",
    default_chunks=2,
    aliases=("interleaved-1f1b-overlap",),
    constraints=_constraints(relaxed=False),
    forms=(
        makespan_is(
            "(p − 1 + n)(F + B) + (m·v − n)·O with n = p(v − 1) + 1",
            _overlapped_time,
            holds=lambda k: group(k) == k.p and k.m > k.p,
            condition="no latency, g = p, m > p, O ≥ F and O ≥ B",
        ),
        peak_is(
            "min((v − 1)g + 2(p − r), m·v)/v",
            lambda k: ramp_peaks(k, (k.v - 1) * group(k) + 1, pace=2),
        ),
    ),
)
def interleaved_overlap(
    *, ranks: int, microbatches: int, chunks: int, group_size: int | None = None
) -> Iterator[Program]:
    """Interleaved 1F1B with one more warm-up forward, so that steady pairs can be overlapped.

    The forward and the backward of a steady pair belong to different microbatches and do not wait
    for each other: expert all-to-all of one hides behind the computation of the other.

    When to use it: experts with several chunks per rank, whose all-to-all hides behind another
    microbatch's computing: what Megatron-LM runs for `--overlap-moe-expert-parallel-comm`. It needs
    no split backward, and one chunk more memory than interleaved-1f1b.

    p = 2, m = 4, B twice as long as F::

        r0 | F0 F1 f0 f1 F2 .  .  F3------ f2------ f3------ B1--- .  b2--- b3--- B2--- B3---
           |                      b0------ b1------ B0------
        r1 | .  F0 F1 f0 f1------ F2------ F3------ f2------ f3------ b3--- B2--- B3--- .  .
           |             b0------ b1------ B0------ B1------ b2------
    """
    return _groups(ranks, microbatches, chunks, group_size or ranks, together=True)


GROUPS = ("paddle", "one", "larger-first")


def _is_balanced(ranks: int, microbatches: int, groups: str) -> bool:
    return groups == "one" or (groups == "paddle" and microbatches < 2 * ranks)


def _first_group(ranks: int, microbatches: int, groups: str) -> tuple[int, int]:
    """Return the size of the first group, and how many forwards a rank is ahead of the next."""
    if _is_balanced(ranks, microbatches, groups):
        return microbatches, 1
    return ranks + microbatches % ranks, 2


def _peak(k: Any) -> list[float]:
    size, pace = _first_group(k.ranks, k.microbatches, k.groups)
    return ramp_peaks(k, (k.v - 1) * size, pace)


def _chosen(k: Any) -> bool:
    return _is_balanced(k.ranks, k.microbatches, k.groups)


@register(
    "paddle-interleaved",
    title="Interleaved 1F1B whose first group takes what is left over, or with balanced memory",
    year=2024,
    source="@paddle fleet, PipelineParallelWithInterleave and VPPFhenBInBalancedMemory "
    "(pull requests 69944 and 70160)",
    default_chunks=2,
    aliases=("balanced-memory",),
    constraints=(
        Constraint(
            "microbatches",
            "at least as many microbatches as ranks",
            lambda k: k.microbatches >= k.ranks,
            lambda _: "'looped-bfs'",
        ),
        Constraint(
            "groups",
            "groups that are 'paddle', 'one' or 'larger-first'",
            lambda k: k.groups in GROUPS,
        ),
    ),
    forms=(
        makespan_is(FILL_AND_WORK, condition="no latency"),
        peak_is(
            "(m(v − 1) + p − r)/v",
            _peak,
            holds=_chosen,
            condition="balanced memory, by default with m < 2p",
        ),
        peak_is(
            "min((v − 1)g + 2(p − 1 − r) + 1, m·v)/v with g = p + m mod p",
            _peak,
            holds=lambda k: not _chosen(k),
            condition="no balanced memory, by default with m ≥ 2p",
        ),
    ),
)
def paddle_interleaved(
    *, ranks: int, microbatches: int, chunks: int, groups: str = "paddle"
) -> Iterator[Program]:
    """Groups of p microbatches, the first of p + m mod p; with less than 2p just one, of all.

    A larger first group leaves no rank waiting; a larger last one with the same warm-up would be a
    deadlock. From p to 2p − 1 microbatches memory is *balanced*: all forwards of a chunk run before
    those of the next, the last chunk is 1F1B, and backwards go chunk by chunk. So rank r is only
    one forward ahead of the next rank, not two. It takes the time of looped-bfs, and instead of m
    microbatches (m(v − 1) + p − r)/v.

    When to use it: to read or check a job of PaddlePaddle, and with less than 2p microbatches for
    the least memory. From 2p on flexible-interleaved is as fast in less memory, as it spreads what
    is left over. With latency balanced memory is slower.

    p = 2, m = 3, B twice as long as F::

        r0 | F0 F1 F2 f0 f1 .  .  b0--- f2 b1--- .  b2--- B0--- B1--- B2---
        r1 | .  F0 F1 F2 f0 b0--- f1 b1--- f2 b2--- B0--- B1--- B2--- .  .

    Parameters
    ----------
    groups
        ``"one"`` is balanced memory for any number of microbatches, ``"larger-first"`` groups of p
        after a first one of p + m mod p; ``"paddle"`` takes the former below 2p, as PaddlePaddle
        with its best_unbalanced_scheduler, and the latter from there on.
    """
    size, pace = _first_group(ranks, microbatches, groups)
    table = in_two_sizes(microbatches, chunks, split=size, first=size, then=ranks)
    first, last = forwards_and_backwards(table, ranks, chunks)
    return ramp(ranks, first, last, (chunks - 1) * size, pace)
