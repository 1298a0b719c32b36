"""Run jobs of sleeping stages on processes of this machine, and keep a trace of every step."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import ProfilerActivity, profile

import debubble.torch as dt
from debubble.torch.ranks.process_group import Ranks, Tag
from tests.diagnosis.experiments.jobs import Job
from tests.diagnosis.experiments.links import relay
from tests.torch.world import in_ranks

WIDTH = 64
CPU = torch.device("cpu")

pause, meet = time.sleep, dist.barrier
"""What stages do for a time, and how ranks begin a step; :mod:`.counted` has its own."""


class Pause(torch.autograd.Function):
    """The identity, which sleeps in its forward and in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.backward_time = backward
        pause(forward)
        return x.clone()  # PyTorch detaches what a stage returns, and a view cannot be

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        pause(ctx.backward_time)
        return gradient, None, None


class Sleeper(nn.Module):
    """A stage that sleeps: half of the backward belongs to its input, half to its weights."""

    def __init__(self, job: Job, copy: int, rank: int, stage: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.weight.register_hook(self._sleep_of_weights)
        self.job = job
        self.factors = job.factors(copy, rank, stage)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = self.job.backward / 2 * next(self.factors["I"])
        return Pause.apply(x * self.weight, self.job.forward * next(self.factors["F"]), half)

    def _sleep_of_weights(self, _: torch.Tensor) -> None:
        pause(self.job.backward / 2 * next(self.factors["W"]))


def loss_fn(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """A loss that takes the last stage no time."""
    return output.mean()


@dataclass(frozen=True)
class Ran:
    """What a job took, and the trace of its step of median length.

    Parameters
    ----------
    step
        Seconds of that step, from the first rank's start to the last one's end, by the clock of
        the machine.
    steps
        Seconds of all steps.
    trace
        File or folder of that step.
    """

    step: float
    steps: tuple[float, ...]
    trace: Path


def ran(job: Job, folder: Path) -> Ran:
    """Run a job; traces are in folders or files ``step0`` … of `folder`."""

    def work(rank: int) -> list[tuple[float, float]]:
        # A collection would stand still in the middle of a step.
        gc.disable()
        pipes = job.ranks * job.copies
        if rank == pipes:
            dist.new_group(list(range(pipes)), group_desc="mesh_pp")
            assert job.relayed is not None
            assert job.fault is not None
            relay(job.relayed, (job.rows, WIDTH), job.fault.size)
            return []
        group, replicas = _groups(job, rank)
        run = _of_pytorch if job.runtime == "torch" else of_debubble
        return run(job, rank, group, replicas, folder)

    folder.mkdir(parents=True, exist_ok=True)
    found = in_ranks(job.ranks * job.copies + (job.relayed is not None), work)
    return of_median_length(job, folder, [rows for rows in found if rows])


def of_median_length(job: Job, folder: Path, times: Sequence[list[tuple[float, float]]]) -> Ran:
    """Return what a job took, by the start and end of every step of every rank."""
    steps = tuple(
        max(end for _, end in spans) - min(start for start, _ in spans)
        for spans in zip(*times, strict=True)
    )
    median = sorted(steps)[len(steps) // 2]
    return Ran(median, steps, _trace(job, folder, steps.index(median)))


def _trace(job: Job, folder: Path, step: int) -> Path:
    return folder / (f"step{step}" if job.runtime == "torch" else f"step{step}.json.gz")


def _groups(job: Job, rank: int) -> tuple[Any, Any]:
    """Return the group of this rank's pipeline, and that of its like in other copies."""
    if job.copies == 1:
        if job.relayed is None:
            return dist.group.WORLD, None
        return dist.new_group(list(range(job.ranks)), group_desc="mesh_pp"), None
    mesh = dist.device_mesh.init_device_mesh(
        "cpu", (job.copies, job.ranks), mesh_dim_names=("dp", "pp")
    )
    return mesh.get_group("pp"), mesh.get_group("dp")


def _at_once() -> None:
    """Have this process run when it wakes up, where the machine lets it: steps are less noisy."""
    with contextlib.suppress(AttributeError, OSError):
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(1))


def _stepped(step: Any, replicas: Any) -> tuple[float, float]:
    """Take a step together with all other ranks; return its start and end."""
    start = time.perf_counter()
    step()
    if replicas is not None:
        dist.all_reduce(torch.zeros(1), group=replicas)
    return start, time.perf_counter()


def _of_pytorch(
    job: Job, rank: int, group: Any, replicas: Any, folder: Path
) -> list[tuple[float, float]]:
    copy, here = divmod(rank, job.ranks)
    kind: Any = getattr(schedules, f"Schedule{job.schedule}")
    multi = issubclass(kind, schedules.PipelineScheduleMulti)
    count = 2 * job.ranks if multi else job.ranks
    other = count - 1 - here if job.schedule in ("ZBVZeroBubble", "DualPipeV") else here + job.ranks
    mine = [here, other] if multi else [here]
    stages = [
        PipelineStage(Sleeper(job, copy, here, stage), stage, count, CPU, group=group)
        for stage in mine
    ]
    schedule = kind(stages if multi else stages[0], job.microbatches, loss_fn=loss_fn)
    x = torch.randn(job.microbatches * job.rows, WIDTH)
    inputs = [x] if here == 0 else []
    target = {"target": torch.zeros_like(x)} if count - 1 in mine else {}
    if job.relayed is not None:
        _detour_of_pytorch(job, rank)
    if job.late:
        _post_late(job, rank)

    def step() -> None:
        schedule.step(*inputs, **target)

    together = dist.group.WORLD if replicas is not None else group
    dist.barrier(together)
    step()
    _at_once()
    times = []
    for number in range(job.steps):
        dist.barrier(together)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            dist.barrier(together)
            times.append(_stepped(step, replicas))
            # What a profiler does at its end takes cores from ranks that are not there yet.
            dist.barrier(together)
            profiler.step()
        path = _trace(job, folder, number)
        path.mkdir(exist_ok=True)
        profiler.export_chrome_trace(str(path / f"rank{rank}.json.gz"))
    return times


def _detour_of_pytorch(job: Job, rank: int) -> None:
    """Have messages over the slow link go to its relay, and come from there."""
    assert job.relayed is not None
    begin = schedules._batch_p2p

    def by_relay(operations: list[Any], *rest: Any, **more: Any) -> Any:
        for one in operations:
            if sorted((rank, one.peer)) == list(job.relayed or ()):
                one.group, one.peer = dist.group.WORLD, job.ranks
                one.group_peer = job.ranks
        return begin(operations, *rest, **more)

    schedules._batch_p2p = by_relay


def _post_late(job: Job, rank: int) -> None:
    """Have the host be late now and then when it posts a receive."""
    begin, draw = schedules._batch_p2p, random.Random(rank)

    def late(operations: list[Any], *rest: Any, **more: Any) -> Any:
        if any(one.op is dist.irecv for one in operations) and draw.random() < 0.25:
            time.sleep(job.late)
        return begin(operations, *rest, **more)

    schedules._batch_p2p = late


def of_debubble(
    job: Job, rank: int, group: Any, replicas: Any, folder: Path
) -> list[tuple[float, float]]:
    """Take the steps of a job by our runtime; return the start and end of each."""
    copy, here = divmod(rank, job.ranks)

    def stage(number: int) -> nn.Module:
        return Sleeper(job, copy, here, number)

    pipe = dt.Pipeline(
        job.schedule, stage, loss_fn, group=group, microbatches=job.microbatches, split="keep"
    )
    if job.relayed is not None and pause is time.sleep:
        _detour_of_debubble(job, rank)
    x = torch.randn(job.microbatches * job.rows, WIDTH)

    def step() -> None:
        pipe.step(x, target=torch.zeros_like(x))

    # Messages of the first step carry their form, and do not go by the relay.
    step()
    _at_once()
    times = []
    for number in range(job.steps):
        meet(group)
        times.append(_stepped(step, replicas))
        pipe.trace(_trace(job, folder, number))
    return times


def _detour_of_debubble(job: Job, rank: int) -> None:
    assert job.relayed is not None
    begin = Ranks.start
    calls = {True: dist.isend, False: dist.irecv}

    def by_relay(self: Ranks, transfers: Any, tag: Tag) -> list[Any]:
        return [
            calls[sends](part, job.ranks)
            if tag == Tag.TENSORS and sorted((rank, peer)) == list(job.relayed or ())
            else begin(self, [(sends, part, peer)], tag)[0]
            for sends, part, peer in transfers
        ]

    Ranks.start = by_relay  # type: ignore[method-assign]
