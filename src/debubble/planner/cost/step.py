"""One step of a candidate: its costs, its simulated pipeline and its ends."""

from __future__ import annotations

from dataclasses import dataclass

from debubble.engine.timeline import Timeline, simulate
from debubble.planner.candidate import Candidate, Training
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.cost.stage_costs import stage_costs
from debubble.planner.cost.step_overheads import StepEnds, step_ends
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.model.transformer import Model
from debubble.schedules import registry


@dataclass(frozen=True)
class Step:
    """The simulated pipeline of a step with its overheads."""

    seconds: float
    timeline: Timeline
    ends: StepEnds


def step_time(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate, factors: Factors
) -> Step:
    """Return seconds of one optimizer step: the engine's timeline and the overheads after it."""
    degrees = candidate.degrees
    costs = stage_costs(model, cluster, training, candidate, factors)
    schedule = registry.make(
        candidate.schedule, ranks=degrees.pp, microbatches=candidate.microbatches, costs=costs,
        chunks=degrees.chunks if degrees.chunks > 1 else None,
    )  # fmt: skip
    return step_of(model, cluster, training, candidate, simulate(schedule, costs))


def step_of(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate, timeline: Timeline
) -> Step:
    """Return the step whose pipeline was simulated with costs of :func:`stage_costs`.

    When the last rank has its gradients, the optimizer runs, and then weights are gathered.
    """
    costs, schedule = timeline.table.costs, timeline.schedule
    assert isinstance(costs.I, tuple)
    assert isinstance(costs.W, tuple)
    backward = tuple(i + w for i, w in zip(costs.I, costs.W, strict=True))
    ends = step_ends(model, cluster, training, candidate, backward, schedule.placement)
    last = timeline.end[schedule.offsets[1:] - 1].tolist()
    ready = max(end + wait for end, wait in zip(last, ends.gradients, strict=True))
    return Step(float(ready + max(ends.optimizer) + max(ends.weights)), timeline, ends)
