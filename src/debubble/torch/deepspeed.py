"""Our schedules in DeepSpeed's pipeline engine: one stage per rank, or its V of two.

The engine runs what a ``PipeSchedule`` yields, and ``install`` gives it ours::

    engine, *_ = deepspeed.initialize(model=PipelineModule(...), ...)
    debubble.torch.deepspeed.install(engine, "best.csv")
    loss = engine.train_batch(data)

DeepSpeed's messages block, one at a time. Here they stand in one order that all ranks share, see
:mod:`debubble.engine.transfers`: the first message that is not over is the next one of both its
ranks, so that ranks never wait for each other in a circle.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from debubble.core.actions import Kind, kinds_of
from debubble.core.errors import ParameterError
from debubble.core.kinds import KINDS
from debubble.core.schedule import Schedule
from debubble.engine.compile import UNIT_COSTS
from debubble.engine.timeline import simulate
from debubble.interchange.files import is_file_name
from debubble.interchange.layouts import in_v
from debubble.torch.engine.plan import ExecutionPlan, ProgramStep
from debubble.torch.setup import find_schedule

INSTRUCTIONS = {
    Kind.F: "ForwardPass", Kind.B: "BackwardPass", Kind.SEND_F: "SendActivation",
    Kind.RECV_F: "RecvActivation", Kind.SEND_B: "SendGrad", Kind.RECV_B: "RecvGrad",
}  # fmt: skip
"""DeepSpeed's instructions for actions."""

LOAD, COMMIT = "LoadMicroBatch", "CommitP2P"
AT_THE_END = ("ReduceTiedGrads", "ReduceGrads", "OptimizerStep")
COMPUTE = (Kind.F, Kind.B)

TRIED = "0.19.8"
"""Release whose engine the tests run."""


class Instruction(NamedTuple):
    """An instruction of DeepSpeed by the name of its class; None for what it has not."""

    name: str
    buffer: int | None = None
    phase: int | None = None
    """Way down or back of a V."""
    microbatch: int | None = None
    """Number of the microbatch that is loaded."""


def install(engine: Any, schedule: Any) -> None:
    """Have DeepSpeed's engine train by a schedule; evaluation stays DeepSpeed's.

    Microbatch n is the n-th of the iterator of data, whatever the order of forwards. Losses, and
    gradients that arrive before their backward, are kept for each microbatch: DeepSpeed's engine
    has one place for all of them.

    Parameters
    ----------
    engine
        A ``PipelineEngine``, or a ``DualPipeVEngine`` for a V of two stages per rank.
    schedule
        A schedule, a file, a result of the optimizer, or a name. One by name is made for the
        engine's stages and ``gradient_accumulation_steps``, anew where these change.

    Raises
    ------
    ParameterError
        When the engine is no pipeline of DeepSpeed's, or cannot run the schedule; from
        ``train_batch``, when the number of microbatches has changed since.
    """
    v = _check_engine(engine)
    theirs = importlib.import_module("deepspeed.runtime.pipe.schedule")
    named = isinstance(schedule, str) and not is_file_name(schedule)
    base = type(engine)._INSTRUCTION_MAP
    functions = _functions({kind.__name__: function for kind, function in base.items()}, v)
    own = {name: type(name, (getattr(theirs, name),), {}) for name in functions}
    made: dict[int, Any] = {}

    def train_schedule() -> Any:
        count = engine.micro_batches
        if count not in made:
            sizes = {"microbatches": count} if named else {}
            found = find_schedule(schedule, engine.num_stages, sizes, steps=False)
            _refuse(found, count, v)
            made[count] = _pipe_schedule(theirs, own, found, engine.stage_id)
        return made[count]

    train_schedule()
    engine._INSTRUCTION_MAP = base | {own[name]: function for name, function in functions.items()}
    engine._train_schedule = train_schedule


def uninstall(engine: Any) -> None:
    """Have DeepSpeed's engine train by its own schedule again."""
    for name in ("_train_schedule", "_INSTRUCTION_MAP"):
        vars(engine).pop(name, None)


