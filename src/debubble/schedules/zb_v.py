"""ZB-V: two chunks per rank in a V, split backward, no bubble in the memory of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from debubble.core.actions import Program, microbatches_of
from debubble.core.placement import Placement
from debubble.core.sequence import alternate, backward_input, backward_weight, forward, sequence
from debubble.schedules.controllable_memory import searched
from debubble.schedules.registry import makespan_is, peak_is, register, stage_time_is


def published_order(ranks: int, microbatches: int) -> Iterator[Program]:
    """Yield the programs for F = I = W, from PyTorch's ``ScheduleZBVZeroBubble``.

    For fewer than 2p − 1 microbatches it is the order for 2p − 1 with the others left out.
    """
    for rank in range(ranks):
        total = max(2 * ranks - 1, microbatches)
        numbers = np.arange(total)
        near, far = rank, 2 * ranks - 1 - rank
        F0, I0, W0 = (make(near, numbers) for make in (forward, backward_input, backward_weight))
        F1, I1, W1 = (make(far, numbers) for make in (forward, backward_input, backward_weight))

        turn = ranks - rank
        ahead = 2 * turn - 1
        filling = total - ahead - rank  # steady groups that take in a new microbatch
        steady = total - ranks
        drain = total - rank
        program = sequence(
            F0[:ahead],
            alternate(F1[:rank], F0[ahead : ahead + rank]),
            alternate(F1[rank:ranks], I1[:turn], W1[:turn]),
            alternate(
                F0[ahead + rank :],
                *(part[:filling] for part in (I0, W0, F1[ranks:], I1[turn:], W1[turn:])),
            ),
            alternate(
                *(part[filling:steady] for part in (I0, W0, F1[ranks:])),
                *(part[turn + filling : drain] for part in (I1, W1)),
            ),
            alternate(I0[steady : steady + rank], I1[drain:]),
            alternate(I0[steady + rank :], W0[steady : steady + turn]),
            W1[drain:],
            W0[steady + turn :],
        )
        yield program[microbatches_of(program) < microbatches]


AS_PUBLISHED = "F = I = W, no latency, m ≥ 2p, default memory"
"""Condition under which the published schedule is the best one."""


@register(
    "zb-v",
    title="V placement and split backward: no bubble in the memory of 1F1B",
    year=2023,
    source="@qi2024zero; search: debubble",
    placement=Placement.wave,
    chunks=2,
    aliases=("zbv",),
    forms=(
        makespan_is("2m(F + I + W) + (p − 1)F", condition=AS_PUBLISHED),
        stage_time_is("2m(F + I + W)", condition=AS_PUBLISHED),
        peak_is(
            "p on every rank, in any case the memory limit",
            lambda k: 2 * k.p * k.unit if k.memory is None else k.memory,
            holds=lambda k: not k.published,
            accuracy="upper bound",
        ),
        peak_is(
            "p on every rank",
            lambda k: 2 * k.p * k.unit,
            condition="published order",
            accuracy="upper bound",
        ),
    ),
)
@searched(lambda ranks, microbatches: list(published_order(ranks, microbatches)), lambda p: p)
def zb_v() -> None:
    """Stage s and stage 2p − 1 − s share a rank, so that the last stage is next to the first.

    Rank 0 runs 2p − 1 forwards of its first chunk until the first microbatch is back at its second;
    from then on every rank repeats F I W of one chunk and F I W of the other. All ranks hold the
    activations of p microbatches, as rank 0 of 1F1B does. With F = I = W no rank waits between a
    rank's first and last action. Two ranks, capitals for the first chunk::

        0  F0 F1 F2 f0 i0 w0 f1 i1 w1 F3 I0 W0 f2 i2 w2 I1 W1 f3 i3 w3 I2 W2 I3 W3
        1     F0 f0 F1 f1 i0 w0 F2 I0 W0 f2 i1 w1 F3 I1 W1 f3 i2 w2 I2 i3 I3 W2 w3 W3

    This published schedule wastes time when F, I and W differ, and needs all of its memory. It is
    used only where it is the best. Otherwise the schedule is computed from the costs of all ranks,
    the latency of every link and the memory limit, by :mod:`debubble.listing`.

    When to use it: try it first if the backward can be split and every rank can hold two chunks.
    With F = I = W, no two-chunk schedule of whole sequences has a smaller bubble in the memory of
    1f1b, and all ranks need the same memory. Rank 0 has both embedding and head; for a heavy head,
    split the layers unevenly or use vocab-1-v-half.

    Parameters
    ----------
    memory
        As of v-half; the default is 2p times the largest activation of a chunk. The
        smallest that works is what one microbatch leaves on both chunks of a rank.
    published
        Use the published schedule whatever the costs: PyTorch's ``ScheduleZBVZeroBubble``.
    """
