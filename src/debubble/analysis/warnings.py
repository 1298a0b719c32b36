"""Warnings of valid schedules: transfers stuck in queues, and what PyTorch's runtime cannot run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.problems import Findings, Problem, spot
from debubble.core.actions import (
    KIND_MASK,
    STAGE_MASK,
    STAGE_SHIFT,
    TRANSFER_KINDS,
    computes,
    kinds_of,
    microbatches_of,
    stages_of,
)
from debubble.core.costs import Costs
from debubble.core.kind_relations import FORWARD_KIND, GATHER_KIND, WEIGHT_KIND
from debubble.core.kinds import SEND_KINDS, SHARDING_KINDS
from debubble.core.schedule import Schedule
from debubble.core.units import number
from debubble.core.waits import last_before
from debubble.engine.graph import P2PMode
from debubble.engine.modes import MODE
from debubble.engine.timeline import Timeline, simulate

TOLERANCE = 1e-9
"""Share of a time that rounding may make of two equal ones."""


def lost_in_queues(
    schedule: Schedule, bare: Schedule, costs: Costs, mode: P2PMode
) -> list[Problem]:
    """Return the time that transfers cost by waiting for others in front of them, as a warning.

    The schedule has explicit transfers and no deadlock in `mode`, in which they are queued. `bare`
    is the same without sharding actions, whose times are those of the schedule as long as sharding
    takes none. The warning names the first transfer that waits for another whose data is not
    there yet, with the time that the whole schedule loses; there is none when it loses none.
    """
    if bare is not schedule and np.any(costs.table(schedule).duration[list(SHARDING_KINDS)]):
        bare = schedule
    queued, free = simulate(bare, costs, mode), simulate(bare, costs)
    lost = queued.makespan - free.makespan
    if lost <= TOLERANCE * free.makespan:
        return []
    first = _first_blocked(queued if bare is schedule else simulate(schedule, costs, mode))
    if first is None:
        return []
    waits, ahead, ready, sent = first
    here, (_, index, other) = spot(schedule, waits), spot(schedule, ahead)
    share = 100 * lost / free.makespan
    return [
        here.problem(
            "head-of-line",
            f"could start at {number(ready)} but is queued behind {other} (action {index}), whose "
            f"data is sent at {number(sent)}; with {MODE[mode].queue} such waits make the schedule "
            f"{number(lost)} ({share:.3g} %) longer",
            f"move {here.text} before {other}, on the other rank likewise",
            other,
        )
    ]


def _first_blocked(timeline: Timeline) -> tuple[int, int, float, float] | None:
    """Return the first end of a transfer that could go were it not for the one in front of it.

    Its position, that of the one in front, when it could go and when the other's data is sent.
    """
    schedule, end = timeline.schedule, timeline.end
    kind = kinds_of(schedule.actions)
    rank = schedule.ranks_of_actions
    ends = np.flatnonzero(np.isin(kind, TRANSFER_KINDS))
    # A rank reaches a transfer at the end of its previous compute action.
    before = last_before(schedule, computes(kind))[ends]
    reached = np.where(before >= 0, end[before], 0.0)
    # Both ends of a transfer have one node.
    node = timeline.graph.node[ends]
    _, transfer = np.unique(node, return_inverse=True)
    ready, sent = np.zeros(len(ends)), np.zeros(len(ends))
    np.maximum.at(ready, transfer, reached)
    ready = ready[transfer]
    sends = np.isin(kind[ends], SEND_KINDS)
    sent[transfer[sends]] = reached[sends]
    sent = sent[transfer]

    queue = rank[ends]
    spec = MODE[timeline.mode]
    if spec.by_peer:
        place = np.zeros((2, len(ends)), dtype=np.int64)
        place[sends.astype(int), transfer] = rank[ends]
        queue = queue * schedule.ranks + place.sum(axis=0)[transfer] - rank[ends]
    if spec.by_direction:
        queue = 2 * queue + sends
    order = np.argsort(queue, kind="stable")
    here, ahead = order[1:], order[:-1]
    slack = TOLERANCE * timeline.makespan
    blocked = (queue[here] == queue[ahead]) & (sent[ahead] > ready[here] + slack)
    if not blocked.any():
        return None
    which = np.flatnonzero(blocked)
    which = which[np.argmin(ready[here[which]])]
    one, other = here[which], ahead[which]
    return int(ends[one]), int(ends[other]), float(ready[one]), float(sent[other])


_FIELDS = STAGE_MASK << STAGE_SHIFT | KIND_MASK


def pytorch_warnings(schedule: Schedule, replicas: bool = True) -> list[Problem]:
    """Return warnings of what PyTorch's own runtime cannot do with a valid schedule.

    It collects losses in a list and looks for that of microbatch k at its k-th place: it says "Loss
    for microbatch k is not available" where forwards of the last stage change places, and with
    split backwards some gradients are silently missing.
    """
    return _losses(schedule) + (split_under_ddp(schedule) if replicas else [])


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


def _losses(schedule: Schedule) -> list[Problem]:
    """Warn of forwards of a copy's last stage that come after one of a later microbatch."""
    found = Findings()
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
    return found.problems


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
