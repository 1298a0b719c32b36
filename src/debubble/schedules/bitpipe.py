"""BitPipe: two Vs in opposite directions."""

from __future__ import annotations

from collections.abc import Iterator

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.schedules._waves import forms, makespan, waves
from debubble.schedules.registry import Constraint, register


@register(
    "bitpipe",
    title="Two copies of the model, each placed as a V, in opposite directions",
    year=2024,
    source="@wu2024bitpipe; wuhouming/BitPipe",
    placement=Placement.bidirectional,
    chunks=2,
    constraints=(Constraint("ranks", "an even number of ranks", lambda k: k.ranks % 2 == 0),),
    forms=forms(
        2,
        lambda k: makespan(k, copies=2),
        "2m(F + B) + (p − 2)(max(F, B) + (U − 1)|B − F|)",
        "3p/4 + (1 + d)/2, d ranks from the nearer end",
    ),
)
def bitpipe(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """Chimera whose microbatches pass every rank twice: one copy is a V, the other a Λ.

    Every rank serves four stages of 2p, two of each copy. In slots, microbatch i of a unit runs F
    of stage s in slot 2i + s and B in slot 2i + 4p − 1 − s, which fills 4p slots of a rank without
    a gap and is, unit after unit, the order of the authors' code. The idle time at the ends is
    Chimera's in slots of half the length, so half of it. Turning round costs no transfer. As in
    Chimera, units of p microbatches follow each other directly, and parameters are held twice.

    For m = p and B = 2F, (p − 2)·2F of 6pF + (p − 2)·2F are idle, a rate of (p − 2)/(4p − 2).

    When to use it: about as many microbatches as ranks, fast links, and memory for two copies of
    the weights: half the bubble of chimera. With more microbatches split backwards wait less.

    p = 4, m = 4, B twice as long as F::

        r0 | 0F00F1.  3F24F23F34F37F07B0---7F17B1---.  4B2---3B2---4B3---3B3---0B0---.  .  0B1---
        r1 | .  1F02F21F12F35F26F05F36F1.  6B0---5B2---6B1---5B3---2B2---1B0---2B3---1B1---.  .
        r2 | .  1F22F01F32F15F06F25F16F3.  6B2---5B0---6B3---5B1---2B0---1B2---2B1---1B3---.  .
        r3 | 0F20F3.  3F04F03F14F17F27B2---7F37B3---.  4B0---3B0---4B1---3B1---0B2---.  .  0B3---
    """
    return waves(Placement.bidirectional(ranks, 2), microbatches)
