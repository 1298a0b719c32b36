"""One step of a candidate: its costs, its simulated pipeline and its ends."""

from __future__ import annotations

from dataclasses import dataclass

from debubble.engine.timeline import Timeline
from debubble.planner.calibrate import Factors
from debubble.planner.candidate import Candidate, Training
from debubble.planner.cluster import Cluster
from debubble.planner.model import Model
from debubble.planner.stage_costs import stage_costs
from debubble.planner.step_ends import StepEnds, step_ends


@dataclass(frozen=True)
class Step:
    """A simulated step."""

    seconds: float
    timeline: Timeline
    ends: StepEnds


def step_time(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate, factors: Factors
) -> Step:
    """Seconds of one optimizer step, from the engine's timeline and what comes after it."""
    import debubble as db

    costs = stage_costs(model, cluster, training, candidate, factors)
    degrees = candidate.degrees
    options = {"chunks": degrees.chunks} if degrees.chunks > 1 else {}
    schedule = db.make(
        candidate.schedule,
        ranks=degrees.pp,
        microbatches=candidate.microbatches,
        costs=costs,
        **options,
    )
    timeline = db.simulate(schedule, costs)
    backward = tuple(i + w for i, w in zip(costs.I, costs.W))
    ends = step_ends(model, cluster, training, candidate, backward)
    last = max(timeline.makespan + g for g in ends.gradients)
    return Step(last + max(ends.optimizer) + max(ends.weights), timeline, ends)
