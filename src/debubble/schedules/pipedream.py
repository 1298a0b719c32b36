"""1F1B without a flush: PipeDream, PipeDream-2BW and PACI, by the weights that backwards take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.core.sequence import backward, forward
from debubble.schedules.one_f_one_b import FILL_AND_WORK, ramp_peaks, warm_alternate_drain
from debubble.schedules.registry import Constraint, makespan_is, optimizer_step, peak_is, register


def never_drained(
    ranks: int, microbatches: int, iterations: int | None, pace: int = 1
) -> Iterator[Program]:
    """Yield 1F1B through all iterations, with an optimizer step after each one's last backward.

    Every rank has `pace` more forwards of warm-up than the next; where that is more than 1 no more
    than one iteration.
    """
    numbers = range(microbatches * (iterations or 1))
    for rank in range(ranks):
        warm_up = pace * (ranks - 1 - rank)
        warm_up = min(warm_up, microbatches) if pace > 1 else warm_up
        program = warm_alternate_drain(forward(rank, numbers), backward(rank, numbers), warm_up)
        if iterations is not None:
            total = microbatches * iterations
            number = np.arange(1, iterations + 1) * microbatches - 1
            # Backward u comes after warm_up + u + 1 forwards, as long as there are that many.
            behind = number + 1 + np.minimum(min(warm_up, total) + number + 1, total)
            placement = Placement.linear(ranks)
            steps = [optimizer_step(placement, rank, each) for each in range(iterations)]
            program = np.insert(program, behind, np.concatenate(steps))
        yield program


STEADY = makespan_is(FILL_AND_WORK, condition="no latency, one iteration")


def stashed(k: Any) -> list[int]:
    """Return the weight versions on every rank: m of the p − r microbatches in flight share one."""
    return [-(-(k.ranks - 1 - rank) // k.microbatches) + 1 for rank in range(k.ranks)]


@register(
    "pipedream",
    title="1F1B without flush, one weight version per microbatch in flight",
    year=2018,
    source="@harlap2018pipedream",
    chunks=1,
    weight_versions=stashed,
    sync="local",
    forms=(STEADY, peak_is("p − r", lambda k: ramp_peaks(k, least=0, pace=1))),
)
def pipedream(*, ranks: int, microbatches: int, iterations: int | None = None) -> Iterator[Program]:
    """One 1F1B over all iterations that steps after every m microbatches; m = 1 in the paper.

    A rank stashes the weights its forwards used until their backwards are done. With m = 1 each of
    the p − r microbatches in flight on rank r has weights of its own; in general rank r keeps
    ⌈(p − 1 − r) / m⌉ + 1 versions. Its gradients are that many steps old, less one: the delay
    differs from rank to rank, which PipeDream-2BW (`pipedream-2bw`) makes one step for all.

    Give the number of minibatches as ``iterations`` and ``microbatches=1`` for the paper's setting:

    When to use it: to study training without flush as it was first published, or where every rank
    may keep as many versions of its weights as microbatches are in flight. pipedream-2bw needs two,
    paci one.

    p = 3, m = 1, 6 iterations, B twice as long as F::

        r0 | F0 F1 F2 .  .  .  .  B0---|F3 B1---|F4 B2---|F5 B3---|.  B4---|.  B5---|
        r1 | .  F0 F1 .  .  B0---|F2 B1---|F3 B2---|F4 B3---|F5 B4---|.  B5---|.  .
        r2 | .  .  F0 B0---|F1 B1---|F2 B2---|F3 B3---|F4 B4---|F5 B5---|.  .  .  .
    """
    return never_drained(ranks, microbatches, iterations)


@register(
    "pipedream-2bw",
    title="1F1B without flush, two weight versions",
    year=2020,
    source="@narayanan2021memory",
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
    forms=(STEADY, peak_is("p − r", lambda k: ramp_peaks(k, least=0, pace=1))),
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
    return never_drained(ranks, microbatches, iterations)


@register(
    "eager-2bw",
    title="Eager 1F1B without flush, two weight versions",
    year=2022,
    source="@narayanan2021memory; its warm-up: @zhuang2023optimizing",
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
    forms=(STEADY, peak_is("min(2(p − r) − 1, m)")),
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
    return never_drained(ranks, microbatches, iterations, pace=2)


@register(
    "paci",
    title="1F1B without flush whose backwards take the newest weights",
    year=2026,
    source="@elam2026breaking; order as in its abstract, versions: debubble's own count",
    chunks=1,
    weight_versions=stashed,
    newest_weights=True,
    sync="local",
    forms=(STEADY, peak_is("min(p − r, m)")),
)
def paci(*, ranks: int, microbatches: int, iterations: int | None = None) -> Iterator[Program]:
    """Yield the programs of pipedream, in the memory of 1F1B: no weights are kept for microbatches.

    A rank steps after every m backwards of its own, the gradients that it accumulates, and waits
    for no other rank. Between the forward and the backward of a microbatch rank r runs p − 1 − r
    other backwards, and so at most ⌈(p − 1 − r)/m⌉ steps: one at most from m = p − 1 on, none on
    the last rank. The backward takes the weights as they are then, which is another gradient than
    that of either version; small steps and more accumulation keep the two alike.

    When to use it: where a flush costs more than it saves, with few microbatches for many ranks,
    and memory has no room for the versions of pipedream, or for the second one of pipedream-2bw.

    p = 3, m = 2, 3 iterations, B twice as long as F::

        r0 | F0 F1 F2 .  .  .  .  B0--- F3 B1---|F4 B2--- F5 B3---|.  B4--- .  B5---|
        r1 | .  F0 F1 .  .  B0--- F2 B1---|F3 B2--- F4 B3---|F5 B4--- .  B5---|.  .
        r2 | .  .  F0 B0--- F1 B1---|F2 B2--- F3 B3---|F4 B4--- F5 B5---|.  .  .  .
    """
    return never_drained(ranks, microbatches, iterations)
