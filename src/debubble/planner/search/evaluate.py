"""A candidate with all that follows from it: step time by cause, and the memory of every rank."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from debubble.core.costs import Costs
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline, simulate
from debubble.planner.candidate import Candidate, Training, recomputed_layers
from debubble.planner.case import Case
from debubble.planner.cost.flops import flops_per_token
from debubble.planner.cost.layer_times import layer_times
from debubble.planner.cost.stage_costs import stage_costs
from debubble.planner.cost.step import Step, step_of
from debubble.planner.hardware.gpus import Gpu
from debubble.planner.hardware.kernel_times import PRECISIONS
from debubble.planner.memory.in_flight import is_steady
from debubble.planner.memory.peaks import (
    RankMemory,
    fragmentation,
    memory_costs,
    memory_of,
    peaks_of,
    peaks_with_more,
    standing,
)
from debubble.planner.memory.retries import chance_of_retries, retry_time
from debubble.planner.request import PlanRequest
from debubble.planner.search.bounds import least_peaks
from debubble.schedules import registry


@dataclass(frozen=True)
class Speed:
    """Tokens per second of all GPUs, and FLOP/s of one by two conventions."""

    tokens_per_second: float
    flops_per_gpu: dict[str, float]
    mfu: dict[str, float]


Verdict: TypeAlias = Literal["yes", "maybe", "no"]
"""Chance that a plan fits: 9 of 10 real peaks are within the capacity, some, fewer than 1 of 10."""

OPTIMIZED = "optimized"
"""Name of a schedule that is not a published one."""


@dataclass(frozen=True)
class Evaluated:
    """A candidate with its step time, and the memory of every rank."""

    request: PlanRequest
    candidate: Candidate
    step_time: float
    """Seconds of one optimizer step."""
    peaks: tuple[float, ...]
    """Bytes of a GPU of every pipeline rank at its peak; empty until they are computed."""
    causes: dict[str, float] = field(default_factory=dict)
    """The step time by cause, see :func:`causes_of`; sums to it. Of finished plans, as below."""
    bubble_ratio: float = 0.0
    """Idle share of the pipeline's rank-time."""
    memory: tuple[RankMemory, ...] = ()
    """Parts of every rank's peak."""
    order: Schedule | None = None
    """The schedule itself, if it is made for costs and memory or was optimized."""
    optimized: bool = False
    """True if that is no published schedule."""
    lower_bound: float = 0.0
    """Seconds below which no order of its stages within the memory brings a step; 0 until they are
    computed."""

    @property
    def schedule(self) -> str:
        """The name of its schedule."""
        return OPTIMIZED if self.optimized else self.candidate.schedule

    @property
    def fits(self) -> bool:
        """True if every rank has room."""
        return max(self.peaks) <= self.request.limit

    @property
    def verdict(self) -> Verdict:
        """Chance that it fits into the memory of a GPU, in a word."""
        peak, request = max(self.peaks), self.request
        if peak <= min(request.limit, request.safe):
            return "yes"
        # A limit below that is asked for, and no guess.
        asked = request.limit < request.safe
        least = peak / (1 + request.training.runtime.memory_error)
        return "no" if asked or least > request.capacity else "maybe"

    @property
    def memory_error(self) -> float:
        """Bytes by which 9 of 10 real peaks exceed the predicted one at most."""
        return max(self.peaks) * self.request.training.runtime.memory_error

    @property
    def retries(self) -> tuple[float, float]:
        """Chance that PyTorch's allocator runs short, and seconds per step that it then adds.

        Both are 0 for plans that fit.
        """
        if self.verdict == "yes" or not self.memory:
            return 0.0, 0.0
        rank, request = self.memory[self.fullest], self.request
        error = request.training.runtime.memory_error
        chance = chance_of_retries(rank.peak, request.capacity, error)
        dynamic = rank.activations + rank.buffers + rank.logits
        return chance, retry_time(dynamic, self.candidate.microbatches)

    @property
    def fullest(self) -> int:
        """The rank with the largest peak."""
        return self.peaks.index(max(self.peaks))

    @property
    def case(self) -> Case:
        """The candidate with all that its times and bytes follow from."""
        return self.request.case(self.candidate)

    @property
    def step_range(self) -> tuple[float, float]:
        """Seconds between which 9 of 10 such steps are."""
        low, high = self.case.step_range
        return low * self.step_time, high * self.step_time

    @property
    def step_error(self) -> float:
        """Seconds by which 9 of 10 such steps are off at most."""
        return self.case.step_range.error * self.step_time

    @property
    def efficiency(self) -> float:
        """Share of the modeled speed of kernels that its own are taken to reach."""
        return self.case.efficiency(experts=bool(self.request.model.experts))

    @property
    def efficiency_origin(self) -> str:
        """The origin of its efficiency, for display."""
        return self.request.factors.origin(*self._run, experts=bool(self.request.model.experts))

    @property
    def _run(self) -> tuple[Gpu, int, Training]:
        """The key by which efficiencies are looked up."""
        return self.request.cluster.gpu, self.candidate.degrees.tp, self.request.training

    @property
    def speed(self) -> Speed:
        """Tokens per second and FLOP/s of its steps."""
        request = self.request
        gpus, tokens = request.cluster.gpus, request.training.tokens
        flops = flops_per_token(request.model, request.training.sequence)
        rates = {name: count * tokens / self.step_time / gpus for name, count in flops.items()}
        peak = request.cluster.gpu.peak(PRECISIONS[request.training.precision])
        mfu = {name: rate / peak for name, rate in rates.items()}
        return Speed(tokens / self.step_time, rates, mfu)

    def simulate(self) -> Timeline:
        """Return the pipeline of one step."""
        return simulated(self.case, self.order)


