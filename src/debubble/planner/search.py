"""The best plans among all candidates, and what proves that none that was left out is better."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from statistics import fmean

from debubble.core.errors import DebubbleError
from debubble.planner.batches import Batch, on_one_rank
from debubble.planner.bounds import least_memory, least_peaks, least_time, pipeline_bound
from debubble.planner.candidate import Candidate
from debubble.planner.degrees import FEWEST, Group
from debubble.planner.plan import Asked, Plan, finished, timed, with_peaks
from debubble.planner.split import Allowed, refined, split_bound, with_balanced

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
        Plans that do not fit: the fastest that nearly do, then those that need least.
    uneven
        The fastest plans that do not fit, but would with the same memory on every rank; empty after
        the search, when their layers were split otherwise.
    considered
        Number of candidates that were decided on.
    simulated
        How many of them ran in the engine.
    left_out
        How many were left out, by reason.
    interrupted
        Whether the search was stopped; then other candidates may be better.
    below
        Seconds that a plan has to stay below to be kept.
    larger
        The best plan on more GPUs, where that was asked: with one more node, or, where no plan
        fits, one that does.
    early
        A plan that fits, found before the search began with the most promising ones.
    """

    top: int
    plans: list[Plan] = field(default_factory=list)
    near: list[Plan] = field(default_factory=list)
    uneven: list[Plan] = field(default_factory=list)
    considered: int = 0
    simulated: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False
    below: float = math.inf
    larger: Plan | None = None
    early: Plan | None = None

    @property
    def best(self) -> Plan | None:
        """The best plan that fits, so far."""
        return self.plans[0] if self.plans else self.early

    @property
    def slowest_kept(self) -> float:
        """A candidate that cannot be faster than this cannot be among the plans; in seconds."""
        if len(self.plans) < self.top:
            return self.below
        return max(plan.step_time for plan in self.plans)

    def leave_out(self, reason: str, count: int = 1, *, simulated: bool = False) -> None:
        """Count candidates that were left out."""
        self.left_out[reason] = self.left_out.get(reason, 0) + count
        self.considered += count
        self.simulated += count * simulated

    def take(self, plan: Plan, *, free: bool = False) -> None:
        """Keep a plan if it is among the best; where its split is free, also if that may fit."""
        self.considered += 1
        self.simulated += 1
        even = free and fmean(plan.peaks) <= plan.limit
        self._keep(plan, self.plans if plan.fits else self.uneven if even else self.near)

    def _keep(self, plan: Plan, kept: list[Plan]) -> None:
        rank = _distance if kept is self.near else _rank
        alike = next((one for one in kept if _alike(one, plan)), None)
        if alike is not None and rank(alike) <= rank(plan):
            self._leave(plan)
            return
        if alike is not None:
            kept.remove(alike)
            self._leave(alike)
        kept.append(plan)
        kept.sort(key=rank)
        if len(kept) > self.top:
            self._leave(kept.pop())

    def rank_again(self, plans: Iterable[Plan], top: int) -> None:
        """Keep the best `top` of these plans, which are all that were kept."""
        self.top, self.plans, self.near, self.uneven = top, [], [], []
        for plan in plans:
            self._keep(plan, self.plans if plan.fits else self.near)

    def _leave(self, plan: Plan) -> None:
        reason = SLOWER if plan.fits else TOO_LARGE
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def _alike(one: Plan, other: Plan) -> bool:
    """Whether only the better of two plans is kept, so that the others are real alternatives.

    They have the same degrees and the same schedule, or one whose order turns out the same.
    """
    a, b = one.candidate, other.candidate
    return (
        replace(a.degrees, chunks=1) == replace(b.degrees, chunks=1)
        and a.microbatch_size == b.microbatch_size
        and (
            a.schedule == b.schedule or (one.step_time, one.peaks) == (other.step_time, other.peaks)
        )
    )


USUAL_ZERO = 1
"""The level of ZeRO that every framework has."""


def _rank(plan: Plan) -> tuple[float, int, int, float]:
    """Faster first; of plans as fast as each other the simpler one, then the smaller."""
    candidate = plan.candidate
    unusual = abs(candidate.zero - USUAL_ZERO)
    return float(f"{plan.step_time:.3g}"), candidate.degrees.chunks, unusual, max(plan.peaks)


NEAR = 1.25
"""Share of a GPU's memory up to which a plan that does not fit is worth a look."""


