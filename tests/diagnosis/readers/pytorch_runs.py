"""Traces that PyTorch's profiler writes of its own pipelines, on gloo ranks of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import ProfilerActivity, profile

import debubble as db
import debubble.torch as dt
from tests.torch.world import in_ranks

WIDTH, ROWS = 64, 8
CPU = torch.device("cpu")


class Layers(nn.Module):
    """A stage that takes some tenths of a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layers(x))


def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target)


def trace(
    folder: Path, name: str, microbatches: int, steps: int = 2, ranks: int = 2
) -> list[list[str]]:
    """Write ``rank0_trace.json.gz`` …; the texts of what every rank's steps did, in order."""

    def work(rank: int) -> list[str]:
        kind: Any = getattr(schedules, name)
        multi = issubclass(kind, schedules.PipelineScheduleMulti)
        v_shaped = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
        count = 2 * ranks if multi else ranks
        if not multi:
            mine = [rank]
        elif v_shaped:
            mine = [rank, count - 1 - rank]
        else:
            mine = [rank, rank + ranks]
        torch.manual_seed(0)
        stages = [PipelineStage(Layers(), index, count, CPU) for index in mine]
        schedule = kind(stages if multi else stages[0], microbatches, loss_fn=loss_fn)
        x = torch.randn(microbatches * ROWS, WIDTH)
        inputs = [x] if rank == 0 else []
        # Where the last stage is depends on the placement.
        targets = {"target": torch.zeros_like(x)} if count - 1 in mine else {}
        schedule.step(*inputs, **targets)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(steps):
                schedule.step(*inputs, **targets)
                profiler.step()
        profiler.export_chrome_trace(str(folder / f"rank{rank}_trace.json.gz"))
        order = getattr(schedule, "pipeline_order_with_comms", None)
        return [str(action) for action in order[rank]] if order else []

    return in_ranks(ranks, work)


def trace_own(folder: Path, names: Sequence[str], microbatches: int, steps: int) -> None:
    """Write traces of pipelines on two ranks by our own engine, a folder for each schedule."""

    def work(rank: int) -> None:
        for name in names:
            order = db.make(name, ranks=2, microbatches=microbatches)
            pipe = dt.Pipeline(order, [Layers() for _ in range(order.stages)], loss_fn)
            x = torch.randn(microbatches * ROWS, WIDTH)
            pipe.step(x, target=x)
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                for _ in range(steps):
                    pipe.step(x, target=x)
            pipe.step(x, target=x)
            (folder / name).mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(folder / name / f"rank{rank}_trace.json.gz"))

    in_ranks(2, work)
