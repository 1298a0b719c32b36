"""Our own engine: any schedule, action by action, over point-to-point calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes  # autograd's first backward would, in every process
from torch import Tensor

from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS, Kind, Need
from debubble.lowering.transfers import ReceivePolicy
from debubble.torch.autograd.gradients import Gradients, set_last_backward
from debubble.torch.data.batch import StepData, add_by_unit
from debubble.torch.engine.engine_setup import EngineSetup, make_stages
from debubble.torch.engine.offload import Copies
from debubble.torch.engine.plan import ExecutionPlan, ProgramStep
from debubble.torch.engine.recorder import Recorder
from debubble.torch.engine.stage import StageInput, StageOutput
from debubble.torch.engine.tasks import (
    BACKWARD,
    BY_SHARD,
    CARRIED,
    CARRIED_BACK,
    FORWARD,
    InputKey,
    Pairs,
    Task,
    find_answers,
    find_moves,
    make_tasks,
    range_names,
    sleep_until,
)
from debubble.torch.engine.vocabulary import Shard
from debubble.torch.engine.wire import Arrival, Boundary, SendPost, Wire
from debubble.torch.errors import RunError
from debubble.torch.models.modules import autocast_of, is_sharded
from debubble.torch.ranks.progress_table import RankState, Watch


@dataclass(eq=False)
class OwnEngine:
    """One rank of a schedule on our own engine."""

    setup: EngineSetup
    """Schedule, stages and loss."""
    gradients: Gradients
    """Gradients that several ranks sum or average."""
    watch: Watch
    """Progress of this rank, for messages."""
    wire: Wire
    """Transfers, with the forms that are known already."""
    shard: Shard | None = None
    """This rank's rows of the output layer, where that is sharded."""
    pace: Sequence[float] = ()
    """Shortest time of each action of the schedule in seconds, to imitate other hardware; empty for
    as long as it takes."""
    steps: Callable[[int], None] | None = None
    """Function that takes an optimizer step, by iteration; None where the training loop does, after
    every walk."""

    def __post_init__(self) -> None:
        setup = self.setup
        self.ranks = setup.ranks
        schedule = setup.schedule
        # A batch is one piece of work, which is over when all its receives are.
        policy: ReceivePolicy = "just-in-time" if self.ranks.batched else "eager"
        self.plan = plan = ExecutionPlan.of(schedule, self.pace, policy)
        self.schedule = plan.lowered
        self.program = plan.programs[self.ranks.rank]
        self.recorder = Recorder(len(self.program), self.ranks.device)
        self._last = schedule.stages - 1
        if self.shard is not None:
            self.shard.follow(plan)
        self.copies = Copies(self.ranks, plan)
        self._ready: dict[InputKey, StageOutput | Arrival | list[Tensor]] = {}
        self._came: dict[InputKey, Any] = {}
        """Carried tensors that have arrived, for actions that have not run."""
        self._takes: dict[tuple[int, int], int] = {}
        """Tensors among the inputs of a stage and unit whose gradients are carried back."""
        self._targets = dict(schedule.carries)
        self._sources = {target: source for source, target in schedule.carries}
        self._recomputed = {(s.stage, s.unit) for s in self.program if s.kind == Kind.R}
        self._leaving = {(s.stage, s.unit) for s in self.program if s.kind == Kind.OFFLOAD}
        self._away: set[tuple[int, int]] = set()
        """Those of them that have not come back in this step."""
        self.stages = make_stages(setup, self.program)
        self._versions = [one.versions for one in self.stages.values() if one.versions is not None]
        self._sharded = {number for number, module in setup.modules.items() if is_sharded(module)}
        self._ends = {
            step.stage: index for index, step in enumerate(self.program)
            if step.kind in GRADIENT_KINDS
        }  # fmt: skip
        self._moves = find_moves(self.program)
        self._answers = find_answers(plan, self.ranks.rank)
        self._tasks = make_tasks(plan, self.ranks.rank, HANDLERS)
        self._batch, self._training = StepData(), True
        self._pairs = Pairs(
            self.ranks.device,
            [number for number, module in setup.modules.items()
             if any(map(is_sharded, module.modules()))],
        )  # fmt: skip
        self._casting: Callable[[], AbstractContextManager[Any]] = nullcontext

    def step(self, batch: StepData) -> dict[int, Tensor]:
        """Run the program once, and add gradients to those of the modules' parameters."""
        self._start(batch, training=True)
        if torch.autograd.profiler._is_profiler_enabled:
            self.recorder.name_ranges(range_names(self.program))
        self.copies.start()
        for versions in self._versions:
            versions.start()
        for number in self._sharded:
            set_last_backward(self.setup.modules[number], False)
        for part in self._tasks:
            if isinstance(part, range):
                self._transfer(part)
            elif len(part) == 1:
                self._compute(part[0])
            else:
                self._compute_group(part)
        self.watch.state = RankState.WAITING
        self.wire.finish(self._wait)
        self.copies.finish()
        if self.shard is not None:
            self.shard.finish()
        for versions in self._versions:
            versions.collect()
        self.recorder.close()
        return self._losses()

    def forward(
        self, batch: StepData, outputs: bool
    ) -> tuple[Mapping[int, Tensor], Mapping[int, Any]]:
        """Run forwards only, in the order of the program; return losses and outputs by unit."""
        self._start(batch, training=False)
        last = self.stages.get(self._last)
        kept: dict[int, Any] = {}
        if last is not None:
            last.outputs = kept if outputs or self.shard is not None else None
        with torch.no_grad():
            for part in self._tasks:
                if isinstance(part, range):
                    indices = [at for at in part if self.program[at].kind in FORWARD_KINDS]
                    if indices:
                        self._transfer(indices)
                    continue
                for task in part:
                    if task.step.kind == Kind.F:
                        operand = self._take_inputs(task)
                        self.watch.position, self.watch.state = task.place, RankState.RUNNING
                        self._forward(task.step, operand)
        self.watch.state = RankState.WAITING
        self.wire.finish(self._wait)
        losses = self._losses()
        if self.shard is not None:
            losses, kept = self.shard.evaluate(kept, batch)
        return losses, kept

    def _start(self, batch: StepData, training: bool) -> None:
        self._batch, self._training = batch, training
        self.wire.log.begin(whole=training)
        if batch.anew:
            self.wire.forget()
        self._ready.clear()
        self._came.clear()
        self._takes.clear()
        self._pairs.start()
        self._away = set(self._leaving) if training else set()
        self._casting = autocast_of(self.ranks.device)
        for stage in self.stages.values():
            stage.start()
            stage.follow(batch)
        if self.shard is not None:
            self.shard.start(batch, training)

    def _losses(self) -> dict[int, Tensor]:
        parts = [stage.losses for stage in self.stages.values()]
        if self.shard is not None:
            parts.append({unit: [loss] for unit, loss in self.shard.losses.items()})
        return add_by_unit(parts)

    def _transfer(self, indices: Sequence[int]) -> None:
        """Post a group of sends and receives."""
        # A peer that is gone fails a post, too.
        self._wait(indices[0])
        sends, arrivals, sent, signatures = [], [], [], self._batch.signatures
        for index in indices:
            step, is_send, back, source, target, key = self._moves[index]
            signature = signatures[step.unit]
            boundary = Boundary(step.copy, source, target, key[0] >= CARRIED, signature)
            if is_send:
                ready = self._ready.pop(key, None)
                if ready is None or isinstance(ready, Arrival):
                    raise RunError(f"{step} has nothing to send; it comes before its computation")
                tensors = ready.tensors if isinstance(ready, StageOutput) else ready
                sends.append(SendPost(step, boundary, tensors, back))
                self.recorder.begin(index)
                sent.append(index)
            else:
                self._ready[key] = arrival = Arrival(step, boundary, back, index)
                arrivals.append(arrival)
        now = time.perf_counter_ns()
        self.wire.post(indices[0], sends, arrivals)
        for arrival in arrivals:
            self.recorder.posted[arrival.position] = now
        for index in sent:
            self.recorder.finish(index)

    def _compute(self, task: Task) -> None:
        """Run one action."""
        operand = self._wait_for(task)
        watch, recorder, index = self.watch, self.recorder, task.place
        watch.position, watch.state = index, RankState.RUNNING
        recorder.begin(index)
        end = time.perf_counter() + task.pace
        task.run(self, task.step, operand)
        if task.pace:
            sleep_until(end, self.ranks.device)
        recorder.finish(index)

    def _compute_group(self, tasks: Sequence[Task]) -> None:
        """Run the actions of an overlapped group; each has the times of the whole group."""
        operands = [self._wait_for(task) for task in tasks]
        watch, recorder = self.watch, self.recorder
        watch.position, watch.state = tasks[0].place, RankState.RUNNING
        for task in tasks:
            recorder.begin(task.place)
        end = time.perf_counter() + tasks[0].pace
        self._pairs.run(
            [(task, operand, partial(self._half, task, operand))
             for task, operand in zip(tasks, operands, strict=True)]
        )  # fmt: skip
        if tasks[0].pace:
            sleep_until(end, self.ranks.device)
        for task in tasks:
            recorder.finish(task.place)

    def _half(self, task: Task, operand: Any) -> None:
        self.watch.position = task.place
        task.run(self, task.step, operand)

    def _hand(self, step: ProgramStep, target: int, output: StageOutput, carried: bool) -> None:
        """Keep what a stage made for another, which may be on this rank."""
        signature = self._batch.signatures[step.unit]
        boundary = Boundary(step.copy, step.stage, target, carried, signature)
        self.wire.check(boundary, output.form)
        self._ready[CARRIED if carried else FORWARD, target, step.unit] = output

    def _forward(self, step: ProgramStep, operand: Any) -> None:
        unit, key = step.unit, (step.stage, step.unit)
        batch = self._batch
        training = self._training
        given = StageInput(
            batch.args[unit] if operand is None else operand,
            batch.kwargs.get(unit, {}),
            batch.targets.get(unit) if step.stage == self._last else None,
            batch.weights[unit] * batch.scale,
            self._came.pop((CARRIED, *key), None) if self._sources else None,
        )
        if given.carried is not None:
            self._takes[key] = sum(leaf.carries for leaf in given.carried.form.tensors)
        with self._casting():
            handed = self.stages[step.stage].forward(
                unit, given, graph=training, recomputed=training and key in self._recomputed,
                leaves=training and key in self._leaving,
                iteration=unit // (self.schedule.microbatches * self.schedule.slices),
            )  # fmt: skip
        if step.stage < self._last:
            assert handed is not None, "only the last stage hands nothing on"
            self._hand(step, step.stage + 1, handed, carried=False)
            if handed.carried is not None:
                self._hand(step, self._targets[step.stage], handed.carried, carried=True)
        elif self.shard is not None and handed is not None and training:
            self.shard.given(unit, handed.tensors[0])

    def _recompute(self, step: ProgramStep, operand: Any) -> None:
        if operand is not None:
            # R waits for the gradient without using it: it is its backward's.
            self._ready[BACKWARD, step.stage, step.unit] = operand
        with self._casting():
            self.stages[step.stage].recompute(step.unit)

    def _backward(self, step: ProgramStep, operand: Any) -> None:
        stage = self.stages[step.stage]
        backward = stage.backward_input if step.kind == Kind.I else stage.backward
        if step.stage in self._sharded and self.program[self._ends[step.stage]] == step:
            set_last_backward(self.setup.modules[step.stage], True)
        if step.stage in self._targets:
            operand = [*(operand or ()), *self._came.pop((CARRIED_BACK, step.stage, step.unit))]
        found = backward(step.unit, operand)
        if step.stage in self._sources:
            own = len(found) - self._takes.pop((step.stage, step.unit))
            self._ready[CARRIED_BACK, self._sources[step.stage], step.unit] = found[own:]
            found = found[:own]
        if step.stage > 0:
            self._ready[BACKWARD, step.stage - 1, step.unit] = found

    def _shard_pass(self, step: ProgramStep, _: Any) -> None:
        assert self.shard is not None, "other schedules have no such passes"
        if step.kind == Kind.S:
            self.shard.first_pass(step.unit)
        else:
            self.shard.second_pass(step.unit)

    def _optimizer_step(self, step: ProgramStep, _: Any) -> None:
        assert self.steps is not None, "schedules without such steps have no such actions"
        for versions in self._versions:
            versions.collect()
        self.gradients.finish()
        self.steps(step.unit)
        self.gradients.start()
        for versions in self._versions:
            versions.refresh()

    def _offload(self, step: ProgramStep, _: Any) -> None:
        row = self.stages[step.stage].activations(step.unit).leave()
        self.copies.leave((step.stage, step.unit), row)

    def _reload(self, step: ProgramStep, _: Any) -> None:
        size = self.stages[step.stage].activations(step.unit).size
        self.copies.fetch((step.stage, step.unit), size)

    def _gather(self, step: ProgramStep, _: Any) -> None:
        if step.stage in self._sharded:
            getattr(self.setup.modules[step.stage], step.kind.name.lower())()

    def _wait_for(self, task: Task) -> Any:
        """Wait for all that an action's kind needs; return the input of its computation."""
        found = self._take_inputs(task)
        key = (task.step.stage, task.step.unit)
        for need in task.rest:
            if Kind.RELOAD in need.kinds:
                # An offloaded activation comes back once.
                if key in self._away:
                    self._away.remove(key)
                    self._wait(task.place)
                    row = self.copies.back(key).to(self.ranks.device)
                    self.stages[key[0]].activations(key[1]).come_back(row)
            elif need.of in BY_SHARD:
                found = self._of_shard(task, need)
            else:
                self._wait(task.place)
                self.ranks.agree(self.schedule.sync)
        return found

    def _take_inputs(self, task: Task) -> Any:
        """Wait for results of other stages; return that of a neighbor, and keep a carried one."""
        found = None if task.takes is None else self._take(task.takes, task.place)
        # A recompute may have waited for the gradient before.
        if task.carried is not None and task.carried not in self._came:
            self._came[task.carried] = self._take(task.carried, task.place)
        return found

    def _of_shard(self, task: Task, need: Need) -> Any:
        """Wait for the output layer's shards; return the gradient for the last stage's backward.

        A recompute may have waited for the gradient before.
        """
        step = task.step
        key = (BACKWARD, step.stage, step.unit)
        if need.last_stage_only and key in self._ready:
            return self._take(key, task.place)
        self._wait(task.place)
        shard = self.shard
        assert shard is not None, "other schedules have no such needs"
        shard.wait_for(need, step.unit)
        return [shard.gradient(step.unit)] if need.last_stage_only else None

    def _take(self, key: InputKey, index: int) -> Any:
        found = self._ready.pop(key, None)
        if found is None:
            raise RunError(f"{self.program[index]} has no input; nothing was received for it")
        if found.__class__ is Arrival:
            place = found.position
            self._wait(place)
            self.recorder.begin(place)
            tensors = self.wire.receive(found)
            self.recorder.finish(place)
            if self._training and place in self._answers:
                self.wire.release_sent(*self._answers[place])
            assert found.form is not None, "a form comes with the first tensors at the latest"
            return tensors if found.back else StageOutput(tensors, found.form)
        return found

    def _wait(self, index: int) -> None:
        self.watch.position, self.watch.state = index, RankState.WAITING


HANDLERS: dict[Kind, Callable[[OwnEngine, ProgramStep, Any], None]] = {
    Kind.F: OwnEngine._forward,
    Kind.I: OwnEngine._backward,
    Kind.W: lambda engine, step, _: engine.stages[step.stage].backward_weight(step.unit),
    Kind.B: OwnEngine._backward,
    Kind.R: OwnEngine._recompute,
    Kind.OPT: OwnEngine._optimizer_step,
    Kind.OFFLOAD: OwnEngine._offload,
    Kind.RELOAD: OwnEngine._reload,
    Kind.WAIT_OFFLOAD: lambda engine, step, _: engine.copies.left((step.stage, step.unit)),
    Kind.S: OwnEngine._shard_pass,
    Kind.T: OwnEngine._shard_pass,
    Kind.REDUCE_GRAD: lambda engine, step, _: engine.gradients.reduce(step.stage),
    Kind.UNSHARD: OwnEngine._gather,
    Kind.RESHARD: OwnEngine._gather,
}
"""Handlers by kind of action. Transfers are posted in groups, by :meth:`OwnEngine._transfer`."""
