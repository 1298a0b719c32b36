"""Execute a compute order on PyTorch's own runtime, from the CSV that it reads."""

from __future__ import annotations

import copy
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from debubble.core.actions import Kind
from debubble.runtime.models import Batches
from debubble.runtime.plan import Plan
from debubble.runtime.weights import Weights
from debubble.runtime.world import State, World


class TorchRank:
    """One rank of a schedule under ``torch.distributed.pipelining``.

    Parameters and attributes are those of :class:`debubble.runtime.executor.Executor`. PyTorch
    inserts its own sends and receives; an action's time is what its stage's method takes, so that
    it waits outside of it.
    """

    def __init__(self, world: World, plan: Plan, batches: Batches, dtype: torch.dtype) -> None:
        self.world, schedule = world, plan.schedule
        self.program = plan.programs[world.rank]
        self.index = {(s.kind, s.stage, s.unit): i for i, s in enumerate(self.program)}
        begin = int(schedule.offsets[world.rank])
        self.pace = plan.pace[begin : begin + len(self.program)].tolist()
        self.start: NDArray[np.int64] = np.zeros(len(self.program), dtype=np.int64)
        self.end = self.start.copy()
        self.losses: dict[int, float] = {}
        self._stages = [
            _TimedStage(
                self,
                copy.deepcopy(batches.model.stages[stage]).to(world.device, dtype),
                stage,
                schedule.stages,
            )
            for stage in schedule.placement.stages_on(world.rank)
        ]
        self._runtime = _PipelineScheduleRuntime(
            list(self._stages), schedule.microbatches, loss_fn=batches.model.loss
        )
        with tempfile.TemporaryDirectory(prefix="debubble-") as folder:
            path = Path(folder) / "schedule.csv"
            path.write_text("".join(",".join(row) + "\n" for row in schedule.rows()))
            self._runtime._load_csv(str(path), format="compute_only")
        batches = batches.to(world.device, dtype)
        inputs, targets = zip(
            *(batches.microbatch(unit) for unit in range(schedule.microbatches)), strict=True
        )
        here = {stage.stage_index for stage in self._stages}
        self._inputs = [torch.cat(inputs)] if 0 in here else []
        self._target = torch.cat(targets) if schedule.stages - 1 in here else None

    @property
    def gradients(self) -> dict[tuple[int, int, int], Weights]:
        """Gradients by (0, 0, stage)."""
        return {
            (0, 0, stage.stage_index): {
                name: torch.zeros_like(weight) if weight.grad is None else weight.grad
                for name, weight in stage.submod.named_parameters()
            }
            for stage in self._stages
        }

    def step(self) -> None:
        """Run all microbatches; gradients are zero before."""
        for stage in self._stages:
            stage.submod.zero_grad()
        found: list[Tensor] = []
        self._runtime.step(*self._inputs, target=self._target, losses=found)
        count = len(found)
        self.losses = {unit: float(loss.detach()) / count for unit, loss in enumerate(found)}

    def timed(self, kind: Kind, stage: int, unit: int, method: Any) -> Any:
        """Call a stage's method as an action: note where it is, how long it takes, pace it."""
        index = self.index[kind, stage, unit]
        self.world.note(index, State.RUNNING)
        self.start[index] = begin = time.perf_counter_ns()
        result = method()
        if self.world.device != "cpu":
            torch.cuda.current_stream().synchronize()
        rest = self.pace[index] - (time.perf_counter_ns() - begin) / 1e9
        if rest > 0:
            time.sleep(rest)
        self.end[index] = time.perf_counter_ns()
        self.world.note(index + 1, State.WAITING)
        return result


class _TimedStage(PipelineStage):
    """A stage whose actions are timed; what it computes is PyTorch's."""

    def __init__(self, owner: TorchRank, module: nn.Module, index: int, count: int) -> None:
        super().__init__(module, index, count, torch.device(owner.world.device))
        self._owner = owner

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        method = super().forward_one_chunk
        return self._owner.timed(
            Kind.F, self.stage_index, fwd_chunk_id, lambda: method(fwd_chunk_id, *args, **kwargs)
        )

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        method = super().backward_one_chunk
        kind = Kind.B if kwargs.get("full_backward", True) else Kind.I
        return self._owner.timed(
            kind, self.stage_index, bwd_chunk_id, lambda: method(bwd_chunk_id, *args, **kwargs)
        )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        method = super().backward_weight_one_chunk
        return self._owner.timed(
            Kind.W, self.stage_index, bwd_chunk_id, lambda: method(bwd_chunk_id, *args, **kwargs)
        )
