"""1F1B with overlapped pairs, one stage per rank."""

from __future__ import annotations

from collections.abc import Iterator

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.schedules.one_f_one_b import one_stage_per_rank
from debubble.schedules.registry import ClosedForm, register


@register(
    "1f1b-overlap",
    title="1F1B with forward and backward executed together",
    year=2025,
    source="@megatron, combined 1F1B for expert-parallel overlap",
    placement=Placement.loop,
    chunks=1,
    forms=(
        ClosedForm(
            "makespan",
            "p(F + B) + (m − 1)·O",
            holds=lambda k: k.c == 0 and k.m >= 2 * k.p - 1 and max(k.F, k.B) <= k.O,
            condition="no latency, m ≥ 2p − 1, O ≥ F and O ≥ B",
        ),
        ClosedForm("peak_activation", "min(2(p − r), m)"),
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
