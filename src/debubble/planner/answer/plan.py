"""Plans for training a model on a number of GPUs: ``debubble.plan`` and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from os import PathLike, fspath
from typing import Any, TypeAlias

from debubble.core.costs import Costs
from debubble.core.errors import ParameterError, check_type
from debubble.core.options import quoted
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline
from debubble.planner.answer import data, files, report
from debubble.planner.answer.more_gpus import enough_gpus, one_more_node
from debubble.planner.answer.searches import Answer, Asked, ask, search_all, taking_orders
from debubble.planner.answer.why import Why, why_data, why_not, why_text
from debubble.planner.answer.words import seconds
from debubble.planner.candidate import Candidate
from debubble.planner.cost.calibration_files import calibrate_from
from debubble.planner.cost.measured_run import DEGREES
from debubble.planner.frameworks.table import ANY
from debubble.planner.memory.peaks import RankMemory
from debubble.planner.model.transformer import Model
from debubble.planner.options import ROWS, frameworks_of, request_of, values_with
from debubble.planner.request import PlanRequest
from debubble.planner.search.best_plans import Progress
from debubble.planner.search.evaluate import Evaluated
from debubble.planner.search.groups import candidates

Searching: TypeAlias = Callable[[], AbstractContextManager[Progress | None]]
"""Maker of a context for every search; the context gives the callback for results so far."""

WIDTH = 100
"""Columns of a plan's text."""


