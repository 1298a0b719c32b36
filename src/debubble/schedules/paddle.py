"""PaddlePaddle's interleaving, for any number of microbatches from the number of ranks on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from debubble.core.actions import Program
from debubble.schedules.interleaved import FILL_AND_WORK, forwards_and_backwards, in_two_sizes
from debubble.schedules.one_f_one_b import ramp, ramp_peaks
from debubble.schedules.registry import Constraint, makespan_is, peak_is, register

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
