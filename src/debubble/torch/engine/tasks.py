"""A rank's program as tasks: actions with all that can be known before there is data."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from debubble.core.actions import TRANSFER_KINDS
from debubble.core.kinds import COPY_KINDS, KINDS, Kind, Need, Of
from debubble.torch.engine.plan import ExecutionPlan, ProgramStep

FORWARD, BACKWARD = False, True
"""Which way something goes."""

BY_SHARD = (Of.LAST_STAGE, Of.EVERY_SHARD)
BY_STEP = (Of.OWN_RANK, Of.EARLIER_RANKS, Of.EVERY_RANK)
"""Needs that passes of the output layer, and optimizer steps, exchange among all ranks."""

Key = tuple[bool, int, int]
"""Way, stage and microbatch (or slice) of what is ready for a computation."""


class Task(NamedTuple):
    """One action, with all that can be known before data is."""

    place: int
    """In the program."""
    step: ProgramStep
    run: Callable[..., None]
    """Gets the engine, the step, and the result of another stage."""
    takes: Key | None
    """The result of another stage that it computes with."""
    rest: tuple[Need, ...]
    """What else it waits for."""
    pace: float
    """Seconds that it lasts at least."""


class Move(NamedTuple):
    """A send or a receive."""

    step: ProgramStep
    sends: bool
    back: bool
    """Whether a gradient goes."""
    boundary: int
    """The stage that gets the activation, or made the gradient."""
    key: Key
    """What is sent, or becomes ready."""


def find_moves(program: Sequence[ProgramStep]) -> dict[int, Move]:
    """The transfers of a program by place."""
    found = {}
    for place, step in enumerate(program):
        spec = KINDS[step.kind]
        if step.kind in TRANSFER_KINDS:
            there = step.stage + spec.away
            back = is_backward(step)
            key = (back, there if spec.sends else step.stage, step.unit)
            found[place] = Move(step, spec.sends, back, max(step.stage, there), key)
    return found


def first_uses(plan: ExecutionPlan, rank: int) -> dict[Key, int]:
    """Where a rank's program first computes with the result of another stage."""
    found: dict[Key, int] = {}
    for place, step in enumerate(plan.programs[rank]):
        for need in KINDS[step.kind].needs:
            if need.through is not None and need.when(plan.lowered):
                found.setdefault((need.stage > 0, step.stage, step.unit), place)
    return found


def find_answers(plan: ExecutionPlan, rank: int) -> dict[int, tuple[int, int]]:
    """What a rank knows when a receive is over: its peer computed with what was sent before.

    By place of the receive: the peer, and how many sends to it are over for certain.
    """
    moves = find_moves(plan.programs[rank])
    found = {}
    for peer in {move.step.peer for move in moves.values()}:
        taken = first_uses(plan, peer)
        sent = {move.key: place for place, move in find_moves(plan.programs[peer]).items()
                if move.sends and move.step.peer == rank}  # fmt: skip
        to_peer = [m.key for m in moves.values() if m.sends and m.step.peer == peer]
        used = [taken.get(key, len(plan.programs[peer])) for key in to_peer]
        # Messages with their forms go beside the others: only those before which all are over.
        latest = list(accumulate(used, max))
        for place, move in moves.items():
            if not move.sends and move.step.peer == peer and move.key in sent:
                found[place] = peer, bisect_left(latest, sent[move.key])
    return found


def make_tasks(
    plan: ExecutionPlan, rank: int, handlers: Mapping[Kind, Callable[..., None]]
) -> list[range | list[Task]]:
    """What a rank does, one after the other: transfers to post together, or tasks of one group.

    The handler of a kind runs its actions.
    """
    schedule, program = plan.lowered, plan.programs[rank]
    needs = {spec.kind: [need for need in spec.needs if need.when(schedule)] for spec in KINDS}
    leaving = {(step.stage, step.unit) for step in program if step.kind in COPY_KINDS}
    last = schedule.stages - 1
    lasts = plan.pace_of(rank)

    def task(place: int) -> Task:
        step = program[place]
        takes, rest = None, []
        for need in needs[step.kind]:
            if need.last_stage_only and step.stage != last:
                continue
            if need.through is not None:
                if 0 <= step.stage + need.stage <= last:
                    takes = (need.stage > 0, step.stage, step.unit)
            elif KINDS[need.kinds[0]].undoes is not None:
                if (step.stage, step.unit) in leaving:
                    rest.append(need)
            elif need.of in BY_SHARD or (need.of in BY_STEP and not need.optional):
                rest.append(need)
        return Task(place, step, handlers[step.kind], takes, tuple(rest), lasts[place])

    return [
        range(first, end) if program[first].kind in TRANSFER_KINDS
        else [task(place) for place in range(first, end)]
        for first, end in group_bounds(program)
    ]  # fmt: skip


def is_backward(step: ProgramStep) -> bool:
    """Which way a transfer goes: what is received from the stage before is a forward's."""
    spec = KINDS[step.kind]
    return FORWARD if (spec.away < 0) == spec.receives else BACKWARD


def group_bounds(program: list[ProgramStep]) -> Iterator[tuple[int, int]]:
    """Begin and end of what is done together: contiguous transfers, groups, single actions."""
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
    """Let an action last until then, when its computation is over."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    time.sleep(max(0.0, end - time.perf_counter()))