@dataclass(frozen=True, repr=False)
class Plan:
    """The best plan that a search found, and its alternatives.

    Attributes below are those of the best plan. Where none fits, they raise a
    :class:`~debubble.ParameterError` with the nearest that works; see also `fits`.

    Parameters
    ----------
    found
        Results of the search.
    why
        Answers to "why not …?", one for each condition.
    """

    found: Answer
    why: tuple[Why, ...] = ()

    @property
    def fits(self) -> bool:
        """True if a plan stays within the memory."""
        return bool(self.found.plans)

    @property
    def best(self) -> Evaluated:
        """The recommended plan with its step time and memory."""
        if not self.found.plans:
            raise ParameterError(report.nothing(self.found))
        return self.found.plans[0]

    @property
    def alternatives(self) -> tuple[Plan, ...]:
        """The plans after the recommended one, fastest first."""
        return tuple(Plan(replace(self.found, plans=[one])) for one in self.found.plans[1:])

    @property
    def framework(self) -> str | None:
        """Name of the framework that runs it; None with ``framework="any"``."""
        return self.best.request.fixed.framework

    @property
    def candidate(self) -> Candidate:
        """Degrees, microbatches, layers of every stage, recompute and ZeRO."""
        return self.best.candidate

    @property
    def timeline(self) -> Timeline:
        """One step in the pipeline, with all that its ranks hold."""
        return report.whole_timeline(self.best)

    @property
    def schedule(self) -> Schedule:
        """The schedule of every pipeline rank."""
        return self.timeline.schedule

    @property
    def costs(self) -> Costs:
        """Costs of every stage in seconds and bytes."""
        return self.timeline.table.costs

    @property
    def step_seconds(self) -> float:
        """Seconds of one optimizer step."""
        return self.best.step_time

    @property
    def step_error(self) -> float:
        """Seconds by which 9 of 10 such steps are off at most."""
        return self.best.step_error

    @property
    def step_range(self) -> tuple[float, float]:
        """Seconds between which 9 of 10 such steps are."""
        return self.best.step_range

    @property
    def memory(self) -> tuple[RankMemory, ...]:
        """Bytes of a GPU of every pipeline rank at its peak, part by part."""
        return self.best.memory

    def flags(self, framework: str) -> str:
        """Return the text with which a framework runs it, or comments on why it does not.

        Parameters
        ----------
        framework
            Its name, such as ``"megatron"``; one that is not known is refused.
        """
        return data.plan_flags(self.best, framework)

    def save(self, path: str | PathLike[str]) -> list[str]:
        """Write it to a file by its name, and return the names of all files written.

        Parameters
        ----------
        path
            A file that the plan's framework runs: ``.sh`` (Megatron-LM, Megatron-DeepSpeed),
            ``.py`` (torchtitan, Megatron-Bridge), ``.toml`` (torchtitan up to 0.2), ``.json``
            (DeepSpeed), ``automodel.yaml`` or ``primus.yaml``; a schedule that the framework takes
            from a file is written next to it. Or its costs for other commands, any other
            ``.yaml``; or its schedule, ``.csv``.
        """
        check_type("path", path, (str, PathLike), "give the name of a file, such as 'plan.yaml'")
        path, best = fspath(path), self.best
        maker = best.request.cluster.gpu.maker
        files.check_name(path, self.framework or ANY, maker=maker)
        return files.write_plan(best, path)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, as ``debubble plan --json`` prints it."""
        return data.data(self.found) | {"why": [why_data(one) for one in self.why]}

    def __str__(self) -> str:
        return "\n".join([report.text(self.found, WIDTH), *map(why_text, self.why)])

    def __repr__(self) -> str:
        if not self.fits:
            return f"<Plan: {report.nothing(self.found)}>"
        best = self.best
        return f"<Plan: {seconds(best.step_time)} per step with {report.short(best)}>"


def plan(
    model: str | Model, gpu: str, gpus: int, batch: int, seq: int | None = None, *,
    tp: int | None = None, cp: int | None = None, ep: int | None = None, dp: int | None = None,
    pp: int | None = None, chunks: int | None = None, microbatch_size: int | None = None,
    schedule: str | Sequence[str] | None = None, layers: Sequence[int] | None = None,
    recompute: str | None = None, zero: int | None = None, precision: str = "bf16",
    framework: str | None = None, memory: str | float | None = None, imbalance: float = 1.0,
    gradients: str = "fp32", moments: str = "fp32", weights: str | None = None,
    offload: str = "none", graph_pools: str | float = 0,
    calibrate: str | None = None, why: str | Iterable[str] = (), top: int = 5,
    optimize: int | None = None, time_limit: float | None = None,
) -> Plan:  # fmt: skip
    """Plan the training of a model on a number of GPUs, as ``debubble plan`` does.

    Chooses tensor, context, expert, data and pipeline degrees, microbatch size, schedule, layer
    split, recompute and ZeRO, within the memory of every GPU. Given values stay fixed.

    Parameters
    ----------
    model
        Name of a model, its ``config.json``, or a YAML file.
    gpu, gpus
        Name such as ``"h100"``, or a YAML file; and the number of GPUs.
    batch, seq
        Sequences per optimizer step; tokens per sequence, 4096 unless given.
    tp, cp, ep, dp, pp
        Tensor, context, expert, data and pipeline degrees.
    chunks, microbatch_size
        Stages per pipeline rank; sequences per microbatch.
    schedule
        One schedule, or several to choose from.
    layers
        Layers of every stage.
    recompute
        ``"none"``, ``"selective"``, ``"full"``, or ``"full:3"`` for the first 3 layers of a stage.
    zero
        Level of ZeRO: replicas split optimizer states (1), gradients (2), weights (3).
    precision
        ``"bf16"``, ``"fp16"``, ``"fp8"``, ``"mxfp8"`` or ``"nvfp4"``.
    framework
        Framework that has to run the plan, such as ``"megatron"``; plans are made for all that can
        unless given, and with ``"any"`` they only have to divide.
    memory
        Bytes of one GPU, or such as ``"72GB"``; all that it has unless given.
    imbalance
        Tokens of the busiest experts over the mean.
    gradients, moments
        ``"fp32"`` or ``"bf16"``, in which gradients add up; and Adam's moments, also ``"fp8"``.
    weights
        ``"bf16"``; or ``"fp8"`` or ``"fp4"``, if they are stored as products multiply them. Unless
        given, ``"fp8"`` where Megatron-LM multiplies in 8 bits, else ``"bf16"``.
    offload
        ``"optimizer"`` if its states are in the host's memory.
    graph_pools
        Bytes of a GPU in the pools of CUDA graphs, or such as ``"4GB"``.
    calibrate
        File with measured steps, a log, or a profile.
    why
        Conditions such as ``"pp=16"`` or ``"framework=torchtitan"``, each answered by the best
        plan with it.
    top
        Number of plans.
    optimize, time_limit
        Number of plans for which faster schedules are searched; seconds for each of them, a fixed
        amount of work unless given.

    Returns
    -------
    Plan
        The best plan; where none fits, its `fits` is False.

    Raises
    ------
    ParameterError
        When a value cannot be used or no plan can meet it; the message has the nearest that works.
    FormatError
        When a file cannot be read.

    Examples
    --------
    >>> import debubble as db
    >>> plan = db.plan("llama-3.2-1b", gpu="h100", gpus=4, batch=8, pp=2, schedule="1f1b")
    >>> plan.candidate.degrees.tp, plan.fits
    (1, True)
    """
    given = dict(locals())
    check_type(
        "model", model, (str, Model), "give a name such as 'llama-3.1-8b', a file, or a Model"
    )
    for name, like in (("gpu", "'h100'"), ("gpus", "8"), ("batch", "64")):
        if given[name] is None:
            raise ParameterError(f"{name} is None; give such as {like}")
    conditions = [why] if isinstance(why, str) else why
    if not isinstance(conditions, list | tuple) or not all(isinstance(x, str) for x in conditions):
        raise ParameterError(f"why is {quoted(why)}; give a condition such as 'pp=16', or a list")
    values = {
        name: given[name] if name in ("model", "why") else ROWS[name].type.check(name, given[name])
        for name in ROWS
        if given[name] is not None
    }
    return plan_for(values | {"why": list(conditions)})


def plan_for(
    values: Mapping[str, Any], searching: Searching = nullcontext,
    note: Callable[[int, str], None] = lambda number, text: None,  # noqa: ARG005 - no notes
) -> Plan:  # fmt: skip
    """Return the plan for values of options, checked one by one, by name.

    `note` is called with the number of a plan, from 1, and the outcome of the search for a
    faster schedule.
    """
    top, how_many = values.get("top", 5), values.get("optimize")
    others = {text: values_with(values, text) for text in values["why"]}
    asked = ask(request_of(values), frameworks_of(values))
    if values.get("calibrate") is not None:
        (request,) = asked.requests
        asked = Asked((with_measured_steps(request, values["calibrate"]),))
    factors = asked.requests[0].factors
    if values.get("time_limit") is not None and not how_many:
        raise ParameterError("--time-limit is for --optimize; give both, or neither")

    def searched(asked: Asked, top: int = 1, before: Answer | None = None) -> Answer:
        with searching() as progress:
            return search_all(asked, top, progress, before=before)

    def again(values: Mapping[str, Any]) -> Answer:
        request = replace(request_of(values), factors=factors)
        return searched(ask(request, frameworks_of(values)))

    if how_many:
        takers, rest = taking_orders(asked)
        found = searched(takers, max(top, how_many))
        improve(found, how_many, values.get("time_limit"), note)
        found = searched(rest, top, found)
    else:
        found = searched(asked, top)
    if not found.interrupted:
        with searching() as progress:
            found.larger = (
                one_more_node(found.searched or found.plans[0], progress)
                if found.plans
                else enough_gpus(asked.requests, progress)
            )
    answers = [
        why_not(text, found.searched, partial(again, other)) for text, other in others.items()
    ]
    return Plan(found, tuple(answers))


def improve(
    found: Answer, how_many: int, time_limit: float | None, note: Callable[[int, str], None]
) -> None:
    """Look for faster schedules of the best plans, in place of the results of their searches."""
    from debubble.planner.search.faster_schedules import (
        optimized,  # the optimizer takes time to load
    )

    best = replace(found.searches[0], plans=found.plans)
    optimized(best, how_many, time_limit, note)
    found.interrupted = best.interrupted
    found.plans = []
    for one in found.searches:
        own = one.request.fixed.framework
        one.plans = [plan for plan in best.plans if plan.request.fixed.framework == own]


def with_measured_steps(request: PlanRequest, path: str, text: str | None = None) -> PlanRequest:
    """Return a request with measured efficiencies; logs and profiles are of the only plan left.

    `path` is a file of :func:`~debubble.planner.cost.calibration_files.calibrate_from`, whose
    ending gives its format. `text` is its content, if the file is not to be read.
    """
    left = list(islice(candidates(request), SOME))
    ran = left[0] if len(left) == 1 else None
    return replace(request, factors=calibrate_from(path, request, ran, text, open_options(left)))


SOME = 10_000
"""Number of candidates that are compared to find the open options."""


def open_options(left: Sequence[Candidate]) -> tuple[str, ...]:
    """Return the options in which candidates differ; they leave open which candidate ran."""
    names = (*DEGREES, "microbatch_size", "schedule", "recompute", "zero")
    values = [vars(one) | vars(one.degrees) for one in left]
    differ = (name for name in names if len({each[name] for each in values}) > 1)
    return tuple(f"--{name.replace('_', '-')}" for name in differ)
