"""1F1B with overlapped pairs, one stage per rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.core.sequence import backward, forward, overlap, sequence
from debubble.schedules.registry import ClosedForm, register


def _time(k: Any) -> float:
    return float((k.p - 1) * (k.F + k.B) + (k.F + k.B) + (k.m - 1) * k.O)


@register(
    "1f1b-overlap",
    title="1F1B with forward and backward executed together",
    year=2025,
    source="Megatron-LM, combined 1F1B for expert-parallel overlap",
    placement=Placement.loop,
    chunks=1,
    forms=(
        ClosedForm(
            "makespan",
            "p(F + B) + (m − 1)·O",
            _time,
            holds=lambda k: k.c == 0 and k.m >= 2 * k.p - 1 and max(k.F, k.B) <= k.O,
            condition="no latency, m ≥ 2p − 1, O ≥ F and O ≥ B",
        ),
        ClosedForm(
            "peak_activation",
            "min(2(p − r), m)",
            lambda k: [min(2 * (k.p - r), k.m) * k.unit for r in range(k.p)],
        ),
    ),
)
def overlapped_1f1b(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """Rank r starts with 2(p − 1 − r) + 1 forwards, then runs a forward and a backward together.

    Twice the warm-up of 1F1B makes the two halves of a pair independent of each other, so that the
    communication of one can hide behind the computation of the other.

    p = 3, m = 6, B twice as long as F::

        r0 | F0 F1 F2 F3 F4 .  .  .  .  F5------ B1--- .  B2--- B3--- .  B4--- B5---
           |                            B0------
        r1 | .  F0 F1 F2 .  .  F3------ F4------ F5------ B3--- .  B4--- B5--- .  .
           |                   B0------ B1------ B2------
        r2 | .  .  F0 F1------ F2------ F3------ F4------ F5------ B5--- .  .  .  .
           |          B0------ B1------ B2------ B3------ B4------
    """
    numbers = range(microbatches)
    for rank in range(ranks):
        warm_up = min(2 * (ranks - 1 - rank) + 1, microbatches)
        forwards, backwards = forward(rank, numbers), backward(rank, numbers)
        paired = microbatches - warm_up
        yield sequence(
            forwards[:warm_up],
            overlap(forwards[warm_up:], backwards[:paired]),
            backwards[paired:],
        )
