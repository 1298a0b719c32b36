"""PACI: 1F1B without a flush and without stashed weights."""

from __future__ import annotations

from collections.abc import Iterator

from debubble.core.actions import Program
from debubble.core.placement import Placement
from debubble.schedules.pipedream import stashed
from debubble.schedules.pipedream_2bw import STEADY, never_drained
from debubble.schedules.registry import ClosedForm, register


@register(
    "paci",
    title="1F1B without flush whose backwards take the newest weights",
    year=2026,
    source="@elam2026breaking; order as in its abstract, versions: debubble's own count",
    placement=Placement.loop,
    chunks=1,
    weight_versions=stashed,
    newest_weights=True,
    sync="local",
    forms=(STEADY, ClosedForm("peak_activation", "min(p − r, m)")),
)
def paci(*, ranks: int, microbatches: int, iterations: int | None = None) -> Iterator[Program]:
    """Yield the programs of pipedream, in the memory of 1F1B: no weights are kept for microbatches.

    A rank steps after every m backwards of its own, the gradients that it accumulates, and waits
    for no other rank. Between the forward and the backward of a microbatch rank r runs p − 1 − r other
    backwards, and so at most ⌈(p − 1 − r)/m⌉ steps: one at most from m = p − 1 on, none on the last
    rank. The backward takes the weights as they are then, which is another gradient than that of
    either version; small steps and more accumulation keep the two alike.

    When to use it: where a flush costs more than it saves, with few microbatches for many ranks,
    and memory has no room for the versions of pipedream, or for the second one of pipedream-2bw.

    p = 3, m = 2, 3 iterations, B twice as long as F::

        r0 | F0 F1 F2 .  .  .  .  B0--- F3 B1---|F4 B2--- F5 B3---|.  B4--- .  B5---|
        r1 | .  F0 F1 .  .  B0--- F2 B1---|F3 B2--- F4 B3---|F5 B4--- .  B5---|.  .
        r2 | .  .  F0 B0--- F1 B1---|F2 B2--- F3 B3---|F4 B4--- F5 B5---|.  .  .  .
    """
    for rank in range(ranks):
        yield never_drained(rank, ranks, microbatches, iterations, ranks - 1 - rank)
