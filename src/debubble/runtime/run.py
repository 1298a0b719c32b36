"""Run a schedule for real: verify what it computes, measure it, compare with the prediction."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, kinds_of, pairs_of
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError, ParameterError, did_you_mean
from debubble.core.schedule import Schedule
from debubble.engine.transfers import ReceivePolicy, first_transfer
from debubble.interchange.python_file import user_code
from debubble.runtime.measure import Measured, calibrate, predict, sleeping_times
from debubble.runtime.plan import Plan
from debubble.runtime.report import RunReport
from debubble.runtime.torchrun import check_size, is_joined, local_size, run_joined
from debubble.runtime.world import World, devices, run_local
from debubble.schedules import registry

if TYPE_CHECKING:
    from debubble.runtime.models import Batches

RUNTIMES = ("auto", "torch", "debubble")
DEVICES = ("auto", "cpu", "cuda")

VERIFY, CALIBRATE, MEASURE = range(3)
"""The jobs of a run: programs that every rank executes one after the other."""

CALIBRATION = 0.01
"""Seconds that a forward sleeps while the overhead is calibrated."""

CALIBRATION_STEPS = 5
WARM_UP = 1


def require_torch() -> None:
    """Refuse to run without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        raise DebubbleError("running needs PyTorch; pip install 'debubble[run]'")


@dataclass(frozen=True)
class Settings:
    """How to run.

    Parameters
    ----------
    model
        ``"gpt-tiny"``, ``"mlp"`` or a function, see :func:`debubble.runtime.models.build`.
    verify
        Whether loss and gradients are compared with those of the whole model, which computes in
        float64 on one processor: no small thing for a large model.
    steps
        How many are measured, after one to warm up; 0 only verifies.
    sleep
        Seconds of the shortest action: actions sleep for what is left of their cost, so that
        a machine with few cores behaves like one rank per device. None for real time.
    costs
        With `sleep`, what actions cost.
    runtime
        ``"torch"`` for PyTorch's pipeline runtime, ``"debubble"`` for ours, ``"auto"`` for
        PyTorch's where it can express the schedule.
    timeout
        Seconds after which a world that does not move is ended, beyond those that an action sleeps.
    device
        ``"cpu"``, ``"cuda"``, or ``"auto"`` for CUDA where there is some.
    overhead
        Seconds of overhead per action; None to calibrate.
    """

    model: str | Callable[..., Any] = "gpt-tiny"
    verify: bool = True
    steps: int = 5
    sleep: float | None = None
    costs: Costs | None = None
    runtime: str = "auto"
    timeout: float = 60.0
    device: str = "auto"
    overhead: float | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("runtime", self.runtime, RUNTIMES), ("device", self.device, DEVICES),
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
    require_torch()
    if is_joined():
        check_size(schedule.ranks)
    settings = settings or Settings()
    from debubble.runtime.models import Batches, build

    with _model_code(settings):
        batches = Batches(build(settings.model, schedule.stages), schedule)
    _, backend, staged = devices(settings.device, local_size(schedule.ranks))
    reason = not_for_torch(schedule) or ("ranks share a GPU" if staged else "")
    if settings.runtime == "torch" and reason:
        raise ParameterError(f"PyTorch's runtime cannot run '{schedule.name}': {reason}")
    theirs = settings.runtime != "debubble" and not reason
    jobs = _jobs(schedule, settings, batches, theirs, backend)
    # Imported once, before there are many processes.
    importlib.import_module(f"debubble.runtime.{'torch_runtime' if theirs else 'executor'}")

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


def not_for_torch(schedule: Schedule) -> str:
    """Why PyTorch's runtime cannot run a schedule, empty when it can."""
    kinds = set(kinds_of(schedule.actions).tolist())
    last = schedule.stages - 1
    forwards = [
        action.microbatch for program in schedule for action in program
        if action.stage == last and action.kind == Kind.F
    ]  # fmt: skip
    reasons = [
        (schedule.placement.copies > 1, "it has several copies of the model"),
        (bool(np.any(pairs_of(schedule.actions))), "it overlaps forwards and backwards"),
        (schedule.slices > 1, "it cuts sequences into slices"),
        (Kind.OPT in kinds or schedule.iterations > 1, "it has optimizer steps"),
        (first_transfer(schedule) is not None, "it says itself where transfers are"),
        (bool(kinds - {Kind.F, Kind.I, Kind.W, Kind.B}), "it has more than F, I, W and B"),
        (forwards != sorted(forwards), "its last stage takes microbatches out of order"),
        (bool(np.any(np.diff(schedule.offsets) == 0)), "a rank has nothing to do"),
    ]
    return next((reason for applies, reason in reasons if applies), "")