def _distance(plan: Plan) -> tuple[float, ...]:
    """Plans that nearly fit by their rank, and then those that need least memory."""
    peak = max(plan.peaks)
    return (0, *_rank(plan)) if nearly_fits(plan) else (1, peak)


def nearly_fits(plan: Plan) -> bool:
    """Whether a plan that does not fit is near."""
    return max(plan.peaks) <= NEAR * plan.limit


SLOWER = "simulated with one or more layer splits, and slower"
TOO_LARGE = "simulated with one or more layer splits, and too large for the memory"
IN_FLIGHT = "too large with what the schedule has in flight"
NO_ROOM = "too large with one microbatch, whatever the order"
BOUND = "cannot be faster, whatever the schedule and the layer split"
SLOW_PIPELINE = "cannot be faster with an even or a balanced layer split, whatever the order"
SLOW_STAGES = "cannot be faster with these stages, whatever the order"
NO_FEWER = "no stage has layers of which only some are recomputed"
NO_ORDER = "no order of the schedule for these sizes and this memory"
"""Reasons for which candidates are left out."""


MORE = 2
"""Where layer splits are free, so many times the plans to be shown are refined."""


def search(
    asked: Asked, groups: Iterable[Group], top: int = 10, progress: Progress | None = None,
    splits: Allowed | None = None, *, below: float = math.inf,
) -> Found:  # fmt: skip
    """The fastest plans that fit, out of all candidates of `groups`, with steps below `below`.

    Candidates that differ only in schedule, chunks and layer split do the same work with the same
    weights. That gives one bound for all of them, the lowest of which come first; when the next
    bound is above the slowest plan to be kept, no candidate that is left can be among the best.

    Where `splits` says which layer splits may be taken, those of the best plans are refined at the
    end, see :func:`debubble.planner.split.refined`. What was left out by a bound for every split
    cannot be among the best; what was simulated, or left out by the bound of its even and its
    balanced split, might with a better one. One schedule goes before all others, so that there is
    a good plan soon. Ctrl-C ends the search with the best so far, as does a `progress` that raises
    KeyboardInterrupt.
    """
    found = Found(top if splits is None else MORE * top, below=below)
    tell = progress or (lambda found: None)  # noqa: ARG005 - nobody is told
    batches: list[Batch] = []
    try:
        for number, group in enumerate(groups, 1):
            batches += _bounded(asked, group, len(batches), found)
            if found.early is None and number & (number - 1) == 0:
                found.early = _soon(asked, batches)
            tell(found)
        batches.sort()
        before = found.considered
        for usual in (True, False):
            for batch in batches:
                if batch.bound >= found.slowest_kept:
                    break
                for candidate in batch.candidates(usual=usual):
                    if batch.setting[0] == FEWEST:
                        _try_fewest(asked, candidate, found, splits)
                    else:
                        _try(asked, candidate, found, splits)
                    tell(found)
        rest = sum(batch.count for batch in batches) - (found.considered - before)
        if rest:
            found.leave_out(BOUND, rest)
    except KeyboardInterrupt:
        found.interrupted = True
        if not found.plans and found.early is not None:
            found.take(found.early)
    if splits is not None:
        _refine(asked, found, top, tell, splits)
    found.plans = [finished(asked, plan) for plan in found.plans]
    found.near = [finished(asked, plan) for plan in found.near]
    return found


SOON = 16
"""Batches that are looked at for a first plan, each time."""


def _soon(asked: Asked, batches: list[Batch]) -> Plan | None:
    """Some plan that fits, out of few of the most promising batches so far."""
    for batch in nsmallest(SOON, batches):
        if batch.setting[0] == FEWEST:
            continue
        for candidate in batch.candidates(usual=True):
            if _may_fit(asked, candidate):
                plan, _ = _evaluated(asked, candidate, math.inf)
                if plan is not None and plan.fits:
                    return plan
    return None


def _refine(asked: Asked, found: Found, top: int, tell: Progress, splits: Allowed) -> None:
    """Split the layers of the kept plans better, and keep the best of them."""
    plans = [*found.plans, *found.uneven]
    try:
        for number, plan in enumerate(plans if not found.interrupted else ()):
            better, _ = refined(asked, plan, splits)
            if better.fits:
                plans[number] = better
            tell(found)
    except KeyboardInterrupt:
        found.interrupted = True
    found.rank_again([*plans, *found.near], top)


