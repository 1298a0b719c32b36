"""BPipe: 1F1B whose early ranks keep some of their activations in the memory of late ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from debubble.core.actions import Kind, Program
from debubble.core.sequence import as_kind, backward, forward, merge
from debubble.schedules.one_f_one_b import FILL_AND_WORK
from debubble.schedules.registry import makespan_is, peak_is, register


def bound(ranks: int) -> int:
    """Return the most microbatches a rank holds, those of its pair included: ⌈(p + 2)/2⌉."""
    return (ranks + 3) // 2


def pairs(k: Any) -> tuple[int | None, ...]:
    """Return the rank that keeps a rank's activations: p − 1 − r in the first half."""
    return tuple(k.ranks - 1 - r if r < k.ranks // 2 else None for r in range(k.ranks))


def _hidden(k: Any) -> bool:
    return bool(k.copy <= min(k.F, k.B) and 2 * k.copy <= k.F + k.B)


@register(
    "bpipe",
    copies_activations=True,
    title="1F1B with the activations of early ranks kept by late ranks",
    year=2023,
    source="@kim2023bpipe",
    chunks=1,
    offload_to=pairs,
    forms=(
        makespan_is(
            FILL_AND_WORK,
            holds=_hidden,
            condition="no latency, a copy takes at most F, at most B and at most (F + B)/2",
        ),
        peak_is(
            "min(⌈(p + 2)/2⌉, p, m)",
            holds=_hidden,
            condition="a copy takes at most F, at most B and at most (F + B)/2",
        ),
    ),
)
def bpipe(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """1F1B, where each rank of the first half has the rank opposite keep what it cannot hold.

    In 1F1B rank r holds p − r microbatches and rank p − 1 − r holds r + 1, p + 1 together. Let rank
    r hold b = ⌈(p + 2)/2⌉ of its own; then e = p − r − b have to be away whenever all are alive.
    They leave during the warm-up, and from then on one goes before another returns: e or e + 1 are
    away, so that no rank ever holds more than b, counting both ends of a copy under way.

    An activation stays away as long as it can, which takes the fewest copies: microbatch j returns
    after F of j + w − 1, where w = p − 1 − r are the warm-up forwards, so that one F and one B are
    between that and its B. Of every w − 1 microbatches in a row the last e go. Copies are hidden as
    long as each takes at most F, at most B, and two of them F + B; slower ones make the step longer
    and the peak higher.

    A re-evaluation (arXiv 2401.02088) found no gain on LLaMA and almost none on GPT-3 with
    FlashAttention: gains that were reported for BPipe are not general.

    When to use it: whole backwards, one stage per rank, and a first rank that is too full while
    later ones have room, with a fast link between rank r and rank p − 1 − r. A V (1f1b-v, v-half)
    evens memory out without copies.

    p = 4, m = 6, B twice as long as F::

        r0 | F0 F1 F2 F3 .  .  .  .  .  .  B0--- F4 B1--- F5 B2--- .  B3--- .  B4--- .  B5---
        r1 | .  F0 F1 F2 .  .  .  .  B0--- F3 B1--- F4 B2--- F5 B3--- .  B4--- .  B5--- .  .
        r2 | .  .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- .  B5--- .  .  .  .
        r3 | .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- .  .  .  .  .  .
    """
    for rank in range(ranks):
        warm_up = min(ranks - 1 - rank, microbatches - 1)
        number = np.arange(microbatches)
        F, B = forward(rank, number), backward(rank, number)
        away = max(warm_up + 1 - bound(ranks), 0) if rank < ranks // 2 else 0
        stay = max(warm_up - 1, 1)
        moved = F[number % stay >= stay - away]
        slot = number[number % stay >= stay - away]
        yield merge(
            (number, F),
            (slot, as_kind(moved, Kind.OFFLOAD)),
            (slot + stay, as_kind(moved, Kind.RELOAD)),
            (number + warm_up, B),
        )
