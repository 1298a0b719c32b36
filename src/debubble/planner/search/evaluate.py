"""A candidate with all that follows from it: step time by cause, and the memory of every rank."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline, simulate
from debubble.planner.candidate import Candidate, Training, recomputed_layers
from debubble.planner.cost.flops import flops_per_token
from debubble.planner.cost.layer_times import layer_times
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.cost.stage_costs import stage_costs
from debubble.planner.cost.step import Step, step_of
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.gpus import Gpu
from debubble.planner.hardware.kernel_times import PRECISIONS
from debubble.planner.memory.peaks import FRAGMENTATION, RankMemory, margin, memory_costs, memory_of
from debubble.planner.memory.state import stage_states
from debubble.planner.model.transformer import Model
from debubble.schedules import registry


@dataclass(frozen=True)
class Asked:
    """What is to be planned: a model, GPUs, a training, and how fast kernels run.

    `limit` is the memory in bytes that one GPU has for it.
    """

    model: Model
    cluster: Cluster
    training: Training
    factors: Factors
    limit: float


OPTIMIZED = "optimized"
"""What orders are called that no published schedule has."""


@dataclass(frozen=True)
class Plan:
    """A candidate, evaluated.

    Parameters
    ----------
    candidate
        How it runs.
    step_time
        Seconds of one optimizer step.
    peaks
        Bytes of a GPU of every pipeline rank at its peak; empty where nobody asked yet.
    limit
        Bytes that a GPU has.
    causes
        The step time by cause, see :func:`causes_of`; sums to it. Of finished plans, as all below.
    bubble_ratio
        Idle share of the pipeline's rank-time.
    memory
        What every rank's peak consists of.
    order
        The order in which it runs, where its schedule makes it for costs and memory, or where it
        was optimized.
    optimized
        Whether that order is no published schedule's.
    lower_bound
        Seconds below which no order of its stages within the memory brings a step; 0 where nobody
        asked.
    """

    candidate: Candidate
    step_time: float
    peaks: tuple[float, ...]
    limit: float
    causes: dict[str, float] = field(default_factory=dict)
    bubble_ratio: float = 0.0
    memory: tuple[RankMemory, ...] = ()
    order: Schedule | None = None
    optimized: bool = False
    lower_bound: float = 0.0

    @property
    def schedule(self) -> str:
        """The name of its order."""
        return OPTIMIZED if self.optimized else self.candidate.schedule

    @property
    def fits(self) -> bool:
        """Whether every rank has room."""
        return max(self.peaks) <= self.limit


def schedule_of(
    candidate: Candidate, costs: Costs, room: Sequence[float] | None = None
) -> Schedule:
    """The schedule of a candidate, made for its costs where it is made for any.

    `room` are the bytes of activations that its ranks may hold, where the schedule asks; by default
    what its name promises, such as the half of V-Half.
    """
    name, entry = candidate.schedule, registry.find(candidate.schedule)
    p, m, v = candidate.degrees.pp, candidate.microbatches, candidate.degrees.chunks
    if not entry.uses_costs:
        return registry.made_once(name, ranks=p, microbatches=m, chunks=v)
    return registry.make(name, ranks=p, microbatches=m, chunks=v, costs=costs, memory=room)


def standing(asked: Asked, candidate: Candidate, placement: Placement) -> NDArray[np.float64]:
    """Bytes that every rank holds during the whole step, margin included; shape ``(pp,)``."""
    held = np.full(candidate.degrees.pp, margin(asked.training))
    states = stage_states(asked.model, asked.training, candidate)
    np.add.at(held, placement.ranks_of_stages, [state.total for state in states])
    return held


def costs_of(asked: Asked, candidate: Candidate, *, memory: bool = True) -> Costs:
    """Times in seconds and activations in bytes of every stage, as the engine takes them.

    Without `memory` activations are left out where no order is made for them.
    """
    model, cluster, training = asked.model, asked.cluster, asked.training
    if not memory and not registry.find(candidate.schedule).uses_costs:
        return stage_costs(model, cluster, training, candidate, asked.factors)
    bytes_of = memory_costs(model, training, candidate)
    return stage_costs(model, cluster, training, candidate, asked.factors, **bytes_of)


def simulated(
    asked: Asked, candidate: Candidate, order: Schedule | None = None, *, memory: bool = True
) -> Timeline:
    """The pipeline of one step in the engine, in an order of its own or in its schedule's.

    A schedule that has no order for these sizes, or none within the memory, is refused.
    """
    costs = costs_of(asked, candidate, memory=memory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # orders made for other costs are compared on purpose
        return simulate(order or schedule_of(candidate, costs), costs)


def timed(
    asked: Asked, candidate: Candidate, order: Schedule | None = None, *, memory: bool = True
) -> tuple[Plan, Timeline]:
    """The step time of a candidate, without its memory; in an order of its own, or its schedule."""
    timeline = simulated(asked, candidate, order, memory=memory)
    seconds = _step(asked, candidate, timeline).seconds
    if registry.find(candidate.schedule).uses_costs:
        order = timeline.schedule
    return Plan(candidate, seconds, (), asked.limit, order=order), timeline


def with_peaks(asked: Asked, plan: Plan, timeline: Timeline) -> Plan:
    """A plan with the peak of every rank.

    Where the activations alone are too large, that is all of it: less than the peaks really are.
    """
    model, training, candidate = asked.model, asked.training, plan.candidate
    held = standing(asked, candidate, timeline.schedule.placement)
    peaks = (held + (1 + FRAGMENTATION) * timeline.peak_activation).tolist()
    if max(peaks) <= asked.limit:
        memory = memory_of(model, asked.cluster.gpu, training, candidate, timeline)
        peaks = [rank.peak for rank in memory]
    return replace(plan, peaks=tuple(peaks))


def finished(asked: Asked, plan: Plan) -> Plan:
    """A plan with all that is said of it: causes of its time, and parts of its memory."""
    candidate = plan.candidate
    timeline = simulated(asked, candidate, plan.order)
    memory = memory_of(asked.model, asked.cluster.gpu, asked.training, candidate, timeline)
    return replace(
        plan,
        peaks=tuple(rank.peak for rank in memory),
        causes=causes_of(asked, candidate, _step(asked, candidate, timeline)),
        bubble_ratio=max(timeline.bubble_ratio, 0.0),  # sums of one rank may differ in rounding
        memory=memory,
    )


def _step(asked: Asked, candidate: Candidate, timeline: Timeline) -> Step:
    return step_of(asked.model, asked.cluster, asked.training, candidate, timeline)


CAUSES = {
    "compute": "products, attention and memory-bound kernels, of an average rank",
    "recompute": "forwards that run again",
    "tp": "tensor-parallel communication that nothing hides",
    "cp": "context-parallel communication that nothing hides",
    "ep": "tokens on their way to experts and back",
    "dp": "weights gathered and gradients scattered layer by layer, where replicas split them",
    "imbalance": "what the busiest rank does more than the average one",
    "bubble": "what the pipeline's busiest rank waits",
    "gradients": "summing gradients over replicas after the last backward",
    "optimizer": "the optimizer step",
    "weights": "gathering new weights",
}
"""Causes of a step's seconds, each in words."""


