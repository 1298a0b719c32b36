"""A rank's program as tasks: actions with all that is known before there is data.

Overlapped groups run from one thread; on a GPU their halves are on two streams.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from debubble.core.actions import TRANSFER_KINDS, cell_of
from debubble.core.carries import WAYS, carry_steps
from debubble.core.kinds import CARRY_KINDS, COPY_KINDS, FORWARD_KINDS, KINDS, Kind, Need, Of
from debubble.torch.engine.plan import ExecutionPlan, ProgramStep
from debubble.torch.engine.stage import StageOutput

FORWARD, BACKWARD, CARRIED, CARRIED_BACK = range(4)
"""Ways of tensors: activations go forward, gradients backward; to neighbors, or as they are
carried."""

BY_SHARD = (Of.LAST_STAGE, Of.EVERY_SHARD)
BY_STEP = (Of.OWN_RANK, Of.EARLIER_RANKS, Of.EVERY_RANK)
"""Needs that passes of the output layer, and optimizer steps, exchange among all ranks."""

InputKey = tuple[int, int, int]
"""Way, stage and microbatch (or slice) of an input of a computation."""


class Task(NamedTuple):
    """One action, with all that is known before there is data."""

    place: int
    """Position in the program."""
    step: ProgramStep
    run: Callable[..., None]
    """Handler of (engine, step, result of another stage)."""
    takes: InputKey | None
    """Result of a neighboring stage that it computes with."""
    carried: InputKey | None
    """Result of a stage that is no neighbor."""
    rest: tuple[Need, ...]
    """Other needs that it waits for."""
    pace: float
    """Shortest time in seconds."""


class PlannedTransfer(NamedTuple):
    """A send or a receive."""

    step: ProgramStep
    sends: bool
    back: bool
    """If it is a gradient."""
    source: int
    """Stage that made the activation, or gets the gradient."""
    target: int
    """Stage that gets the activation, or made the gradient."""
    key: InputKey
    """Result that is sent, or becomes ready."""


def find_moves(program: Sequence[ProgramStep]) -> dict[int, PlannedTransfer]:
    """Return the transfers of a program by position."""
    found = {}
    for place, step in enumerate(program):
        spec = KINDS[step.kind]
        if step.kind in TRANSFER_KINDS:
            one, other = sorted((step.stage, step.there))
            way = way_of(step)
            key = (way, step.there if spec.sends else step.stage, step.unit)
            found[place] = PlannedTransfer(step, spec.sends, is_backward(way), one, other, key)
    return found


def first_uses(plan: ExecutionPlan, rank: int) -> dict[InputKey, int]:
    """Return the positions at which a rank first computes with results of other stages."""
    found: dict[InputKey, int] = {}
    for place, step in enumerate(plan.programs[rank]):
        for need in KINDS[step.kind].needs:
            if need.through is not None and need.when(plan.lowered):
                found.setdefault((_way_of_need(need), step.stage, step.unit), place)
    return found


def find_answers(plan: ExecutionPlan, rank: int) -> dict[int, tuple[int, int]]:
    """Return which sends of a rank are over for certain when one of its receives is.

    The peer has computed with them before it sent. By position of the receive: the peer, and the
    number of sends to it that are over.
    """
    moves = find_moves(plan.programs[rank])
    found = {}
    for peer in {move.step.peer for move in moves.values()}:
        taken = first_uses(plan, peer)
        sent = {move.key: place for place, move in find_moves(plan.programs[peer]).items()
                if move.sends and move.step.peer == rank}  # fmt: skip
        to_peer = [m.key for m in moves.values() if m.sends and m.step.peer == peer]
        used = [taken.get(key, len(plan.programs[peer])) for key in to_peer]
        # Messages with forms take another way than the others and may be later: a send counts only
        # when all before it are over, too.
        latest = list(accumulate(used, max))
        for place, move in moves.items():
            if not move.sends and move.step.peer == peer and move.key in sent:
                found[place] = peer, bisect_left(latest, sent[move.key])
    return found


def make_tasks(
    plan: ExecutionPlan, rank: int, handlers: Mapping[Kind, Callable[..., None]]
) -> list[range | list[Task]]:
    """Return a rank's program: ranges of transfers to post together, and tasks of one group.

    Handlers run the actions of their kinds.
    """
    schedule, program = plan.lowered, plan.programs[rank]
    needs = {spec.kind: [need for need in spec.needs if need.when(schedule)] for spec in KINDS}
    leaving = {(step.stage, step.unit) for step in program if step.kind in COPY_KINDS}
    last, steps = schedule.stages - 1, carry_steps(schedule.carries, schedule.stages)
    lasts = plan.pace_of(rank)

    def task(place: int) -> Task:
        step = program[place]
        takes, carried, rest = None, None, []
        for need in needs[step.kind]:
            if need.last_stage_only and step.stage != last:
                continue
            if need.of in WAYS:
                if steps[WAYS[need.of]][step.stage]:
                    carried = (_way_of_need(need), step.stage, step.unit)
            elif need.through is not None:
                if 0 <= step.stage + need.stage <= last:
                    takes = (_way_of_need(need), step.stage, step.unit)
            elif KINDS[need.kinds[0]].undoes is not None:
                if (step.stage, step.unit) in leaving:
                    rest.append(need)
            elif need.of in BY_SHARD or (need.of in BY_STEP and not need.optional):
                rest.append(need)
        return Task(place, step, handlers[step.kind], takes, carried, tuple(rest), lasts[place])

    return [
        range(first, end) if program[first].kind in TRANSFER_KINDS
        else [task(place) for place in range(first, end)]
        for first, end in bounds_of_groups(program)
    ]  # fmt: skip


def range_names(program: Sequence[ProgramStep]) -> dict[int, str]:
    """Return the names of all but transfers in profiles, by position; a group's at its first."""
    found = {}
    for first, end in bounds_of_groups(program):
        if program[first].kind not in TRANSFER_KINDS:
            found[first] = f"PP:{cell_of([*map(str, program[first:end])])}"
    return found


