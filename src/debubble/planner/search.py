"""The best plans among all candidates, and what proves that none that was left out is better."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

from debubble.core.errors import DebubbleError
from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.plan import Asked, Plan, evaluate, measured
from debubble.planner.stage_costs import stage_times
from debubble.planner.state import stage_state

Progress = Callable[["Found"], None]
"""Is told, now and then, what has been found so far."""


@dataclass
class Found:
    """What a search has found.

    Parameters
    ----------
    plans
        The best plans that fit, fastest first.
    near
        The fastest plans that do not fit.
    considered
        Number of candidates that were decided on.
    simulated
        How many of them ran in the engine.
    left_out
        How many were left out, by reason.
    interrupted
        Whether the search was stopped; then other candidates may be better.
    """

    top: int
    plans: list[Plan] = field(default_factory=list)
    near: list[Plan] = field(default_factory=list)
    considered: int = 0
    simulated: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def slowest_kept(self) -> float:
        """A candidate that cannot be faster than this cannot be among the plans; in seconds."""
        return self.plans[-1].step_time if len(self.plans) >= self.top else math.inf

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count candidates that were left out."""
        self.left_out[reason] = self.left_out.get(reason, 0) + count
        self.considered += count

    def take(self, plan: Plan) -> None:
        """Keep a plan if it is among the best."""
        self.considered += 1
        self.simulated += 1
        kept = self.plans if plan.fits else self.near
        kept.append(plan)
        kept.sort(key=lambda one: one.step_time)
        if len(kept) > self.top:
            kept.pop()
        if plan not in kept:
            reason = SLOWER if plan.fits else TOO_LARGE
            self.left_out[reason] = self.left_out.get(reason, 0) + 1


SLOWER = "simulated, and slower"
TOO_LARGE = "simulated, and too large for the memory"
NO_ROOM = "weights and optimizer states alone are too large"
BOUND = "cannot be faster, whatever the schedule and the layer split"
NO_ORDER = "no order of the schedule for these sizes and this memory"
"""Reasons for which candidates are left out."""


def search(
    asked: Asked,
    candidates: Iterable[Candidate],
    top: int = 10,
    progress: Progress | None = None,
) -> Found:
    """The fastest plans that fit, out of `candidates`.

    Candidates that differ only in schedule, chunks and layer split have the same work in the same
    memory of weights. That gives a bound for all of them at once, the lowest of which come first;
    when the next bound is above the slowest plan to be kept, no candidate that is left can be
    among the best.
    """
    found = Found(top)
    tell = progress or _silent
    groups: list[tuple[float, int, list[Candidate]]] = []
    try:
        for number, (_, group) in enumerate(groupby(candidates, key=_work)):
            members = list(group)
            if least_memory(asked, members[0]) > asked.limit:
                found.leave_out(NO_ROOM, len(members))
            else:
                groups.append((least_time(asked, members[0]), number, members))
            if number % 64 == 0:
                tell(found)
        heapq.heapify(groups)
        while groups:
            bound, _, members = heapq.heappop(groups)
            if bound >= found.slowest_kept:
                found.leave_out(BOUND, len(members) + sum(len(rest[2]) for rest in groups))
                break
            for candidate in members:
                try:
                    plan = evaluate(asked, candidate)
                    if plan.fits and plan.step_time < found.slowest_kept:
                        plan = measured(asked, plan)
                    found.take(plan)
                except DebubbleError:
                    found.leave_out(NO_ORDER)
            tell(found)
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def _silent(found: Found) -> None:
    """Tell nobody."""


def _work(candidate: Candidate) -> tuple[Degrees, int, str, int]:
    """All of a candidate but schedule, chunks and layer split."""
    degrees = candidate.degrees
    alike = replace(degrees, chunks=1) if degrees.chunks > 1 else degrees
    return alike, candidate.microbatch_size, candidate.recompute, candidate.zero


def _on_one_rank(candidate: Candidate) -> Candidate:
    """All layers on one stage, with the same groups."""
    one = replace(candidate.degrees, pp=1, chunks=1)
    return replace(candidate, degrees=one, layers=(sum(candidate.layers),))


def least_time(asked: Asked, candidate: Candidate) -> float:
    """Seconds below which no schedule and no layer split brings the step of a candidate.

    Some rank does at least the average of all work; nothing else is counted.
    """
    (whole,) = stage_times(
        asked.model, asked.cluster, asked.training, _on_one_rank(candidate), asked.factors
    )
    return (whole.F + whole.I + whole.W) * candidate.microbatches / candidate.degrees.pp


def least_memory(asked: Asked, candidate: Candidate) -> float:
    """Bytes below which the fullest rank does not get: the average of what stays all the time."""
    state = stage_state(asked.model, asked.training, _on_one_rank(candidate), 0)
    return state.total / candidate.degrees.pp
