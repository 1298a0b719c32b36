"""Jobs of a run: every rank takes steps of one schedule on copies of a model's stages."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist

from debubble.core.schedule import Schedule
from debubble.interchange.cost_files import costs_data
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.pipeline import Pipeline
from debubble.torch.ranks.progress_table import Watch
from debubble.torch.ranks.world import World
from debubble.torch.run.run_data import RunData, copied
from debubble.torch.run.verify import RATE

WARM_UP = 1


@dataclass(frozen=True, eq=False)
class Job:
    """One schedule that all ranks run for some steps."""

    plan: ExecutionPlan
    data: RunData
    theirs: bool
    """If PyTorch's runtime runs it."""
    dtype: torch.dtype
    """Type of the numbers."""
    verifies: bool
    """If gradients and losses of one step are wanted; else times."""
    steps: int = 1
    """Number of timed steps, after one to warm up."""
    timeout: float = 600.0
    """Seconds that a rank waits for another; the supervisor of the run is to be faster."""

    def work(self, world: World, number: int) -> dict[str, Any]:
        """Take the steps on one rank; return its times, and gradients and losses to verify."""
        world.begin(number)
        device = torch.device(world.device)
        args, targets = self.data.microbatches(device, self.dtype)
        pipe = Stepping(self, world)
        times = []
        for step in range(self.steps if self.verifies else WARM_UP + self.steps):
            if device.type == "cuda" and step == WARM_UP:
                torch.cuda.reset_peak_memory_stats(device)
            dist.barrier()
            pipe.step(arg_mbs=args, target_mbs=targets)
            pipe.collect()
            if self.verifies or step >= WARM_UP:
                times.append(pipe.times())
        result: dict[str, Any] = {
            "times": np.array(times),
            "host": socket.gethostname(),
            "whole": sorted(pipe.whole.items()),
        }
        if self.verifies:
            result |= {"losses": pipe.shares, "gradients": pipe.gradients}
        else:
            result["costs"] = costs_data(pipe.costs())
            if device.type == "cuda":
                result["peak"] = torch.cuda.max_memory_allocated(device)
        return result


class Stepping(Pipeline):
    """A pipeline on copies of stages, with optimizer steps where the schedule has them."""

    def __init__(self, job: Job, world: World) -> None:
        self._job, self._world = job, world
        self._pace = job.plan.seconds.tolist()
        self._stepped = False
        """Whether the latest step had optimizer steps of its own."""
        self.gradients: dict[tuple[int, int], dict[str, NDArray[np.float64]]] = {}
        """By (iteration, stage) and name, when the job wants them. A shard of the output layer
        counts as the stage after the last."""
        self.shares: dict[int, float] = {}
        """Share of this rank's microbatches or slices in the loss of the latest step."""
        self.whole: dict[int, str] = {}
        """Reasons for which the backward of a stage is not split, by stage."""
        schedule, model = job.plan.schedule, job.data.model
        here = schedule.placement.stages_on(world.rank)
        own = {stage: model.stages[stage] for stage in here}
        super().__init__(
            schedule,
            copied(own, world.device, job.dtype),
            model.loss,
            engine="torch" if job.theirs else "debubble",
            shared=job.data.ties,
            timeout=job.timeout,
            device=world.device,
        )

    def collect(self) -> None:
        """Note the gradients of a step that has no optimizer steps of its own."""
        if not self._stepped:
            self._note(0)
        self._stepped = False
        self.zero_grad()

    def times(self) -> NDArray[np.int64]:
        """Those of this rank's actions in the latest step, on the clock of rank 0."""
        times: NDArray[np.int64] = self._engine.recorder.on_clock(self._clock)[-1]
        return times

    def _find(self, schedule: Any, _: Mapping[str, Any]) -> Schedule:
        # It is checked already, or known to be wrong.
        found: Schedule = schedule
        return found

    def _optimizer_steps(self) -> Callable[[int], None]:
        return self._take_step

    def _take_step(self, iteration: int) -> None:
        self._stepped = True
        self._note(iteration)
        with torch.no_grad():
            for weight in self.parameters():
                if weight.grad is not None:
                    weight.sub_(weight.grad, alpha=RATE)
        self.zero_grad()

    def _note(self, iteration: int) -> None:
        if not self._job.verifies:
            return
        modules: dict[int, nn.Module] = dict(self.stages)
        if self._shard is not None:
            modules[self.schedule.stages] = self._shard.rows
        for stage, module in modules.items():
            self.gradients[iteration, stage] = {
                name: (torch.zeros_like(weight) if weight.grad is None else weight.grad)
                .detach().cpu().numpy()
                for name, weight in module.named_parameters()
                if weight.requires_grad or weight.grad is not None
            }  # fmt: skip

    def _mean(self, losses: Mapping[int, Tensor]) -> Tensor:
        self.shares = {unit: float(loss) for unit, loss in losses.items()}
        return super()._mean(losses)

    def _warn(self, stage: int, why: str) -> None:
        self.whole[stage] = why

    def _make_watch(self) -> Watch:
        return Watch(self._world.table, self._world.rank)
