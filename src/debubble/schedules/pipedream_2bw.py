"""1F1B without a flush: the pipeline never drains, two versions of the weights are kept."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.core.sequence import backward, forward
from debubble.schedules.one_f_one_b import FILL_AND_WORK, ramp_peaks, warm_alternate_drain
from debubble.schedules.registry import ClosedForm, Constraint, optimizer_step, register


def never_drained(
    rank: int, ranks: int, microbatches: int, iterations: int | None, warm_up: int
) -> Program:
    """Return 1F1B through all iterations, with an optimizer step after each one's last backward."""
    numbers = range(microbatches * (iterations or 1))
    program = warm_alternate_drain(forward(rank, numbers), backward(rank, numbers), warm_up)
    if iterations is None:
        return program
    placement = Placement.linear(ranks)
    total = microbatches * iterations
    number = np.arange(1, iterations + 1) * microbatches - 1
    # Backward u comes after warm_up + u + 1 forwards, as long as there are that many.
    behind = number + 1 + np.minimum(min(warm_up, total) + number + 1, total)
    steps = np.concatenate([optimizer_step(placement, rank, k) for k in range(iterations)])
    return np.insert(program, behind, steps)


STEADY = ClosedForm(
    "makespan", FILL_AND_WORK, holds=lambda k: k.c == 0, condition="no latency, one iteration"
)


@register(
    "pipedream-2bw",
    title="1F1B without flush, two weight versions",
    year=2020,
    source="@narayanan2021memory",
    placement=Placement.loop,
    chunks=1,
    aliases=("2bw",),
    weight_versions=2,
    sync="local",
    constraints=(
        Constraint(
            "microbatches",
            "at least as many microbatches as ranks, so that two weight versions are enough",
            lambda k: k.microbatches >= k.ranks,
        ),
    ),
    forms=(
        STEADY,
        ClosedForm("peak_activation", "p − r", lambda k: ramp_peaks(k, least=0, pace=1)),
    ),
)
def pipedream_2bw(
    *, ranks: int, microbatches: int, iterations: int | None = None
) -> Iterator[Program]:
    """One long 1F1B over all iterations: fill and drain are paid once, not once per iteration.

    Gradients are computed with weights that are one step old; the previous version is kept for the
    microbatches that are still in flight when a rank steps.

    When to use it: where the optimizer bears gradients that are one step old, and memory a second
    version of the weights. Over many iterations nothing is idle in between; over one it is 1f1b.

    p = 3, m = 3, 2 iterations, B twice as long as F::

        r0 | F0 F1 F2 .  .  .  .  B0--- F3 B1--- F4 B2---|F5 B3--- .  B4--- .  B5---|
        r1 | .  F0 F1 .  .  B0--- F2 B1--- F3 B2---|F4 B3--- F5 B4--- .  B5---|.  .
        r2 | .  .  F0 B0--- F1 B1--- F2 B2---|F3 B3--- F4 B4--- F5 B5---|.  .  .  .
    """
    for rank in range(ranks):
        yield never_drained(rank, ranks, microbatches, iterations, ranks - 1 - rank)


@register(
    "eager-2bw",
    title="Eager 1F1B without flush, two weight versions",
    year=2022,
    source="@narayanan2021memory; its warm-up: @zhuang2023optimizing",
    placement=Placement.loop,
    chunks=1,
    weight_versions=2,
    sync="local",
    constraints=(
        Constraint(
            "microbatches",
            "more microbatches than ranks, so that two weight versions are enough",
            lambda k: k.microbatches > k.ranks,
        ),
    ),
    forms=(STEADY, ClosedForm("peak_activation", "min(2(p − r) − 1, m)")),
)
def eager_2bw(*, ranks: int, microbatches: int, iterations: int | None = None) -> Iterator[Program]:
    """PipeDream-2BW with up to 2(p − 1 − r) forwards of warm-up, to hide latency.

    The warm-up never exceeds one iteration, so that at most one optimizer step falls between a
    forward and its backward.

    When to use it: as pipedream-2bw, with slow links and memory for nearly twice as many
    activations.

    p = 2, m = 3, 2 iterations, B twice as long as F::

        r0 | F0 F1 F2 .  B0--- F3 B1--- F4 B2---|F5 B3--- .  B4--- .  B5---|
        r1 | .  F0 B0--- F1 B1--- F2 B2---|F3 B3--- F4 B4--- F5 B5---|.  .
    """
    for rank in range(ranks):
        warm_up = min(2 * (ranks - 1 - rank), microbatches)
        yield never_drained(rank, ranks, microbatches, iterations, warm_up)
