"""Runs of a schedule: verified, measured, and compared with the prediction."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.schedule import Schedule
from debubble.interchange.python_file import user_code
from debubble.lowering.transfers import ReceivePolicy
from debubble.schedules import registry
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.pytorch.not_for_pytorch import not_for_pytorch
from debubble.torch.ranks.torchrun import check_size, is_joined, local_size, run_joined
from debubble.torch.ranks.world import World, devices, run_local
from debubble.torch.run.job import Job
from debubble.torch.run.prediction import Measured, calibrate, predict, sleeping_times
from debubble.torch.run.report import RunReport
from debubble.torch.run.run_data import RunData
from debubble.torch.run.verify import precision, verify

RUNTIMES = ("auto", "torch", "debubble")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")

VERIFY, CALIBRATE, MEASURE = range(3)
"""The jobs of a run: programs that every rank executes one after the other."""

CALIBRATION = 0.01
"""Seconds that a forward sleeps while the overhead is calibrated."""

CALIBRATION_STEPS = 5


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    model: str | Callable[..., Any] = "gpt-tiny"
    """A model, see :func:`debubble.torch.models.build.build`; a function that can be pickled."""
    verify: bool = True
    """If loss and gradients are compared with those of the whole model, which computes in float64
    on one processor: no small thing for a large model."""
    steps: int = 5
    """Number of measured steps, after one to warm up; 0 only verifies."""
    sleep: float | None = None
    """Seconds of the shortest action: actions sleep for what is left of their cost, so that a
    machine with few cores behaves like one rank per device. None for real time."""
    costs: Costs | None = None
    """Costs of actions, with `sleep`."""
    runtime: str = "auto"
    """``"torch"`` for PyTorch's pipeline runtime, ``"debubble"`` for ours, ``"auto"`` for PyTorch's
    where it can express the schedule."""
    timeout: float = 60.0
    """Seconds after which a run that does not move is ended, beyond those that an action sleeps."""
    device: str = "auto"
    """``"cpu"``, ``"cuda"``, or ``"auto"`` for CUDA where there is some."""
    overhead: float | None = None
    """Seconds of overhead per action; None to calibrate."""
    dtype: str = "float32"
    """Type of numbers when times are measured."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("runtime", self.runtime, RUNTIMES), ("device", self.device, DEVICES),
            ("dtype", self.dtype, DTYPES),
        ):  # fmt: skip
            if value not in known:
                raise ParameterError(f"{name} is '{value}'; {did_you_mean(value, known)}")
        if self.steps < 0:
            raise ParameterError(f"steps is {self.steps}; it is at least 0")
        if not self.steps and not self.verify:
            raise ParameterError("steps is 0 without verification; there is nothing to run")
        for name, number in (("timeout", self.timeout), ("sleep", self.sleep)):
            if number is not None and not 0 < number < 1e6:
                raise ParameterError(f"{name} is {number:g}; give a positive number of seconds")

    @property
    def model_name(self) -> str:
        """Name of the model: its own, or that of its function."""
        if isinstance(self.model, str):
            return self.model.rpartition(":")[2]
        return getattr(self.model, "__name__", "a model")

    def model_code(self) -> AbstractContextManager[None]:
        """Return a context for calls of the model, whose errors are then named as the user's."""
        if not isinstance(self.model, str):
            path = getattr(getattr(self.model, "__code__", None), "co_filename", "")
            return user_code(":".join(filter(None, (path, self.model_name))), path)
        path = self.model.rpartition(":")[0]
        return user_code(self.model, path) if path else nullcontext()


def run(schedule: Schedule, settings: Settings | None = None) -> RunReport | None:
    """Run a schedule on local processes, or on those that torchrun started.

    Parameters
    ----------
    schedule
        The schedule to run.
    settings
        How to run it.

    Returns
    -------
    RunReport or None
        Verification and measurement; None on all ranks but the first of those that torchrun
        started.

    Raises
    ------
    RunError
        When a rank dies, hangs or receives what it does not expect. No process is left then.
    ParameterError
        When the model or the runtime does not fit the schedule.
    """
    joined = is_joined()
    if joined:
        check_size(schedule.ranks)
    settings = settings or Settings()
    exact = torch.float64
    with settings.model_code():
        data = RunData(settings.model, schedule)
        if settings.verify:
            exact = precision(data)
    _, backend, staged = devices(settings.device, local_size(schedule.ranks))
    reason = not_for_pytorch(schedule) or ("ranks share a GPU" if staged else "")
    reason = reason or data.not_for_pytorch
    if settings.runtime == "torch" and reason:
        raise ParameterError(f"PyTorch's runtime cannot run '{schedule.name}': {reason}")
    theirs = settings.runtime != "debubble" and not reason
    jobs = _jobs(schedule, settings, data, theirs, backend == "nccl", exact)

    def text(job: int, rank: int, position: int) -> str:
        return jobs[job].plan.text(rank, position)

    start = run_joined if joined else run_local
    longest = max(float(job.plan.seconds.max(initial=0.0)) for job in jobs.values())
    results = start(
        partial(do_jobs, jobs), schedule.ranks, text, timeout=settings.timeout + longest,
        device=settings.device,
    )  # fmt: skip
    return None if results is None else _report(schedule, settings, theirs, jobs, results)


