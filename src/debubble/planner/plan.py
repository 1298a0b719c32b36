"""A candidate with all that follows from it: step time by cause, and the memory of every rank."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from debubble.core.actions import Kind
from debubble.core.costs import Costs
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline, simulate
from debubble.planner.calibrate import Factors, has_experts
from debubble.planner.candidate import Candidate, Training
from debubble.planner.cluster import Cluster
from debubble.planner.flops import flops_per_token
from debubble.planner.layer_times import layer_times
from debubble.planner.memory import RankMemory, margin, memory_costs, memory_of, rank_state
from debubble.planner.model import Model
from debubble.planner.stage_costs import stage_costs
from debubble.planner.step import total
from debubble.planner.step_ends import StepEnds, step_ends
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


@dataclass(frozen=True)
class Plan:
    """A candidate, evaluated.

    Parameters
    ----------
    candidate
        How it runs.
    step_time
        Seconds of one optimizer step.
    causes
        The same by cause, see :func:`causes_of`; sums to `step_time`.
    bubble_ratio
        Idle share of the pipeline's rank-time.
    peaks
        Bytes of a GPU of every pipeline rank at its peak: activations, what stays from step to
        step and a margin, until :func:`measured` adds buffers and logits.
    limit
        Bytes that a GPU has.
    memory
        What every rank's peak consists of, where that was asked for.
    """

    candidate: Candidate
    step_time: float
    causes: dict[str, float]
    bubble_ratio: float
    peaks: tuple[float, ...]
    limit: float
    memory: tuple[RankMemory, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every rank has room."""
        return max(self.peaks) <= self.limit


@lru_cache(maxsize=256)
def _order(name: str, ranks: int, microbatches: int, chunks: int) -> Schedule:
    """A schedule whose order does not depend on costs."""
    return registry.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)


def schedule_of(candidate: Candidate, costs: Costs, limit: float | None = None) -> Schedule:
    """The schedule of a candidate, made for its costs and its memory where it is made for any."""
    degrees = candidate.degrees
    entry = registry.find(candidate.schedule)
    if not entry.uses_costs:
        return _order(candidate.schedule, degrees.pp, candidate.microbatches, degrees.chunks)
    within = limit if "memory" in entry.parameters else None
    return registry.make(
        candidate.schedule, ranks=degrees.pp, microbatches=candidate.microbatches,
        chunks=degrees.chunks, costs=costs, memory=within,
    )  # fmt: skip


def costs_of(asked: Asked, candidate: Candidate) -> Costs:
    """Times in seconds and activations in bytes of every stage, as the engine takes them."""
    model, training = asked.model, asked.training
    times = stage_costs(model, asked.cluster, training, candidate, asked.factors)
    return replace(times, **memory_costs(model, training, candidate))


def simulated(asked: Asked, candidate: Candidate) -> Timeline:
    """The pipeline of one step in the engine."""
    costs = costs_of(asked, candidate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # orders made for other costs are compared on purpose
        return simulate(schedule_of(candidate, costs, asked.limit), costs)


def evaluate(asked: Asked, candidate: Candidate) -> Plan:
    """Step time and memory of a candidate.

    Raises
    ------
    ParameterError
        When its schedule has no order for these sizes, or none within the memory.
    """
    timeline = simulated(asked, candidate)
    ends = _ends(asked, candidate, timeline)
    causes = causes_of(asked, candidate, timeline, ends)
    state = [
        rank_state(asked.model, asked.training, candidate, timeline.schedule, rank).total
        for rank in range(candidate.degrees.pp)
    ]
    peaks = timeline.peak_activation + state + margin(asked.training)
    return Plan(
        candidate, sum(causes.values()), causes, timeline.bubble_ratio, tuple(peaks.tolist()),
        asked.limit,
    )  # fmt: skip


def measured(asked: Asked, plan: Plan) -> Plan:
    """A plan with the whole memory of every rank, over the time of a step."""
    timeline = simulated(asked, plan.candidate)
    memory = memory_of(
        asked.model, asked.cluster.gpu, asked.training, plan.candidate, timeline
    )  # fmt: skip
    return replace(plan, peaks=tuple(rank.peak for rank in memory), memory=memory)


def _ends(asked: Asked, candidate: Candidate, timeline: Timeline) -> StepEnds:
    duration = timeline.table.duration
    backward = tuple((duration[Kind.I] + duration[Kind.W]).tolist())
    placement = timeline.schedule.placement
    return step_ends(asked.model, asked.cluster, asked.training, candidate, backward, placement)


CAUSES = {
    "compute": "products, attention and memory-bound kernels, of an average rank",
    "recompute": "forwards that run again",
    "tp": "tensor-parallel communication that nothing hides",
    "cp": "context-parallel communication that nothing hides",
    "ep": "tokens on their way to experts and back",
    "dp": "weights that are gathered for every layer, where they are split",
    "imbalance": "what the busiest rank does more than the average one",
    "bubble": "what the pipeline's busiest rank waits",
    "gradients": "summing gradients over replicas after the last backward",
    "optimizer": "the optimizer step",
    "weights": "gathering new weights",
}
"""Causes of a step's seconds, each in words."""


def causes_of(
    asked: Asked, candidate: Candidate, timeline: Timeline, ends: StepEnds
) -> dict[str, float]:
    """Seconds of a step by each of :data:`CAUSES`; they sum to the step time."""
    busy = timeline.busy
    makespan, mean, most = timeline.makespan, float(busy.mean()), float(busy.max())
    found = dict.fromkeys(CAUSES, 0.0)
    for name, seconds in _layer_causes(asked, candidate).items():
        found[name] += seconds * candidate.microbatches / candidate.degrees.pp
    # Embedding, head and what starting an action takes are compute, too.
    found["compute"] += mean - sum(found.values())
    found["imbalance"], found["bubble"] = most - mean, makespan - most
    found["optimizer"], found["weights"] = max(ends.optimizer), max(ends.weights)
    found["gradients"] = total(timeline, ends) - makespan - found["optimizer"] - found["weights"]
    return found


def _layer_causes(asked: Asked, candidate: Candidate) -> dict[str, float]:
    """Seconds of all layers for one microbatch."""
    found = {"recompute": 0.0}
    for layer, count in Counter(asked.model.layers).items():
        times = layer_times(
            asked.model, layer, asked.cluster, asked.training, candidate, asked.factors
        )
        found["recompute"] += count * times.R
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
    peak = asked.cluster.gpu.bf16
    return Speed(tokens / step_time, per_gpu, {name: rate / peak for name, rate in per_gpu.items()})


def relative_error(asked: Asked, plan: Plan) -> float:
    """Share of a plan's step time by which that may be off."""
    tp, training = plan.candidate.degrees.tp, asked.training
    experts = has_experts(asked.model)
    return asked.factors.error(asked.cluster.gpu, tp, training, experts=experts)


def tied(asked: Asked, one: Plan, other: Plan) -> bool:
    """Whether the order of two plans may be the other way round.

    What they have in common is off by the same in both; what they differ in, cause by cause, may be
    off by the error of the model.
    """
    apart = sum(abs(one.causes[name] - other.causes[name]) for name in CAUSES)
    error = max(relative_error(asked, one), relative_error(asked, other))
    return abs(one.step_time - other.step_time) <= error * apart