def causes_of(asked: Asked, candidate: Candidate, step: Step) -> dict[str, float]:
    """Seconds of a step by each of :data:`CAUSES`; they sum to the step time."""
    timeline, ends = step.timeline, step.ends
    busy = timeline.busy
    makespan, mean, most = timeline.makespan, float(busy.mean()), float(busy.max())
    found = dict.fromkeys(CAUSES, 0.0)
    for name, seconds in _layer_causes(asked, candidate).items():
        found[name] += seconds * candidate.microbatches / candidate.degrees.pp
    # Embedding, head and what starting an action takes are compute, too.
    found["compute"] += mean - sum(found.values())
    found["imbalance"], found["bubble"] = most - mean, makespan - most
    found["optimizer"], found["weights"] = max(ends.optimizer), max(ends.weights)
    found["gradients"] = step.seconds - makespan - found["optimizer"] - found["weights"]
    return found


def _layer_causes(asked: Asked, candidate: Candidate) -> dict[str, float]:
    """Seconds of all layers for one microbatch."""
    found = {"recompute": 0.0}
    layers = asked.model.layers
    again = Counter(layers)
    if recomputed_layers(candidate.recompute) is not None:
        stages = zip(candidate.first_layers, candidate.first_kept, strict=False)
        again = Counter(layer for begin, kept in stages for layer in layers[begin:kept])
    for layer, count in Counter(layers).items():
        times = layer_times(
            asked.model, layer, asked.cluster, asked.training, candidate, asked.factors
        )
        found["recompute"] += again[layer] * times.R
        for name, part in times.parts:
            found[name] = found.get(name, 0.0) + count * (part.F + part.I + part.W)
    return found


@dataclass(frozen=True)
class Speed:
    """How fast a step is: tokens per second of all GPUs, and FLOP/s of one by convention."""

    tokens_per_second: float
    flops_per_gpu: dict[str, float]
    mfu: dict[str, float]


def speed(asked: Asked, step_time: float) -> Speed:
    """How fast steps of a time are."""
    gpus, tokens = asked.cluster.gpus, asked.training.tokens
    flops = flops_per_token(asked.model, asked.training.sequence)
    per_gpu = {name: count * tokens / step_time / gpus for name, count in flops.items()}
    peak = asked.cluster.gpu.peak(PRECISIONS[asked.training.precision])
    return Speed(tokens / step_time, per_gpu, {name: rate / peak for name, rate in per_gpu.items()})


def relative_error(asked: Asked, plan: Plan) -> float:
    """Share of a plan's step time by which that may be off."""
    return asked.factors.error(*_run(asked, plan), experts=bool(asked.model.experts))


def efficiency(asked: Asked, plan: Plan) -> float:
    """Share of the modelled speed of kernels that a plan's are taken to reach."""
    return asked.factors.efficiency(*_run(asked, plan), experts=bool(asked.model.experts))


def origin(asked: Asked, plan: Plan) -> str:
    """Where a plan's efficiency is from, for people."""
    return asked.factors.origin(*_run(asked, plan), experts=bool(asked.model.experts))


def _run(asked: Asked, plan: Plan) -> tuple[Gpu, int, Training]:
    """What efficiencies are looked up by."""
    return asked.cluster.gpu, plan.candidate.degrees.tp, asked.training


def tied(asked: Asked, one: Plan, other: Plan) -> bool:
    """Whether the order of two plans may be the other way round.

    What they have in common is off by the same in both; what they differ in, cause by cause, may be
    off by the error of the model.
    """
    apart = sum(abs(one.causes[name] - other.causes[name]) for name in CAUSES)
    error = max(relative_error(asked, one), relative_error(asked, other))
    return abs(one.step_time - other.step_time) <= error * apart