def do_jobs(jobs: Mapping[int, Job], world: World) -> dict[int, Any]:
    """Do jobs one after the other, and return the result of each on this rank."""
    return {number: job.work(world, number) for number, job in jobs.items()}


def _jobs(
    schedule: Schedule,
    settings: Settings,
    data: RunData,
    theirs: bool,
    nccl: bool,
    exact: torch.dtype,
) -> dict[int, Job]:
    policy: ReceivePolicy = ("queued" if theirs else "just-in-time") if nccl else "eager"
    sleeps = np.zeros(0)
    if settings.sleep is not None:
        sleeps = sleeping_times(schedule, settings.costs or Costs(), settings.sleep)
    # The supervisor of the run ends it sooner.
    wait = settings.timeout + float(sleeps.max(initial=CALIBRATION)) + 600
    jobs = {}
    if settings.verify:
        plan = ExecutionPlan.of(schedule, policy=policy)
        jobs[VERIFY] = Job(plan, data, theirs, exact, verifies=True, timeout=wait)
    if not settings.steps:
        return jobs
    if settings.overhead is None:
        short = registry.make("1f1b", ranks=schedule.ranks, microbatches=schedule.ranks)
        plan = ExecutionPlan.of(short, sleeping_times(short, Costs(F=1, B=2), CALIBRATION), policy)
        small = RunData("mlp", short)
        jobs[CALIBRATE] = Job(plan, small, theirs, torch.float32, False, CALIBRATION_STEPS, wait)
    plan = ExecutionPlan.of(schedule, sleeps, policy)
    dtype = getattr(torch, settings.dtype)
    jobs[MEASURE] = Job(plan, data, theirs, dtype, False, settings.steps, wait)
    return jobs


def _report(
    schedule: Schedule,
    settings: Settings,
    theirs: bool,
    jobs: dict[int, Job],
    results: list[Any],
) -> RunReport:
    def measured(number: int) -> Measured:
        mine = [result[number] for result in results]
        return Measured.of(
            jobs[number].plan, [one["times"] for one in mine], [one["host"] for one in mine]
        )

    verification = None
    if VERIFY in jobs:
        with settings.model_code():
            verification = verify(
                schedule,
                jobs[VERIFY].data,
                [result[VERIFY]["gradients"] for result in results],
                [result[VERIFY]["losses"] for result in results],
                jobs[VERIFY].dtype,
            )
    overhead, timing, predicted = settings.overhead, None, None
    costs: Mapping[str, Any] = {}
    peaks: list[int] = []
    if MEASURE in jobs:
        timing = measured(MEASURE)
        if overhead is None:
            short = jobs[CALIBRATE].plan
            overhead = calibrate(short.schedule, short.seconds, measured(CALIBRATE).makespan)
        slept = jobs[MEASURE].plan.seconds
        # What does not sleep takes the time it takes.
        predicted = predict(schedule, np.where(slept > 0, slept, timing.durations), overhead)
        costs = results[0][MEASURE]["costs"]
        peaks = [result[MEASURE]["peak"] for result in results if "peak" in result[MEASURE]]
    whole = {stage: why for result in results for job in result.values()
             for stage, why in job["whole"]}  # fmt: skip
    return RunReport(
        schedule, settings.model_name, "torch" if theirs else "debubble", settings.sleep,
        verification, overhead, timing, predicted, _note(schedule, settings), settings.dtype,
        costs, peaks, whole,
    )  # fmt: skip


def _note(schedule: Schedule, settings: Settings) -> str:
    """Return a warning of times that are not those of one rank per device, or nothing."""
    cores = os.cpu_count() or 1
    on_cpu = devices(settings.device, local_size(schedule.ranks))[0][0] == "cpu"
    if not on_cpu or settings.sleep is not None or local_size(schedule.ranks) <= cores:
        return ""
    return (
        f"{schedule.ranks} ranks share {cores} cores and slow each other down; "
        "with --sleep 20 actions sleep as if every rank had its own"
    )