@dataclass(frozen=True, eq=False)
class Job:
    """One program that all ranks execute some times.

    Parameters
    ----------
    plan, batches
        What is executed.
    theirs
        Whether PyTorch's runtime does it.
    double
        Whether in float64 and with checks, to verify, or in float32, to measure.
    steps
        How many times, after a step to warm up when it is not to verify.
    """

    plan: Plan
    batches: Batches
    theirs: bool
    double: bool
    steps: int

    def work(self, world: World, number: int) -> dict[str, Any]:
        """What one rank does; returns its times, and when it verifies gradients and losses."""
        import torch
        from torch import distributed

        world.begin(number)
        dtype = torch.float64 if self.double else torch.float32
        rank: Any
        if self.theirs:
            from debubble.runtime.torch_runtime import TorchRank

            rank = TorchRank(world, self.plan, self.batches, dtype)
        else:
            from debubble.runtime.executor import Executor

            rank = Executor(world, self.plan, self.batches, dtype, self.double)
        starts, ends = [], []
        for step in range(self.steps + (0 if self.double else WARM_UP)):
            distributed.barrier()
            rank.step()
            if self.double or step >= WARM_UP:
                starts.append(rank.start + world.clock)
                ends.append(rank.end + world.clock)
        result: dict[str, Any] = {"times": (np.array(starts), np.array(ends))}
        if self.double:
            result["losses"] = rank.losses
            result["gradients"] = {
                place: {name: tensor.cpu().numpy() for name, tensor in gradients.items()}
                for place, gradients in rank.gradients.items()
            }
        return result


def _jobs(
    schedule: Schedule, settings: Settings, batches: Batches, theirs: bool, backend: str
) -> dict[int, Job]:
    from debubble.runtime.models import Batches, build

    # A group of NCCL is one piece of work, which is over when all its receives are.
    policy: ReceivePolicy = "just-in-time" if backend == "nccl" else "eager"

    def plan(made: Schedule, seconds: NDArray[np.float64] | None = None) -> Plan:
        if theirs:
            return Plan(made, made, np.zeros(len(made)) if seconds is None else seconds)
        return Plan.of(made, seconds, policy)

    jobs = {}
    if settings.verify:
        jobs[VERIFY] = Job(plan(schedule), batches, theirs, True, 1)
    if not settings.steps:
        return jobs
    if settings.overhead is None:
        short = registry.make("1f1b", ranks=schedule.ranks, microbatches=schedule.ranks)
        seconds = sleeping_times(short, Costs(F=1, B=2), CALIBRATION)
        jobs[CALIBRATE] = Job(
            plan(short, seconds),
            Batches(build("mlp", short.stages), short),
            theirs,
            False,
            CALIBRATION_STEPS,
        )
    sleeps = None
    if settings.sleep is not None:
        sleeps = sleeping_times(schedule, settings.costs or Costs(), settings.sleep)
    jobs[MEASURE] = Job(plan(schedule, sleeps), batches, theirs, False, settings.steps)
    return jobs


def _report(
    schedule: Schedule,
    settings: Settings,
    theirs: bool,
    jobs: dict[int, Job],
    results: list[Any],
) -> RunReport:
    from debubble.runtime.verify import verify

    def measured(number: int) -> Measured:
        return Measured.of(jobs[number].plan, [result[number]["times"] for result in results])

    verification = None
    if VERIFY in jobs:
        with _model_code(settings):
            verification = verify(
                schedule,
                jobs[VERIFY].batches,
                [result[VERIFY]["gradients"] for result in results],
                [result[VERIFY]["losses"] for result in results],
            )
    overhead, timing, predicted = settings.overhead, None, None
    if MEASURE in jobs:
        timing = measured(MEASURE)
        if overhead is None:
            short = jobs[CALIBRATE].plan
            overhead = calibrate(short.schedule, short.seconds, measured(CALIBRATE).makespan)
        seconds = timing.durations if settings.sleep is None else jobs[MEASURE].plan.seconds
        predicted = predict(schedule, seconds, overhead)
    model = settings.model
    name = model if isinstance(model, str) else getattr(model, "__name__", "a model")
    return RunReport(
        schedule, name, "torch" if theirs else "debubble", settings.sleep, verification,
        overhead, timing, predicted, _note(schedule, settings),
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
