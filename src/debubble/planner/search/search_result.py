"""Results of a search: the best plans, those that are near, and counts of others by reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias

from debubble.planner.candidate import Candidate
from debubble.planner.request import PlanRequest
from debubble.planner.search.evaluate import Evaluated

ROUNDING = 1e-9
"""Share by which times and bytes have to differ, so that rounding decides nothing."""

SLOWER = "slower, simulated with one or more layer splits"
TOO_LARGE = "too large for the memory, simulated with one or more layer splits"
IN_FLIGHT = "too large with the microbatches that the schedule has in flight"
NO_ROOM = "too large with one microbatch, with any schedule"
BOUND = "slower with any schedule and layer split"
SLOW_PIPELINE = "slower with any schedule, with an even or a balanced layer split"
NO_FEWER = "partial recompute would not apply to any stage"
NO_ORDER = "the schedule has no order for these sizes and this memory"
"""Reasons for which candidates are left out."""


@dataclass
class Found:
    """The results of a search."""

    request: PlanRequest
    top: int
    """Most plans that are kept."""
    plans: list[Evaluated] = field(default_factory=list)
    """The best plans that fit, fastest first."""
    near: list[Evaluated] = field(default_factory=list)
    """Plans that do not fit: the fastest that nearly do, then those that need least; where nothing
    fits, those that need least."""
    considered: int = 0
    """Number of candidates that were decided on."""
    simulated: int = 0
    """Number of candidates that ran in the engine."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of candidates that were left out, by reason."""
    interrupted: bool = False
    """True if the search was stopped; then other candidates may be better."""
    below: float = math.inf
    """Seconds that a plan has to stay below to be kept."""
    larger: Evaluated | None = None
    """The best plan on more GPUs, where that was asked for: with one more node, or, where no plan
    fits, one that does."""
    searched: Evaluated | None = None
    """The best plan that the search found, whatever joined the plans later."""
    seen: list[tuple[Candidate, float, float]] = field(default_factory=list)
    """Candidates that were evaluated in full, each with its step time and its largest peak."""
    front: list[Evaluated] = field(default_factory=list)
    """Plans that fit and that none of these is better than in both time and memory."""
    early: Evaluated | None = None
    """A plan that fits, found before the search began with the most promising ones."""

    @property
    def best(self) -> Evaluated | None:
        """The best plan that fits, so far."""
        return self.plans[0] if self.plans else self.early

    def leave_out(self, reason: str, count: int = 1, *, simulated: bool = False) -> None:
        """Count candidates that were left out."""
        self.left_out[reason] = self.left_out.get(reason, 0) + count
        self.considered += count
        self.simulated += count * simulated

    def take(self, plan: Evaluated) -> None:
        """Keep a plan if it is among the best, or the nearest of those that do not fit."""
        self.considered += 1
        self.simulated += 1
        self._note(plan)
        for gone in kept(self.plans if plan.fits else self.near, plan, self.top):
            reason = SLOWER if gone.fits else TOO_LARGE
            self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def _note(self, plan: Evaluated) -> None:
        """Write down time and memory of a plan, and the plan if it is on the frontier."""
        peak = max(plan.peaks)
        self.seen.append((plan.candidate, plan.step_time, peak))
        if not plan.fits or any(
            one.step_time <= plan.step_time and max(one.peaks) <= peak for one in self.front
        ):
            return
        front = (
            one for one in self.front if one.step_time < plan.step_time or max(one.peaks) < peak
        )
        self.front = [*front, plan]


def kept(plans: list[Evaluated], plan: Evaluated, top: int) -> list[Evaluated]:
    """Put a plan among the best `top`, all of which fit or none; return those that are left out."""
    alike = next((one for one in plans if _alike(one, plan)), None)
    if alike is not None and rank(alike) <= rank(plan):
        return [plan]
    gone = []
    if alike is not None:
        plans.remove(alike)
        gone.append(alike)
    plans.append(plan)
    plans.sort(key=rank)
    if len(plans) > top:
        gone.append(plans.pop())
    return gone


Kin: TypeAlias = tuple[tuple[int, ...], int, str]
"""Key that similar plans share. Only the best of them is kept, so that others are alternatives."""


def kin(candidate: Candidate) -> Kin:
    """Return degrees but for chunks, microbatch size and schedule of a candidate."""
    own = candidate.degrees
    degrees = own.tp, own.cp, own.ep, own.dp, own.pp
    return degrees, candidate.microbatch_size, candidate.schedule


def _alike(one: Evaluated, other: Evaluated) -> bool:
    """Return whether only the better of two plans is kept.

    They are kin, or differ only in schedules that turn out the same.
    """
    a, b = kin(one.candidate), kin(other.candidate)
    return a[:2] == b[:2] and (
        a == b or (one.step_time, one.peaks) == (other.step_time, other.peaks)
    )


USUAL_ZERO = 1
"""The level of ZeRO that every framework has."""

NEAR = 1.25
"""Share of a GPU's memory up to which a plan that does not fit is worth a look."""


def rank(plan: Evaluated) -> tuple[object, ...]:
    """Return the sort key of a plan: faster first, then simpler, then smaller.

    Of plans that do not fit those that nearly do come first, and then those that need least memory.
    """
    candidate, peak = plan.candidate, max(plan.peaks)
    if not plan.fits and not nearly_fits(plan):
        return (1, peak)
    simple = candidate.degrees.chunks, abs(candidate.zero - USUAL_ZERO)
    return (0, rounded(plan.step_time), *simple, peak, str(candidate))


def rounded(value: float) -> float:
    """Return a number to nine digits, so that rounding decides nothing."""
    return float(f"{value:.9g}")


def nearly_fits(plan: Evaluated) -> bool:
    """Return whether a plan that does not fit is near."""
    return max(plan.peaks) <= NEAR * plan.request.limit


def may_be_near(found: Found, candidate: Candidate, peak: float, least: float) -> bool:
    """Return whether a candidate that does not fit may be kept as near.

    By bounds for the bytes of its fullest rank and for the seconds of its step.
    """
    near, own, limit = found.near, kin(candidate), found.request.limit
    alike = next((plan for plan in near if kin(plan.candidate) == own), None)
    if alike is None and len(near) < found.top:
        return True
    last = rank(alike or near[-1])
    if peak <= NEAR * limit * (1 + ROUNDING):
        return (0, rounded(least)) <= last[:2]
    return (1, peak * (1 - ROUNDING)) <= last
