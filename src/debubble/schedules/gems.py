"""GEMS: two copies of the model take turns, for the least activations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.core.sequence import alternate, backward, forward
from debubble.schedules.registry import makespan_is, peak_is, register


@register(
    "gems",
    title="Two copies of the model take turns: the activations of one microbatch",
    year=2020,
    source="@jain2020gems; bubble as in @li2021chimera",
    placement=Placement.bidirectional,
    chunks=1,
    forms=(
        makespan_is("p(F + B) + 2(p − 1)c + (m − 1)(p·max(F, B) + min(F, B) + (p − 1)c)"),
        peak_is("1", lambda k: [k.unit] * k.p),
    ),
)
def gems(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """A microbatch of one copy goes forward after the backward of one of the other.

    The backward of a microbatch ends where the other copy begins its forwards: the next microbatch
    starts at the rank where that backward starts, and follows it from rank to rank. A rank never
    holds more than one microbatch, and no more than two are under way at any time.

    A further microbatch costs the way back of the one before, p·B, and one forward at its end
    (p·max(F, B) + min(F, B) for any F and B). With B = 2F, 3F of (2p + 1)F are work: the bubble
    ratio tends to (p − 1)/(p + 1/2), as Chimera's authors state it for GEMS.

    When to use it: where nothing else fits, or when the batch is one or two microbatches anyway,
    and two copies of the weights do fit.

    p = 3, m = 3, B twice as long as F::

        r0 | F0 .  .  .  .  .  .  B0--- f2 b2--- F1 .  .  .  .  .  .  .  .  B1---
        r1 | .  F0 .  .  .  B0--- f2 .  .  .  .  b2--- F1 .  .  .  .  B1--- .  .
        r2 | .  .  F0 B0--- f2 .  .  .  .  .  .  .  .  b2--- F1 B1--- .  .  .  .

    Parameters
    ----------
    ranks, microbatches
        Any numbers. With an odd number of microbatches the first copy has one more.
    """
    turn = np.arange(microbatches)
    numbers = turn // 2 + turn % 2 * (-(-microbatches // 2))
    for rank in range(ranks):
        stage = np.where(turn % 2 == 0, rank, ranks - 1 - rank)
        yield alternate(forward(stage, numbers), backward(stage, numbers))
