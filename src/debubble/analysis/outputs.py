"""Losses come out in the order of their microbatches.

Runtimes collect losses in a list and look for that of microbatch k at its k-th place: PyTorch's
says "Loss for microbatch k is not available" where forwards of the last stage change places, and
with split backwards some gradients are silently missing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.problems import Findings, Problem, position_text
from debubble.core.actions import KIND_MASK, STAGE_MASK, STAGE_SHIFT, Kind, microbatches_of
from debubble.core.schedule import Schedule

_FIELDS = STAGE_MASK << STAGE_SHIFT | KIND_MASK


def inspect_outputs(schedule: Schedule, found: Findings) -> None:
    """Report forwards of the last stage, of any copy, that come after one of a later microbatch."""
    last = (schedule.stages - 1) << STAGE_SHIFT | int(Kind.F)
    for rank in dict.fromkeys(row[-1] for row in schedule.placement.table):
        begin = int(schedule.offsets[rank])
        program = schedule.program(rank)
        losses = np.flatnonzero((program & _FIELDS) == last) + begin
        units = microbatches_of(schedule.actions[losses])
        if (units[1:] > units[:-1]).all():
            continue
        real = (units >= 0) & (units < schedule.units)
        losses, units = losses[real], units[real]
        copies = schedule.copies_of(units)
        for copy in range(schedule.placement.copies):
            here = copies == copy
            _late(schedule, losses[here], units[here], found)


def _late(
    schedule: Schedule, losses: NDArray[np.int64], units: NDArray[np.int64], found: Findings
) -> None:
    """Find last-stage forwards that run after the forward of a later microbatch of their copy."""
    if len(units) < 2:
        return
    before = np.maximum.accumulate(units)[:-1]
    late = 1 + np.flatnonzero(units[1:] < before)

    def describe(item: int) -> Problem:
        rank, index, text, where = position_text(schedule, int(losses[item]))
        # The earliest forward of a later microbatch: in front of it all of them are in order.
        ahead = losses[int(np.argmax(units[:item] > units[item]))]
        _, spot, other, _ = position_text(schedule, int(ahead))
        return Problem(
            "loss-order",
            f"{where} comes after {other} (action {spot}) on the last stage, whose losses are "
            "taken to be in the order of the microbatches",
            rank,
            index,
            (text, other),
            f"move {text} before {other}, or number the microbatches in the order they run",
        )

    found.add("loss-order", late, describe)
