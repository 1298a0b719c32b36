"""1F1B without a flush that keeps as many versions of the weights as microbatches need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.schedules.one_f_one_b import ramp_peaks
from debubble.schedules.pipedream_2bw import STEADY, never_drained
from debubble.schedules.registry import ClosedForm, register


def stashed(k: Any) -> list[int]:
    """Return the weight versions on every rank: m of the p − r microbatches in flight share one."""
    return [-(-(k.ranks - 1 - rank) // k.microbatches) + 1 for rank in range(k.ranks)]


@register(
    "pipedream",
    title="1F1B without flush, one weight version per microbatch in flight",
    year=2018,
    source="@harlap2018pipedream",
    placement=Placement.loop,
    chunks=1,
    weight_versions=stashed,
    sync="local",
    forms=(
        STEADY,
        ClosedForm("peak_activation", "p − r", lambda k: ramp_peaks(k, least=0, pace=1)),
    ),
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
    for rank in range(ranks):
        yield never_drained(rank, ranks, microbatches, iterations, ranks - 1 - rank)