def _bounded(asked: Asked, group: Group, number: int, found: Found) -> Iterator[Batch]:
    """The batches of a group with their bounds, without those that have no room."""
    for setting in dict.fromkeys(one for each in group.settings.values() for one in each):
        alone = on_one_rank(asked, group, setting)
        batch = Batch(least_time(asked, alone, group.degrees.pp), number, group, setting)
        if least_memory(asked, alone, group.degrees.pp) > asked.limit:
            found.leave_out(NO_ROOM, batch.count)
        else:
            number += 1
            yield batch


def _try(asked: Asked, given: Candidate, found: Found, splits: Allowed | None) -> None:
    candidate, reason = _promising(asked, given, found.slowest_kept, splits)
    if candidate is None:
        found.leave_out(reason)
        return
    if _is_too_large(asked, candidate, found, free=splits is not None):
        found.leave_out(IN_FLIGHT)
        return
    plan, reason = _evaluated(asked, candidate, found.slowest_kept)
    if plan is None:
        found.leave_out(reason, simulated=reason == SLOWER)
    else:
        found.take(plan, free=splits is not None)


def _evaluated(asked: Asked, candidate: Candidate, limit: float) -> tuple[Plan | None, str]:
    """A candidate's plan with its peaks; or why there is none, or none faster than `limit`."""
    try:
        plan, timeline = timed(asked, candidate)
        if plan.step_time >= limit:
            return None, SLOWER
        return with_peaks(asked, plan, timeline), ""
    except DebubbleError:
        return None, NO_ORDER


def _try_fewest(asked: Asked, given: Candidate, found: Found, splits: Allowed | None) -> None:
    """Take a candidate with the fewest recomputed layers of every stage with which it fits."""
    numbers = range(1, max(given.layers))
    if not numbers:
        found.leave_out(NO_FEWER)
        return
    # With more layers it is slower still: most candidates need no look at how many fit.
    candidate, reason = _promising(
        asked, given.recomputing(f"full:{numbers[0]}"), found.slowest_kept, splits
    )
    if candidate is None:
        found.leave_out(reason)
        return
    at = bisect_left(
        numbers, True, key=lambda number: _may_fit(asked, given.recomputing(f"full:{number}"))
    )
    reason = IN_FLIGHT
    for number in numbers[at:]:
        some = given.recomputing(f"full:{number}")
        candidate, reason = _promising(asked, some, found.slowest_kept, splits)
        if candidate is None:
            break  # and so with more layers
        plan, reason = _evaluated(asked, candidate, found.slowest_kept)
        if plan is None:
            found.simulated += reason == SLOWER
            break
        if plan.fits:
            found.take(plan)
            return
        found.simulated += 1
        reason = TOO_LARGE
    found.leave_out(reason)


def _may_fit(asked: Asked, candidate: Candidate) -> bool:
    """Whether what is in flight has room."""
    peaks = least_peaks(asked, candidate)
    return peaks is None or float(peaks.max()) <= asked.limit


def _promising(
    asked: Asked, given: Candidate, limit: float, splits: Allowed | None
) -> tuple[Candidate | None, str]:
    """The candidate to simulate, maybe with another split; or why none is faster than `limit`."""
    if math.isinf(limit) or pipeline_bound(asked, given) < limit:
        return given, ""
    if splits is None:
        return None, SLOW_STAGES
    if split_bound(asked, given) >= limit:
        return None, BOUND
    other = with_balanced(asked, given)
    if splits(other) and pipeline_bound(asked, other) < limit:
        return other, ""
    return None, SLOW_PIPELINE


ROUNDING = 1e-9
"""Share by which a bound has to be above a limit, so that rounding decides nothing."""


def _is_too_large(asked: Asked, candidate: Candidate, found: Found, *, free: bool) -> bool:
    """Whether a candidate does not fit, and is not among the plans that are kept nevertheless."""
    peaks = least_peaks(asked, candidate)
    if peaks is None or (most := float(peaks.max())) <= asked.limit * (1 + ROUNDING):
        return False
    even = free and peaks.mean() <= asked.limit * (1 + ROUNDING)
    kept = found.uneven if even else found.near
    if len(kept) < found.top:
        return False
    last = max(map(_rank if even else _distance, kept))
    if even or most <= NEAR * asked.limit * (1 + ROUNDING):
        first: tuple[float, ...] = (float(f"{pipeline_bound(asked, candidate):.3g}"),)
        return (first if even else (0, *first)) > last[: 1 if even else 2]
    return (1, most * (1 - ROUNDING)) > last
