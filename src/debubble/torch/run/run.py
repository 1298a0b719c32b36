"""Run a schedule for real: verify what it computes, measure it, compare with the prediction."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.schedule import Schedule
from debubble.interchange.python_file import user_code
from debubble.lowering.transfers import ReceivePolicy
from debubble.schedules import registry
from debubble.torch.engine.plan import Plan
from debubble.torch.models.build import build
from debubble.torch.pytorch.not_for_pytorch import not_for_pytorch
from debubble.torch.ranks.torchrun import check_size, is_joined, local_size, run_joined
from debubble.torch.ranks.world import World, devices, run_local
from debubble.torch.run.job import Job
from debubble.torch.run.prediction import Measured, calibrate, predict, sleeping_times
from debubble.torch.run.report import RunReport
from debubble.torch.run.run_data import Batches
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
    """How to run."""

    model: str | Callable[..., Any] = "gpt-tiny"
    """``"gpt-tiny"``, ``"mlp"`` or a function, see :func:`debubble.torch.models.build.build`."""
    verify: bool = True
    """Whether loss and gradients are compared with those of the whole model, which computes in
    float64 on one processor: no small thing for a large model."""
    steps: int = 5
    """How many are measured, after one to warm up; 0 only verifies."""
    sleep: float | None = None
    """Seconds of the shortest action: actions sleep for what is left of their cost, so that a
    machine with few cores behaves like one rank per device. None for real time."""
    costs: Costs | None = None
    """With `sleep`, what actions cost."""
    runtime: str = "auto"
    """``"torch"`` for PyTorch's pipeline runtime, ``"debubble"`` for ours, ``"auto"`` for PyTorch's
    where it can express the schedule."""
    timeout: float = 60.0
    """Seconds after which a world that does not move is ended, beyond those that an action
    sleeps."""
    device: str = "auto"
    """``"cpu"``, ``"cuda"``, or ``"auto"`` for CUDA where there is some."""
    overhead: float | None = None
    """Seconds of overhead per action; None to calibrate."""
    dtype: str = "float32"
    """What is computed in when times are measured."""

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


def run(schedule: Schedule, settings: Settings | None = None) -> RunReport | None:
    """Run a schedule on local processes, or in the world that torchrun started.

    Parameters
    ----------
    schedule
        What to run.
    settings
        How to run it.

    Returns
    -------
    RunReport or None
        What was verified and measured; None on all ranks but the first of a world that torchrun
        started.

    Raises
    ------
    RunError
        When a rank dies, hangs or receives what it does not expect. No process is left then.
    ParameterError
        When the model or the runtime does not fit the schedule.
    """
    if is_joined():
        check_size(schedule.ranks)
    settings = settings or Settings()
    exact = torch.float64
    with _model_code(settings):
        batches = Batches(build(settings.model, schedule.stages), schedule)
        if settings.verify:
            exact = precision(batches)
    _, backend, staged = devices(settings.device, local_size(schedule.ranks))
    reason = not_for_pytorch(schedule) or ("ranks share a GPU" if staged else "")
    reason = reason or batches.not_for_pytorch
    if settings.runtime == "torch" and reason:
        raise ParameterError(f"PyTorch's runtime cannot run '{schedule.name}': {reason}")
    theirs = settings.runtime != "debubble" and not reason
    if theirs:  # loaded once, before ranks are forked
        import debubble.torch.pytorch.engine  # noqa: F401
    jobs = _jobs(schedule, settings, batches, theirs, backend, exact)

    def work(world: World) -> dict[int, Any]:
        return {number: job.work(world, number) for number, job in jobs.items()}

    def text(job: int, rank: int, position: int) -> str:
        return jobs[job].plan.text(rank, position)

    start = run_joined if is_joined() else run_local
    longest = max(float(job.plan.seconds.max(initial=0.0)) for job in jobs.values())
    results = start(
        work, schedule.ranks, text, timeout=settings.timeout + longest, device=settings.device
    )
    return None if results is None else _report(schedule, settings, theirs, jobs, results)


def _model_code(settings: Settings) -> AbstractContextManager[None]:
    """A context for what calls the model: errors of the user's own are told as such."""
    model = settings.model
    if isinstance(model, str):
        return nullcontext()
    path = getattr(getattr(model, "__code__", None), "co_filename", "")
    name = getattr(model, "__name__", "the model")
    return user_code(f"{path}:{name}" if path else name, path)


def _jobs(
    schedule: Schedule,
    settings: Settings,
    batches: Batches,
    theirs: bool,
    backend: str,
    exact: torch.dtype,
) -> dict[int, Job]:
    nccl = backend == "nccl"
    policy: ReceivePolicy = ("queued" if theirs else "just-in-time") if nccl else "eager"
    dtype = getattr(torch, settings.dtype)
    sleeps = np.zeros(0)
    if settings.sleep is not None:
        sleeps = sleeping_times(schedule, settings.costs or Costs(), settings.sleep)
    longest = float(sleeps.max(initial=CALIBRATION))
    # Who watches the world ends it sooner.
    wait = settings.timeout + longest + 600
    jobs = {}
    if settings.verify:
        plan = Plan.of(schedule, policy=policy)
        jobs[VERIFY] = Job(plan, batches, theirs, exact, verifies=True, timeout=wait)
    if not settings.steps:
        return jobs
    if settings.overhead is None:
        short = registry.make("1f1b", ranks=schedule.ranks, microbatches=schedule.ranks)
        plan = Plan.of(short, sleeping_times(short, Costs(F=1, B=2), CALIBRATION), policy)
        small = Batches(build("mlp", short.stages), short)
        jobs[CALIBRATE] = Job(plan, small, theirs, torch.float32, False, CALIBRATION_STEPS, wait)
    plan = Plan.of(schedule, sleeps, policy)
    jobs[MEASURE] = Job(plan, batches, theirs, dtype, False, settings.steps, wait)
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
        with _model_code(settings):
            verification = verify(
                schedule,
                jobs[VERIFY].batches,
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
    model = settings.model
    name = model if isinstance(model, str) else getattr(model, "__name__", "a model")
    whole = {stage: why for result in results for job in result.values()
             for stage, why in job["whole"]}  # fmt: skip
    return RunReport(
        schedule, name, "torch" if theirs else "debubble", settings.sleep, verification,
        overhead, timing, predicted, _note(schedule, settings), settings.dtype, costs, peaks, whole,
    )  # fmt: skip


def _note(schedule: Schedule, settings: Settings) -> str:
    """Warn of times that are not those of one rank per device."""
    cores = os.cpu_count() or 1
    on_cpu = devices(settings.device, local_size(schedule.ranks))[0][0] == "cpu"
    if not on_cpu or settings.sleep is not None or local_size(schedule.ranks) <= cores:
        return ""
    return (
        f"{schedule.ranks} ranks share {cores} cores and slow each other down; "
        "with --sleep 20 actions sleep as if every rank had its own"
    )
