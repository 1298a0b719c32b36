"""Execute one rank's program: any schedule, action by action, over point-to-point calls."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeAlias

import numpy as np
import torch
import torch.fx.experimental.symbolic_shapes  # autograd's first backward would, in every process
from numpy.typing import NDArray
from torch import Tensor

from debubble.core.actions import TRANSFER_KINDS
from debubble.core.kinds import KINDS, Kind, Need, Of
from debubble.runtime.models import Batches
from debubble.runtime.offload import Copies
from debubble.runtime.plan import Plan, Step
from debubble.runtime.shard import Shard
from debubble.runtime.stage import Stage
from debubble.runtime.stage_groups import Unions
from debubble.runtime.transport import Arrival, Transport
from debubble.runtime.weights import Weights
from debubble.runtime.world import RunError, State, World

FORWARD, BACKWARD = "F", "B"
BY_SHARD = (Of.LAST_STAGE, Of.EVERY_SHARD)
BY_STEP = (Of.OWN_RANK, Of.EARLIER_RANKS, Of.EVERY_RANK)
"""Needs that passes of the output layer, and optimizer steps, exchange among all ranks."""


class Executor:
    """One rank of a schedule.

    Parameters
    ----------
    world
        Where it runs.
    plan
        What to run.
    batches
        The whole model and its data; this rank's stages are copied.
    dtype
        Of weights and activations.
    checks
        Whether transfers say what they are, which costs time.

    Attributes
    ----------
    start, end
        When every action of the program did, in nanoseconds of this host's monotonic clock.
    gradients
        By (iteration, copy, stage), summed over the copies of the model. A shard of the output
        layer counts as the stage after the last.
    """

    def __init__(
        self, world: World, plan: Plan, batches: Batches, dtype: torch.dtype, checks: bool
    ) -> None:
        self.world, self.schedule = world, plan.lowered
        self.program = plan.programs[world.rank]
        begin = int(self.schedule.offsets[world.rank])
        self.start: NDArray[np.int64] = np.zeros(len(self.program), dtype=np.int64)
        self.end = self.start.copy()
        self.gradients: dict[tuple[int, int, int], Weights] = {}
        self._pace = plan.pace[begin : begin + len(self.program)].tolist()
        self._groups = list(_groups(self.program))
        self._batches = batches.to(world.device, dtype)
        self._transport = Transport(world, dtype, checks)
        self._copies = Copies(world, plan)
        self._unions = Unions(self.schedule)
        self._ready: dict[tuple[str, int, int], Tensor | Arrival] = {}
        self._recomputed = {(s.stage, s.unit) for s in self.program if s.kind == Kind.R}
        self._leaving = {(s.stage, s.unit) for s in self.program if s.kind == Kind.OFFLOAD}
        self._away: set[tuple[int, int]] = set()
        """Of these, what has not come back in this step."""
        self._needs = {
            spec.kind: [need for need in spec.needs if need.when(self.schedule)] for spec in KINDS
        }
        self._steps = any(step.kind == Kind.OPT for step in self.program)
        self._steps_before = self._steps_done = 0
        splits = {step.stage for step in self.program if step.kind == Kind.I}
        last = self._last = self.schedule.stages - 1
        self.stages: dict[tuple[int, int], Stage] = {}
        for number, row in enumerate(self.schedule.placement.table):
            for stage in (stage for stage, rank in enumerate(row) if rank == world.rank):
                module = copy.deepcopy(batches.stage(stage)).to(world.device, dtype)
                loss = batches.model.loss if stage == last and batches.output is None else None
                wants_input = stage > 0 or stage in splits
                self.stages[number, stage] = Stage(
                    module, loss, wants_input, self.schedule.slices,
                    self.schedule.versions[world.rank],
                )  # fmt: skip
        self._shard = None
        if self.schedule.vocabulary:
            self._shard = Shard(world, plan, self._batches, dtype)
        self._cuda = world.device != "cpu"
        self._side = torch.cuda.Stream(world.device) if self._cuda else None
        begin_thread = torch.cuda.set_device if self._cuda else lambda _: None
        self._helper = ThreadPoolExecutor(1, "pair", begin_thread, (world.device,))
        self._aside: set[tuple[int, int]] = set()
        """Forwards that ran on the side stream, where their backwards will run, too."""

    @property
    def losses(self) -> dict[int, float]:
        """Share in the step's loss of every microbatch or slice whose last stage is here."""
        return {
            unit: float(loss)
            for piece in self._pieces.values()
            for unit, loss in piece.losses.items()
        }

    @property
    def _pieces(self) -> dict[tuple[int, int], Stage | Shard]:
        """By copy and stage, what has weights here."""
        shard = {} if self._shard is None else {(0, self._last + 1): self._shard}
        return {**self.stages, **shard}

    def step(self) -> None:
        """Walk the program once; gradients are zero before."""
        for piece in self._pieces.values():
            piece.weights.take_gradients()
        self._steps_before = self._steps_done
        self._aside.clear()
        self._away = set(self._leaving)
        self._copies.start()
        if self._shard is not None:
            self._shard.start()
        for begin, end in self._groups:
            first = self.program[begin]
            if first.kind in TRANSFER_KINDS:
                self._transfer(begin, end)
            elif first.kind in HANDLERS:
                self._compute(range(begin, end))
        self._transport.flush()
        self._copies.finish()
        if self._shard is not None:
            self._shard.finish()
        if not self._steps:
            self._sum_up(0)

    def _transfer(self, begin: int, end: int) -> None:
        """Post a group of sends and receives."""
        self.world.note(begin, State.RUNNING)
        sends, receives = [], []
        for index in range(begin, end):
            step = self.program[index]
            self.start[index] = time.perf_counter_ns()
            there = step.stage + KINDS[step.kind].away
            if KINDS[step.kind].sends:
                tensor = self._ready.pop((_way(step), there, step.unit), None)
                if not isinstance(tensor, Tensor):
                    raise RunError(f"{step} has nothing to send; it comes before its computation")
                sends.append((step, tensor))
            else:
                # A boundary has the shape of what goes into the stage behind it.
                shape = self._batches.shape(max(step.stage, there), step.unit)
                receives.append((index, step, shape))
        for arrival in self._transport.post(sends, receives):
            step = arrival.step
            self._ready[_way(step), step.stage, step.unit] = arrival
        self.end[begin:end] = time.perf_counter_ns()

    def _compute(self, indices: range) -> None:
        """Run one action, or the two of a pair at the same time."""
        operands = [self._wait_for(index) for index in indices]
        index = indices[0]
        self.world.note(index, State.RUNNING)
        begin = time.perf_counter_ns()
        if len(indices) == 1:
            self._run(self.program[index], operands[0])
        else:
            self._run_both(indices, operands)
        self._settle()
        rest = self._pace[index] - (time.perf_counter_ns() - begin) / 1e9
        if rest > 0:
            time.sleep(rest)
        self.start[indices.start : indices.stop] = begin
        self.end[indices.start : indices.stop] = time.perf_counter_ns()

    def _run_both(self, indices: range, operands: list[Tensor | None]) -> None:
        """A pair: the second half on a thread; on a GPU also on a stream, where its forward was."""
        first, second = (self.program[index] for index in indices)
        halves = list(zip((first, second), operands, strict=True))
        # A backward runs on the stream of its forward: the pair's forward takes the other one.
        others = {(s.stage, s.unit) for s in (first, second) if s.kind != Kind.F}
        aside = self._cuda and not others & self._aside
        for step, _ in halves:
            if aside and step.kind == Kind.F:
                self._aside.add((step.stage, step.unit))
        future = self._helper.submit(self._run, *halves[1])
        self._run(*halves[0])
        future.result()

    def _run(self, step: Step, operand: Tensor | None) -> None:
        """Do what an action says and hand its result on."""
        HANDLERS[step.kind](self, step, operand)

    def _stage(self, step: Step) -> Stage:
        return self.stages[step.copy, step.stage]

    def _forward(self, step: Step, operand: Tensor | None) -> None:
        unit, key = step.unit, (step.stage, step.unit)
        x = self._batches.input(unit) if operand is None else operand
        side = torch.cuda.stream(self._side) if key in self._aside else nullcontext()
        with side:
            output = self._stage(step).forward(
                unit, x, *self._batches.target(unit, step.stage), version=self._version(unit),
                recomputed=key in self._recomputed, leaves=key in self._leaving,
            )  # fmt: skip
        if step.stage < self._last:
            self._ready[FORWARD, step.stage + 1, unit] = output
        elif self._shard is not None:
            self._shard.given(unit, output)

    def _recompute(self, step: Step, operand: Tensor | None) -> None:
        if operand is not None:
            # It only waits for the gradient, which is its backward's.
            self._ready[BACKWARD, step.stage, step.unit] = operand
        self._stage(step).recompute(step.unit)

    def _backward_input(self, step: Step, operand: Tensor | None) -> None:
        self._hand_back(step, self._stage(step).backward_input(step.unit, operand))

    def _backward(self, step: Step, operand: Tensor | None) -> None:
        self._hand_back(step, self._stage(step).backward(step.unit, operand))

    def _hand_back(self, step: Step, gradient: Tensor | None) -> None:
        if gradient is not None and step.stage > 0:
            self._ready[BACKWARD, step.stage - 1, step.unit] = gradient

    def _backward_weight(self, step: Step, _: Tensor | None) -> None:
        self._stage(step).backward_weight(step.unit)

    def _first_pass(self, step: Step, _: Tensor | None) -> None:
        self._own_shard.first_pass(step.unit, self._version(step.unit))

    def _second_pass(self, step: Step, _: Tensor | None) -> None:
        self._own_shard.second_pass(step.unit)

    def _optimizer_step(self, step: Step, _: Tensor | None) -> None:
        self._sum_up(step.unit)
        self._steps_done += 1
        for place, piece in self._pieces.items():
            piece.weights.step(self.gradients[step.unit, *place])

    def _offload(self, step: Step, _: Tensor | None) -> None:
        row = self._stage(step).activations(step.unit).leave()
        self._copies.leave((step.stage, step.unit), row)

    def _reload(self, step: Step, _: Tensor | None) -> None:
        size = self._stage(step).activations(step.unit).size
        self._copies.fetch((step.stage, step.unit), size)

    @property
    def _own_shard(self) -> Shard:
        assert self._shard is not None, "other schedules have no such passes"
        return self._shard

    def _version(self, unit: int) -> int:
        """The version of the weights for a microbatch: the oldest that is kept, see verify.py."""
        if not self._steps:
            return 0
        iteration = unit // (self.schedule.microbatches * self.schedule.slices)
        older = self.schedule.versions[self.world.rank] - 1
        return self._steps_before + max(iteration - older, 0)

    def _wait_for(self, index: int) -> Tensor | None:
        """What an action computes with, when all that its kind needs is there."""
        step = self.program[index]
        found = None
        for need in self._needs[step.kind]:
            if need.last_stage_only and step.stage != self._last:
                continue
            if need.through is not None:
                if 0 <= step.stage + need.stage <= self._last:
                    found = self._take((_way_of(need), step.stage, step.unit), index)
            elif Kind.RELOAD in need.kinds:
                self._come_back(index)
            elif need.of in BY_SHARD:
                found = self._of_shard(index, need)
            elif need.of in BY_STEP and not need.optional:
                self.world.note(index, State.WAITING)
                self._unions.agree()
        return found

    def _of_shard(self, index: int, need: Need) -> Tensor | None:
        """What the output layer's shards have to give; the gradient to the last stage's backward.

        A recompute may have waited for that before.
        """
        step = self.program[index]
        if (BACKWARD, step.stage, step.unit) in self._ready and need.last_stage_only:
            return self._take((BACKWARD, step.stage, step.unit), index)
        self.world.note(index, State.WAITING)
        self._own_shard.wait_for(need, step.unit)
        return self._own_shard.gradient(step.unit) if need.last_stage_only else None

    def _come_back(self, index: int) -> None:
        """Wait for an activation that left, once."""
        step = self.program[index]
        key = (step.stage, step.unit)
        if key in self._away:
            self._away.remove(key)
            self.world.note(index, State.WAITING)
            row = self._copies.back(key).to(self.world.device)
            self._stage(step).activations(step.unit).come_back(row)

    def _take(self, key: tuple[str, int, int], index: int) -> Tensor:
        found = self._ready.pop(key, None)
        if found is None:
            raise RunError(f"{self.program[index]} has no input; nothing was received for it")
        if isinstance(found, Arrival):
            self.world.note(found.position, State.WAITING)
            found = self._transport.receive(found)
            self._settle()
        return found

    def _sum_up(self, iteration: int) -> None:
        """Gradients of an iteration, of all copies together."""
        own = {place: piece.weights.take_gradients() for place, piece in self._pieces.items()}
        for place, gradients in self._unions.sum(own).items():
            self.gradients[iteration, *place] = gradients

    def _settle(self) -> None:
        # Not the whole device: receives that are posted for later would have to arrive first.
        if self._cuda:
            torch.cuda.current_stream().synchronize()
            self._side.synchronize()  # type: ignore[union-attr]


