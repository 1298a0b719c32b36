"""Runs of a schedule: verified, measured, and compared with the prediction.

In a prediction every action takes the time it was measured to take (the median of its kind and
stage) or was made to take, plus one overhead for all: the runtime's time per action and per way
from rank to rank. The overhead is calibrated: it is the one with which the simulation of a short
1F1B takes as long as that did.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from debubble.core.boundaries import largest_message
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline, simulate
from debubble.interchange.python_file import user_code
from debubble.lowering.transfers import ReceivePolicy
from debubble.schedules import registry
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.measure.recorded import RecordedSteps, computations
from debubble.torch.ranks.torchrun import check_world_size, is_joined, local_size, run_joined
from debubble.torch.ranks.world import World, devices, run_local
from debubble.torch.run.job import Job, RunData
from debubble.torch.run.report import RunReport
from debubble.torch.run.verify import comparison_dtype, verify
from debubble.torch.setup import not_for_pytorch

Seconds = NDArray[np.float64]
"""A time of every action."""


def sleeping_times(schedule: Schedule, costs: Costs, shortest: float) -> Seconds:
    """Return the times that actions sleep when the shortest takes `shortest` seconds.

    Raises ParameterError when all costs are zero, or transfers have costs: those take their real
    time.
    """
    if np.any(np.asarray(costs.p2p) > 0) or largest_message(costs) > 0:
        raise ParameterError(
            "transfers of a real run take the time they take; leave p2p and message out"
        )
    timeline = simulate(schedule, costs)
    seconds = np.zeros(len(schedule))
    compute = computations(schedule)
    seconds[compute] = timeline.duration[compute]
    if not np.any(seconds > 0):
        raise ParameterError("all times are 0; give some with --times")
    return seconds * (shortest / float(seconds[seconds > 0].min()))


def predict_timeline(schedule: Schedule, seconds: Seconds, overhead: float) -> Timeline:
    """Simulate a schedule whose actions take `seconds`, the median where they share a cost."""
    timeline = simulate(schedule)
    graph = timeline.graph
    compute = computations(schedule)
    index = graph.cost[graph.node[compute]]
    vector = np.zeros_like(timeline.costs)
    for cost in np.unique(index):
        vector[cost] = np.median(seconds[compute[index == cost]]) + overhead
    return replace(timeline, costs=vector, node_end=graph.evaluate(vector))


def calibrate(schedule: Schedule, seconds: Seconds, makespan: float) -> float:
    """Return the overhead with which a prediction equals a measured makespan; at least 0."""
    low = predict_timeline(schedule, seconds, 0.0).makespan
    if makespan <= low:
        return 0.0
    # The makespan is convex and increasing in the overhead: Newton's steps come from above.
    overhead = makespan - low
    for _ in range(50):
        step = overhead * 1e-3
        value = predict_timeline(schedule, seconds, overhead).makespan
        slope = (value - predict_timeline(schedule, seconds, overhead - step).makespan) / step
        change = (value - makespan) / slope
        overhead -= change
        if abs(change) <= 1e-9:
            break
    return max(overhead, 0.0)


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
    dtype: str = "float32"
    """Type of numbers when times are measured."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("runtime", self.runtime, RUNTIMES), ("device", self.device, DEVICES),
            ("dtype", self.dtype, DTYPES),
        ):  # fmt: skip
            if value not in known:
                raise ParameterError(f"{name} is '{value}'; {did_you_mean(value, known)}")
        if not self.steps and not self.verify:
            raise ParameterError("steps is 0 without verification; there is nothing to run")

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

    Returns verification and measurement; None on all ranks but the first of those that torchrun
    started. Raises RunError when a rank dies, hangs or receives what it does not expect, and no
    process is left then; ParameterError when the model or the runtime does not fit the schedule.
    """
    joined = is_joined()
    if joined:
        check_world_size(schedule.ranks)
    settings = settings or Settings()
    if schedule.carries:
        raise ParameterError(
            f"'{schedule.name}' carries something to a stage that is not the next, which no model "
            "of a run has; leave carry out, or train your own in a debubble.torch.Pipeline"
        )
    exact = torch.float64
    with settings.model_code():
        data = RunData(settings.model, schedule)
        if settings.verify:
            exact = comparison_dtype(data)
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
    def measured(number: int) -> RecordedSteps:
        mine = [result[number] for result in results]
        return RecordedSteps.of(
            jobs[number].plan, [one["times"] for one in mine], [one["place"] for one in mine]
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
    overhead, timing, predicted = None, None, None
    costs: Mapping[str, Any] = {}
    peaks: list[int] = []
    if MEASURE in jobs:
        timing = measured(MEASURE)
        short = jobs[CALIBRATE].plan
        overhead = calibrate(short.schedule, short.seconds, measured(CALIBRATE).makespan)
        slept = jobs[MEASURE].plan.seconds
        # What does not sleep takes the time it takes.
        predicted = predict_timeline(
            schedule, np.where(slept > 0, slept, timing.durations), overhead
        )
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
