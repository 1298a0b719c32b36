"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from collections.abc import Iterator

from debubble.core.actions import Program
from debubble.core.sequence import backward, forward, sequence
from debubble.schedules.registry import makespan_is, peak_is, register


@register(
    "gpipe",
    title="All forwards, then all backwards",
    year=2018,
    source="@huang2019gpipe",
    chunks=1,
    aliases=("afab", "f-then-b"),
    forms=(makespan_is("(m + p − 1)(F + B) + 2(p − 1)c"), peak_is("m")),
)
def gpipe(*, ranks: int, microbatches: int) -> Iterator[Program]:
    """Every rank runs all its forwards, then all its backwards.

    The backwards run in microbatch order; the paper draws them reversed, which takes the same time
    when all stages are equal. Memory grows with the number of microbatches.

    When to use it: as a yardstick, and with full recompute and few microbatches. Latency is paid
    once each way, whatever their number; without latency 1f1b takes as long in the memory of p.

    p = 4, m = 4, B twice as long as F::

        r0 | F0 F1 F2 F3 .  .  .  .  .  .  .  .  .  B0--- B1--- B2--- B3---
        r1 | .  F0 F1 F2 F3 .  .  .  .  .  .  B0--- B1--- B2--- B3--- .  .
        r2 | .  .  F0 F1 F2 F3 .  .  .  B0--- B1--- B2--- B3--- .  .  .  .
        r3 | .  .  .  F0 F1 F2 F3 B0--- B1--- B2--- B3--- .  .  .  .  .  .
    """
    numbers = range(microbatches)
    for rank in range(ranks):
        yield sequence(forward(rank, numbers), backward(rank, numbers))