Handler: TypeAlias = Callable[[Executor, Step, Tensor | None], None]

HANDLERS: dict[Kind, Handler] = {
    Kind.F: Executor._forward,
    Kind.I: Executor._backward_input,
    Kind.W: Executor._backward_weight,
    Kind.B: Executor._backward,
    Kind.R: Executor._recompute,
    Kind.OPT: Executor._optimizer_step,
    Kind.OFFLOAD: Executor._offload,
    Kind.RELOAD: Executor._reload,
    Kind.S: Executor._first_pass,
    Kind.T: Executor._second_pass,
}
"""What runs an action of a kind. Transfers go out in groups; what data-parallel replicas exchange
is skipped, as there are none here."""


def _way_of(need: Need) -> str:
    """Which way the result of another stage comes."""
    return FORWARD if need.stage < 0 else BACKWARD


def _way(step: Step) -> str:
    """Which way a transfer goes: what is received from the stage before is a forward's."""
    spec = KINDS[step.kind]
    return FORWARD if (spec.away < 0) == spec.receives else BACKWARD


def _groups(program: list[Step]) -> Iterator[tuple[int, int]]:
    """Begin and end of what is done together: contiguous transfers, pairs, single actions."""
    index = 0
    while index < len(program):
        end = index + 1
        if program[index].kind in TRANSFER_KINDS:
            while end < len(program) and program[end].kind in TRANSFER_KINDS:
                end += 1
        elif program[index].pair == 1:
            end += 1
        yield index, end
        index = end
