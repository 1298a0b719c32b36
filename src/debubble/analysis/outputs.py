"""Valid schedules that PyTorch's own runtime cannot run: loss order, split backwards with DDP.

PyTorch collects losses in a list and looks for that of microbatch k at its k-th place: it says
"Loss for microbatch k is not available" where forwards of the last stage change places, and with
split backwards some gradients are silently missing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.problems import Findings, Problem, spot
from debubble.core.actions import (
    KIND_MASK,
    STAGE_MASK,
    STAGE_SHIFT,
    kinds_of,
    microbatches_of,
    stages_of,
)
from debubble.core.kind_relations import FORWARD_KIND, GATHER_KIND, WEIGHT_KIND
from debubble.core.schedule import Schedule

_FIELDS = STAGE_MASK << STAGE_SHIFT | KIND_MASK


def pytorch_warnings(schedule: Schedule, replicas: bool = True) -> list[Problem]:
    """Return warnings of what PyTorch's own runtime cannot do with a valid schedule."""
    found = Findings()
    inspect_outputs(schedule, found)
    return found.problems + (split_under_ddp(schedule) if replicas else [])


def split_under_ddp(schedule: Schedule) -> list[Problem]:
    """Warn of split backwards where weights of a stage are not sharded over its replicas.

    DDP reduces gradients in hooks of a whole backward, and PyTorch's W adds them without; that of
    stage 0 is a whole one.
    """
    kinds = kinds_of(schedule.actions)
    split = np.flatnonzero((kinds == WEIGHT_KIND) & (stages_of(schedule.actions) > 0))
    if not len(split) or np.any(kinds == GATHER_KIND):
        return []
    return [
        spot(schedule, split[0]).problem(
            "ddp-split",
            "is half of a backward: PyTorch's own runtime does not reduce its gradients among "
            "replicas that are wrapped in DistributedDataParallel",
            "use fully_shard with reshard_after_forward=False, full backwards, or debubble.torch, "
            "which averages them itself",
        )
    ]


def inspect_outputs(schedule: Schedule, found: Findings) -> None:
    """Report forwards of the last stage, of any copy, that come after one of a later microbatch."""
    last = (schedule.stages - 1) << STAGE_SHIFT | int(FORWARD_KIND)
    for rank in dict.fromkeys(row[-1] for row in schedule.placement.table):
        begin = int(schedule.offsets[rank])
        program = schedule.program(rank)
        here = (program & _FIELDS) == last
        found_here = program[here]
        # Of one stage and kind the larger number is that of the later microbatch.
        if (found_here[1:] > found_here[:-1]).all():
            continue
        losses = np.flatnonzero(here) + begin
        units = microbatches_of(schedule.actions[losses])
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
        here = spot(schedule, losses[item])
        # The earliest forward of a later microbatch: in front of it all of them are in order.
        _, ahead, other = spot(schedule, losses[int(np.argmax(units[:item] > units[item]))])
        return here.problem(
            "loss-order",
            f"comes after {other} (action {ahead}) on the last stage, whose losses PyTorch's own "
            "runtime takes to be in the order of the microbatches",
            f"move {here.text} before {other}, number the microbatches in the order they run, or "
            "use debubble.torch",
            other,
        )

    found.add("loss-order", late, describe)
