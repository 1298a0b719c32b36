"""Execute one rank's program: any schedule, action by action, over point-to-point calls."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import torch
import torch.fx.experimental.symbolic_shapes  # autograd's first backward would, in every process
from numpy.typing import NDArray
from torch import Tensor

from debubble.core.actions import TRANSFER_KINDS, VOCABULARY_KINDS, Kind
from debubble.runtime.models import Batches
from debubble.runtime.offload import Copies
from debubble.runtime.plan import Plan, Step
from debubble.runtime.shard import Shard
from debubble.runtime.stage import Stage
from debubble.runtime.transport import Arrival, Transport
from debubble.runtime.union import Unions
from debubble.runtime.weights import Weights
from debubble.runtime.world import RunError, State, World

FORWARD, BACKWARD = "F", "B"
SKIPPED = (Kind.REDUCE_GRAD, Kind.UNSHARD, Kind.RESHARD)
"""Actions of fully sharded data parallelism, of which there is none here."""


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
        self._copies.start()
        if self._shard is not None:
            self._shard.start()
        for begin, end in self._groups:
            first = self.program[begin]
            if first.kind in TRANSFER_KINDS:
                self._transfer(begin, end)
            elif first.kind not in SKIPPED:
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
            forward = step.kind in (Kind.SEND_F, Kind.RECV_F)
            way = FORWARD if forward else BACKWARD
            if step.kind in (Kind.SEND_F, Kind.SEND_B):
                key = (way, step.stage + (1 if forward else -1), step.unit)
                tensor = self._ready.pop(key, None)
                if not isinstance(tensor, Tensor):
                    raise RunError(f"{step} has nothing to send; it comes before its computation")
                sends.append((step, tensor))
            else:
                source = step.stage if forward else step.stage + 1
                receives.append((index, step, self._batches.shape(source, step.unit)))
        for arrival in self._transport.post(sends, receives):
            step = arrival.step
            way = FORWARD if step.kind == Kind.RECV_F else BACKWARD
            self._ready[way, step.stage, step.unit] = arrival
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
        kind, unit, key = step.kind, step.unit, (step.stage, step.unit)
        if kind == Kind.OPT:
            self._sum_up(unit)
            self._steps_done += 1
            for place, piece in self._pieces.items():
                piece.weights.step(self.gradients[unit, *place])
            return
        if kind in VOCABULARY_KINDS:
            assert self._shard is not None, "other schedules have no such passes"
            if kind == Kind.S:
                self._shard.first_pass(unit, self._version(unit))
            else:
                self._shard.second_pass(unit)
            return
        stage = self.stages[step.copy, step.stage]
        if kind == Kind.F:
            x = self._batches.input(unit) if operand is None else operand
            side = torch.cuda.stream(self._side) if key in self._aside else nullcontext()
            with side:
                output = stage.forward(
                    unit, x, *self._batches.target(unit, step.stage), version=self._version(unit),
                    recomputed=key in self._recomputed, leaves=key in self._leaving,
                )  # fmt: skip
            if step.stage < self._last:
                self._ready[FORWARD, step.stage + 1, unit] = output
            elif self._shard is not None:
                self._shard.given(unit, output)
        elif kind == Kind.R:
            stage.recompute(unit)
        elif kind == Kind.W:
            stage.backward_weight(unit)
        elif kind == Kind.OFFLOAD:
            self._copies.leave(key, stage.activations(unit).leave())
        elif kind == Kind.RELOAD:
            self._copies.fetch(key, stage.activations(unit).size)
        else:
            back = stage.backward_input if kind == Kind.I else stage.backward
            gradient = back(unit, operand)
            if gradient is not None and step.stage > 0:
                self._ready[BACKWARD, step.stage - 1, unit] = gradient

    def _version(self, unit: int) -> int:
        """The version of the weights for a microbatch: the oldest that is kept, see verify.py."""
        if not self._steps:
            return 0
        iteration = unit // (self.schedule.microbatches * self.schedule.slices)
        older = self.schedule.versions[self.world.rank] - 1
        return self._steps_before + max(iteration - older, 0)

    def _wait_for(self, index: int) -> Tensor | None:
        """What an action computes with, when that is there."""
        step = self.program[index]
        kind, key = step.kind, (step.stage, step.unit)
        if kind == Kind.OPT:
            self.world.note(index, State.WAITING)
            self._unions.agree()
        gradient = kind in (Kind.I, Kind.B)
        if gradient and key in self._leaving:
            self.world.note(index, State.WAITING)
            self.stages[step.copy, step.stage].activations(step.unit).come_back(
                self._copies.back(key).to(self.world.device)
            )
        if kind == Kind.F and step.stage > 0:
            return self._take((FORWARD, *key), index)
        if kind in VOCABULARY_KINDS:
            assert self._shard is not None, "other schedules have no such passes"
            self.world.note(index, State.WAITING)
            self._shard.wait_for(step)
        if gradient:
            return self._gradient(index)
        if kind == Kind.R and self.schedule.recompute_after == "gradient":
            found = self._gradient(index)
            if found is not None:
                self._ready[BACKWARD, *key] = found
        return None

    def _gradient(self, index: int) -> Tensor | None:
        """The gradient of a stage's output; None where that is the loss."""
        step = self.program[index]
        key = (BACKWARD, step.stage, step.unit)
        if step.stage == self._last and key not in self._ready:
            if self._shard is None:
                return None
            self.world.note(index, State.WAITING)
            self._shard.wait_for(step)
            return self._shard.gradient(step.unit)
        return self._take(key, index)

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