def way_of(step: ProgramStep) -> int:
    """Return the way of a transfer."""
    forward = step.kind in FORWARD_KINDS
    if step.kind in CARRY_KINDS:
        return CARRIED if forward else CARRIED_BACK
    return FORWARD if forward else BACKWARD


def is_backward(way: int) -> bool:
    """Return if gradients go that way."""
    return way in (BACKWARD, CARRIED_BACK)


def _way_of_need(need: Need) -> int:
    """Return the way of a result of another stage."""
    if need.of in WAYS:
        return CARRIED if need.of is Of.CARRIED_FROM else CARRIED_BACK
    return FORWARD if need.stage < 0 else BACKWARD


def bounds_of_groups(program: Sequence[ProgramStep]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of contiguous transfers, overlapped groups, and single actions."""
    index = 0
    while index < len(program):
        end = index + 1
        if program[index].kind in TRANSFER_KINDS:
            while end < len(program) and program[end].kind in TRANSFER_KINDS:
                end += 1
        elif program[index].pair == 1:
            while program[end].pair != 2:
                end += 1
            end += 1
        yield index, end
        index = end


def sleep_until(end: float, device: torch.device) -> None:
    """Sleep until a time once the computation of an action is over."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    time.sleep(max(0.0, end - time.perf_counter()))


class Pairs:
    """Runner of overlapped groups, from one thread and in one order on all replicas of a rank.

    A process has one of each: order of collectives in a group, state of ``fully_shard``, random
    numbers. So no half of a group runs on a thread of its own: on a CPU one follows the other; on a
    GPU they are issued one after the other onto two streams. Backwards go first: they take longest
    on the device and least time to issue, and forwards may make the host wait, as those of experts
    do for the sizes of their inputs.
    """

    def __init__(self, device: torch.device, alone: Collection[int] = ()) -> None:
        self._device = device
        self._alone = frozenset(alone)
        """Stages that stay on one stream: ``fully_shard`` gathers weights for that alone."""
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._aside: set[tuple[int, int]] = set()
        """Stages and units whose forward ran on the side stream; autograd keeps them there."""

    def start(self) -> None:
        """Forget the streams of the last step."""
        self._aside.clear()

    def run(self, calls: Sequence[tuple[Task, Any, Callable[[], None]]]) -> None:
        """Run the calls of a group, each with its task and input."""
        ordered = sorted(calls, key=lambda call: call[0].step.kind in FORWARD_KINDS)
        tasks = [task for task, _, _ in calls]
        if self._side is None or self._alone.intersection(task.step.stage for task in tasks):
            for _, _, call in ordered:
                call()
            return
        current = torch.cuda.current_stream(self._device)
        self._choose_streams(tasks)
        self._side.wait_stream(current)
        for task, operand, call in ordered:
            aside = (task.step.stage, task.step.unit) in self._aside
            with _on(self._side if aside else current, operand):
                call()
        current.wait_stream(self._side)

    def _choose_streams(self, tasks: Sequence[Task]) -> None:
        """Send the first forward to the side stream, unless a backward of the group runs there.

        A backward runs on the stream of its forward.
        """
        keys = [(task.step.stage, task.step.unit) for task in tasks]
        forwards = [task.step.kind in FORWARD_KINDS for task in tasks]
        taken = {key for key, forward in zip(keys, forwards, strict=True) if not forward}
        if not taken & self._aside and any(forwards):
            self._aside.add(keys[forwards.index(True)])


def _on(stream: torch.cuda.Stream, operand: Any) -> AbstractContextManager[Any]:
    """Return a context that issues work onto a stream, whose input is kept until it is done."""
    # The other half may ask for memory while this one still reads what it then lets go of.
    for tensor in operand.tensors if isinstance(operand, StageOutput) else operand or ():
        if isinstance(tensor, Tensor) and tensor.is_cuda:
            tensor.record_stream(stream)
    context: AbstractContextManager[Any] = torch.cuda.stream(stream)
    return context