def _check_engine(engine: Any) -> bool:
    """Return whether an engine holds a V; a ParameterError where it is no pipeline."""
    wanted = ("_train_schedule", "_INSTRUCTION_MAP", "micro_batches", "num_stages", "stage_id")
    lacking = [name for name in wanted if not hasattr(engine, name)]
    if lacking:
        raise ParameterError(
            f"the engine is a {type(engine).__name__} without {', '.join(lacking)}; give what "
            f"deepspeed.initialize returns for a PipelineModule (tried with DeepSpeed {TRIED})"
        )
    return hasattr(engine, "_exec_commit_p2p")


def _refuse(schedule: Schedule, microbatches: int, v: bool) -> None:
    """Refuse what an engine cannot run."""
    place = schedule.placement
    extra = {Kind(kind) for kind in np.unique(kinds_of(schedule.actions)).tolist()} - set(COMPUTE)
    several = schedule.iterations * schedule.slices * place.copies * (1 + schedule.vocabulary) > 1
    placed = in_v(place) if v else place.table[0] == tuple(range(place.ranks))
    where = "a DualPipeVEngine places two stages per rank in a V; take 1f1b-v, for instance"
    if not v:
        where = (
            "a PipelineEngine has one stage per rank; take a schedule with one chunk, or a "
            "DualPipeVModule for a V"
        )
    reasons = (
        (bool({Kind.I, Kind.W} & extra),
         "splits backwards, and DeepSpeed's are whole; take a schedule with whole ones, such as "
         "1f1b or 1f1b-v, or find one with debubble optimize --backward fused"),
        (bool(extra),
         f"has {', '.join(sorted(kind.name for kind in extra))} actions, and DeepSpeed runs "
         "forwards and backwards; make it without"),
        (several,
         "has several iterations, slices or copies of the model, or a sharded output layer, and "
         "DeepSpeed has none of them; take a schedule without"),
        (bool(schedule.carries),
         "carries something to a stage that is not the next, and DeepSpeed's stages hand on to the "
         "next alone; return it from every stage in between"),
        (not placed, f"has the placement '{place.name}' with {place.chunks} chunks, and {where}"),
        (schedule.microbatches != microbatches,
         f"has {schedule.microbatches} microbatches, and the engine {microbatches}; set "
         f"gradient_accumulation_steps to {schedule.microbatches}, or give the schedule by name"),
    )  # fmt: skip
    for applies, reason in reasons:
        if applies:
            raise ParameterError(f"'{schedule.name}' {reason}")


def _pipe_schedule(
    theirs: ModuleType, own: Mapping[str, type[Any]], schedule: Schedule, rank: int
) -> Any:
    """Return a DeepSpeed schedule that yields a rank's steps."""
    steps, buffers = steps_of(schedule, rank)

    class OwnSchedule(theirs.PipeSchedule):  # type: ignore[name-defined, misc]
        """A schedule of debubble."""

        def steps(self) -> Iterator[list[Any]]:
            for step in steps:
                yield [self._made(one) for one in step]

        def num_pipe_buffers(self) -> int:
            return buffers

        def _made(self, one: Instruction) -> Any:
            kind = own.get(one.name) or getattr(theirs, one.name)
            given = {"buffer_id": one.buffer, "phase": one.phase, "microbatch": one.microbatch}
            return kind(**{name: value for name, value in given.items() if value is not None})

    return OwnSchedule(schedule.microbatches, schedule.ranks, rank)