def schedule_of(
    candidate: Candidate, costs: Costs, room: Sequence[float] | None = None
) -> Schedule:
    """Return the schedule of a candidate, made for its costs where it is made for any.

    `room` are the bytes of activations that its ranks may hold, where the schedule asks; by default
    what its name promises, such as the half of V-Half.
    """
    name, entry = candidate.schedule, registry.find(candidate.schedule)
    p, m, v = candidate.degrees.pp, candidate.microbatches, candidate.degrees.chunks
    if not entry.uses_costs:
        return registry.made_once(name, ranks=p, microbatches=m, chunks=v)
    return registry.make(name, ranks=p, microbatches=m, chunks=v, costs=costs, memory=room)


def costs_of(case: Case, *, memory: bool = True) -> Costs:
    """Return times in seconds and activations in bytes of every stage, as the engine takes them.

    Without `memory`, activations are left out unless a schedule is made for them.
    """
    counted = memory or case.candidate.uses_costs
    return stage_costs(case, **(memory_costs(case) if counted else {"runtime": case.engine}))


def simulated(case: Case, order: Schedule | None = None, *, memory: bool = True) -> Timeline:
    """Return the pipeline of one step in the engine, in an order of its own or in its schedule's.

    A schedule that does not exist for these sizes, or not within the memory, is refused.
    """
    costs = costs_of(case, memory=memory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # schedules made for other costs are compared on purpose
        return simulate(order or schedule_of(case.candidate, costs), costs)


def timed(
    request: PlanRequest, candidate: Candidate, order: Schedule | None = None, *,
    memory: bool = True,
) -> tuple[Evaluated, Timeline]:  # fmt: skip
    """Return the step time of a candidate without its memory, in its own order or a given one."""
    case = request.case(candidate)
    timeline = simulated(case, order, memory=memory)
    if candidate.uses_costs:
        order = timeline.schedule
    seconds = step_of(case, timeline).seconds
    return Evaluated(request, candidate, seconds, (), order=order), timeline


def with_peaks(plan: Evaluated, timeline: Timeline | None = None) -> Evaluated:
    """Return a plan with the peak of every rank; its timeline is simulated unless given.

    If the activations alone are too large, only they are counted, less than the real peaks. Those
    of long pipelines are of fewer microbatches where that is enough, see :func:`_steady_peaks`.
    """
    if plan.order is None and not plan.candidate.uses_costs:
        least = least_peaks(plan.request, plan.candidate)
        if least is not None and float(least.max()) > plan.request.limit:
            return replace(plan, peaks=tuple(least.tolist()))
    found = _steady_peaks(plan)
    return replace(plan, peaks=found or _peaks(plan, timeline or plan.simulate()))


def with_full_peaks(plan: Evaluated) -> Evaluated:
    """Return a plan with the peak of every rank in full, however large."""
    wide = replace(plan.request, limit=math.inf)
    return replace(with_peaks(replace(plan, request=wide)), request=plan.request)


def _peaks(plan: Evaluated, timeline: Timeline) -> tuple[float, ...]:
    held = standing(plan.case, timeline.schedule.placement)
    peaks = (held + (1 + fragmentation(plan.request.training)) * timeline.peak_activation).tolist()
    if max(peaks) <= plan.request.limit:
        peaks = peaks_of(plan.case, timeline).tolist()
    return tuple(peaks)


ROUNDS = 2, 3
"""Microbatches per rank after which more leave no more in memory where these two leave as much."""


def _steady_peaks(plan: Evaluated) -> tuple[float, ...]:
    """Return the peaks with few microbatches where they are those with more; else none.

    A published schedule that fills its ranks as much with three rounds of microbatches as with two
    is taken to go on like that. Plans that are reported are counted in full, see :func:`finished`.
    """
    own, ranks, runtime = plan.candidate, plan.candidate.degrees.pp, plan.request.training.runtime
    if own.uses_costs or plan.order is not None or own.microbatches <= 2 * sum(ROUNDS) * ranks:
        return ()
    apart = own.degrees.chunks > 1 and own.microbatches % ranks  # the last round is like no other
    if apart or not is_steady(own.schedule, ranks, own.degrees.chunks):
        return ()
    two, three = (replace(plan, candidate=replace(own, microbatches=n * ranks)) for n in ROUNDS)
    if runtime.receive_buffers and runtime.sent_until == "step":
        found = peaks_with_more(plan.case, three.simulate())
        return () if found is None else tuple(found.tolist())
    less, more = (_peaks(one, one.simulate()) for one in (two, three))
    return more if np.allclose(less, more, rtol=1e-12, atol=0) else ()


def finished(plan: Evaluated) -> Evaluated:
    """Return a plan with the causes of its time, and the parts of its memory."""
    case, timeline = plan.case, plan.simulate()
    memory = memory_of(case, timeline)
    return replace(
        plan,
        peaks=tuple(rank.peak for rank in memory),
        causes=causes_of(case, step_of(case, timeline)),
        bubble_ratio=max(timeline.bubble_ratio, 0.0),  # sums of one rank may differ in rounding
        memory=memory,
    )


CAUSES = {
    "compute": "kernels of an average rank",
    "recompute": "forwards that run again",
    "tp": "exposed tensor-parallel communication",
    "cp": "exposed context-parallel communication",
    "ep": "all-to-all of tokens and experts",
    "dp": "weights gathered and gradients scattered layer by layer (ZeRO-2, ZeRO-3)",
    "host": "GPUs waiting for the host to launch kernels",
    "imbalance": "work of the busiest rank above the average",
    "bubble": "idle time of the busiest rank",
    "gradients": "reduction over replicas after the last backward",
    "optimizer": "optimizer step",
    "weights": "gathering the new weights",
}
"""Causes of a step's seconds, each in words."""


def causes_of(case: Case, step: Step) -> dict[str, float]:
    """Return seconds of a step by each of :data:`CAUSES`; they sum to the step time."""
    timeline, ends, busy = step.timeline, step.ends, step.timeline.busy
    makespan, mean, most = timeline.makespan, float(busy.mean()), float(busy.max())
    found = dict.fromkeys(CAUSES, 0.0)
    for name, seconds in _layer_causes(case).items():
        found[name] += seconds * case.candidate.microbatches / case.degrees.pp
    # Embedding, head and what starting an action takes are compute, too.
    found["compute"] += mean - sum(found.values())
    found["imbalance"], found["bubble"] = most - mean, makespan - most
    found["optimizer"], found["weights"] = max(ends.optimizer), max(ends.weights)
    found["gradients"] = step.seconds - makespan - found["optimizer"] - found["weights"]
    return found


def _layer_causes(case: Case) -> dict[str, float]:
    """Return seconds of all layers for one microbatch."""
    found, candidate, layers = {"recompute": 0.0}, case.candidate, case.model.layers
    again = Counter(layers)
    if recomputed_layers(candidate.recompute) is not None:
        stages = zip(candidate.first_layers, candidate.first_kept, strict=False)
        again = Counter(layer for begin, kept in stages for layer in layers[begin:kept])
    for layer, count in Counter(layers).items():
        times = layer_times(case, layer)
        found["recompute"] += again[layer] * times.R
        for name, part in times.parts:
            found[name] = found.get(name, 0.0) + count * (part.F + part.I + part.W)
    return found


APART = 0.15
"""Largest error of a difference between two plans: that of dense steps with a pipeline. What makes
all steps of a kind of model slower or faster, such as kernels of experts, is the same in both."""


def tied(one: Evaluated, other: Evaluated) -> bool:
    """Return whether two plans may rank the other way round.

    Seconds that both have in common are off by the same in both. The differences, cause by cause,
    may be off by the error of the model, at most by :data:`APART`.
    """
    apart = sum(abs(one.causes[name] - other.causes[name]) for name in CAUSES)
    error = min(max(plan.case.step_range.error for plan in (one, other)), APART)
    return abs(one.step_time - other.step_time) <= error * apart
