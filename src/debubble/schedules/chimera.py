"""Chimera: two copies of the model in opposite directions fill each other's idle slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.schedules._waves import forms, makespan, waves
from debubble.schedules.registry import Constraint, register

BATCHES = {"direct": 1, "doubling": 2, "halving": 2}
"""Microbatches per forward, for each way to more microbatches than ranks."""


def _doubled(k: Any) -> float:
    units = -(-k.m // (2 * k.p))
    ends = max(k.F + k.B, 2 * k.F, 2 * (k.B - k.F))
    between = max(0.0, k.F - k.B, k.B - 2 * k.F)
    work = 2 * units * k.p * (k.F + k.B)
    return float(work + (k.p / 2 - 1) * (ends + 2 * (units - 1) * between))


@register(
    "chimera",
    title="Two copies of the model in opposite directions, one backward per forward",
    year=2021,
    source="@li2021chimera; Shigangli/Chimera",
    placement=Placement.bidirectional,
    chunks=1,
    constraints=(
        Constraint("ranks", "an even number of ranks", lambda k: k.ranks % 2 == 0),
        Constraint(
            "scaling",
            "a scaling of 'direct', 'doubling' or 'halving'",
            lambda k: k.scaling in BATCHES,
        ),
    ),
    forms=(
        *forms(
            2,
            lambda k: makespan(k, copies=2),
            "m(F + B) + (p − 2)(max(F, B) + (U − 1)|B − F|)",
            "p/2 + 1 + d, d ranks from the nearer end",
            applies=lambda k: BATCHES[k.scaling] == 1,
            condition="direct",
        ),
        *forms(
            2,
            _doubled,
            "m(F + B) + (p/2 − 1)(max(F + B, 2F, 2B − 2F) + 2(U − 1)·max(0, F − B, B − 2F))",
            "3p/2 + 1 + d, d ranks from the nearer end",
            batch=2,
            applies=lambda k: BATCHES[k.scaling] == 2,
            condition="doubling or halving",
        ),
    ),
)
def chimera(*, ranks: int, microbatches: int, scaling: str = "direct") -> Iterator[Program]:
    """Every rank serves stage r of one copy and stage p − 1 − r of the other.

    Half of p microbatches enters at either end, one in every second slot, and turns round at the
    other. Counted in slots, microbatch i runs F of stage s in slot 2i + s and B in slot
    2i + 2p − 1 − s: forwards and backwards of the two directions fall into different slots, and
    p − 2 slots in all stay idle at the two ends, half as many as in 1F1B. Parameters are held
    twice, and their gradients are summed over both copies.

    When to use it: about as many microbatches as ranks, and memory for two copies of the weights.
    At m = p its bubble is little more than half of 1f1b's; from a few times p microbatches on, 1f1b
    waits less, and split backwards less still.

    p = 4, m = 4, B twice as long as F::

        r0 | F0 F1 .  f2 b2--- f3 b3--- .  B0--- .  .  B1---
        r1 | .  F0 f2 F1 f3 .  b2--- B0--- b3--- B1--- .  .
        r2 | .  f2 F0 f3 F1 .  B0--- b2--- B1--- b3--- .  .
        r3 | f2 f3 .  F0 B0--- F1 B1--- .  b2--- .  .  b3---

    The figure shows the price of B = 2F: the two directions no longer interlock, and the bubble is
    that of slots as long as B.

    Parameters
    ----------
    ranks, microbatches
        An even number of ranks, any number of microbatches. The last unit may be short: it is the
        same order with some microbatches left out.
    scaling
        Order of units when there are more than p microbatches:

        ``"direct"``
            Units of p microbatches. The first forwards of a unit fill the idle slots among the last
            backwards of the one before, which is perfect when F = B; with B = 2F every unit but the
            first loses another p − 2 forwards.
        ``"doubling"``
            Units of 2p microbatches, two of which go forward together in a slot as long as one
            backward. For F ≤ B ≤ 2F nothing is lost between units, for almost twice the memory. The
            two are two actions, one behind the other: the next rank may start on the first when the
            second has just begun, so that (p − 2)(F + B)/2 stay idle. Executed as one, with
            B = 2F, they would leave p − 2 slots of 2F.
        ``"halving"``
            A microbatch is cut in half for its backward instead. As an action carries one
            microbatch, the halves are what `microbatches` counts: 2k and 2k + 1 are the halves of
            one, which go forward together and come back apart. That is the order of ``"doubling"``
            under another name; with half the times and half the activations, it needs about
            ``"direct"``'s memory, 3p/4 + 1/2 to p whole microbatches.
    """
    return waves(Placement.bidirectional(ranks), microbatches, BATCHES[scaling])