def steps_of(schedule: Schedule, rank: int) -> tuple[list[list[Instruction]], int]:
    """Return a rank's instructions, a list for every step, and its number of buffers.

    A forward takes one step, a backward two, and messages none. All ranks have the same number of
    steps, and both ends of a message are in the same one, so that ranks may meet between any two.
    """
    v, count = schedule.chunks > 1, schedule.microbatches
    last = schedule.stages - 1
    ends = {0} if v else {0, last}  # in a V one rank holds both ends and loads once
    held: dict[int, int] = {}
    """Buffers of microbatches that are under way; the smallest that is free comes next."""
    buffers = 2 * count if v else 0
    programs, length = _timed(schedule)
    steps: list[list[Instruction]] = [[] for _ in range(length + 1)]
    for time, step in programs[rank]:
        kind, stage, microbatch = step.kind, step.stage, step.unit
        phase = int(stage >= schedule.ranks) if v else None
        if phase is not None:
            buffer = phase * count + microbatch
        else:
            if microbatch not in held:
                held[microbatch] = min(set(range(len(held) + 1)) - set(held.values()))
            buffer = held[microbatch]
            buffers = max(buffers, buffer + 1)
        if kind == Kind.F and stage in ends:
            steps[time].append(Instruction(LOAD, buffer, microbatch=microbatch))
        steps[time].append(Instruction(INSTRUCTIONS[kind], buffer, phase))
        if v and kind not in COMPUTE:
            # Alone in its batch, a message stands where the shared order has it.
            steps[time].append(Instruction(COMMIT))
        if not v and (kind == Kind.SEND_B or (kind == Kind.B and stage == 0)):
            del held[microbatch]
    steps[-1] += map(Instruction, AT_THE_END)
    return steps, buffers


def _timed(schedule: Schedule) -> tuple[list[list[tuple[int, ProgramStep]]], int]:
    """Return the actions of all ranks with transfers and times, and the makespan.

    The time of a transfer is the start of the first action after it on its two ranks.
    """
    timeline = simulate(schedule, UNIT_COSTS)
    length = round(timeline.makespan)
    plan = ExecutionPlan.of(schedule, policy="queued")
    time = np.full(len(plan.lowered), length)
    time[plan.positions] = np.rint(timeline.start).astype(np.int64)
    starts: dict[tuple[Kind, int, int], int] = {}
    for program, (begin, end) in zip(plan.programs, pairwise(plan.lowered.offsets), strict=True):
        # Transfers take the time of what follows them.
        times = np.minimum.accumulate(time[begin:end][::-1])[::-1].tolist()
        for at, step in zip(times, program, strict=True):
            starts[_both_ends(step)] = min(at, starts.get(_both_ends(step), length))
    timed = [[(starts[_both_ends(step)], step) for step in program] for program in plan.programs]
    return timed, length


def _both_ends(step: ProgramStep) -> tuple[Kind, int, int]:
    """Return a name for an action, the same for a send and its receive."""
    end = step.other_end if KINDS[step.kind].receives else step
    return end.kind, end.stage, end.unit


def _functions(
    theirs: Mapping[str, Callable[..., None]], v: bool
) -> dict[str, Callable[..., None]]:
    """Return what the engine does for our instructions, by the names of DeepSpeed's.

    The engine of a V keeps losses and gradients by itself.
    """
    losses: dict[int, Any] = {}
    gradients: dict[int, Any] = {}
    ahead: dict[int, Any] = {}
    drawn = 0

    def load(engine: Any, buffer_id: int, microbatch: int) -> None:
        nonlocal drawn
        while drawn <= microbatch:
            ahead[drawn] = engine._next_batch()
            drawn += 1
        batch = ahead.pop(microbatch)
        if not ahead and drawn == engine.micro_batches:
            drawn = 0
        engine._next_batch = lambda: batch
        try:
            theirs[LOAD](engine, buffer_id)
        finally:
            del engine._next_batch

    def forward(engine: Any, buffer_id: int) -> None:
        theirs["ForwardPass"](engine, buffer_id)
        if engine.is_last_stage():
            losses[buffer_id] = engine.loss

    def backward(engine: Any, buffer_id: int) -> None:
        if engine.is_last_stage():
            engine.loss = losses.pop(buffer_id)
        else:
            engine.grad_layer = gradients.pop(buffer_id)
        theirs["BackwardPass"](engine, buffer_id)

    def receive(engine: Any, buffer_id: int) -> None:
        theirs["RecvGrad"](engine, buffer_id)
        found = engine.grad_layer
        many = isinstance(found, list | tuple)
        gradients[buffer_id] = [each.clone() for each in found] if many else found.clone()

    if v:
        return {LOAD: load}
    return {LOAD: load, "ForwardPass": forward, "BackwardPass": backward, "RecvGrad": receive}
