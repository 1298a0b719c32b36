"""The best plans among all candidates, with the proof that no other is better."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import DebubbleError
from debubble.planner.candidate import Candidate
from debubble.planner.request import PlanRequest
from debubble.planner.search.bounds import least_memory, least_peaks, least_time, pipeline_bound
from debubble.planner.search.evaluate import Evaluated, finished
from debubble.planner.search.groups import FEWEST, Batch, CandidateGroup, groups
from debubble.planner.search.layer_split import Allowed, forced_time, runnable, split_bound
from debubble.planner.search.search_result import (
    BOUND,
    IN_FLIGHT,
    NEAR,
    NO_FEWER,
    NO_ORDER,
    NO_ROOM,
    ROUNDING,
    SLOW_PIPELINE,
    SLOWER,
    Found,
    Kin,
    kept,
    kin,
    rank,
    rounded,
)
from debubble.planner.search.within_memory import Base, base_cut, base_of, fastest_within

Progress = Callable[[Found], None]
"""Callback that gets the results so far, now and then."""


def best_plans(
    request: PlanRequest, top: int = 10, progress: Progress | None = None, *,
    below: float = math.inf,
) -> Found:  # fmt: skip
    """Return the fastest plans that fit and meet the constraints.

    Every question about plans is this search, with another request.
    """
    splits = None if request.fixed.layers else runnable(request)
    return search(request, groups(request), top, progress, splits, below=below)


def search(
    request: PlanRequest, groups: Iterable[CandidateGroup], top: int = 10,
    progress: Progress | None = None, splits: Allowed | None = None, *, below: float = math.inf,
) -> Found:  # fmt: skip
    """Return the fastest plans out of all candidates of `groups`, with steps below `below`.

    Candidates that differ only in schedule, chunks and layer split do the same work with the same
    weights. That gives one bound for all of them, the lowest of which come first; when the next
    bound is above the slowest plan to be kept, no candidate that is left can be among the best.
    One schedule goes before all others, so that there is a good plan soon.

    The candidates that are left are simulated once each. Those that may be among the best by their
    :attr:`~debubble.planner.search.within_memory.Base.floor` are then evaluated in full, see
    :mod:`.within_memory`. If `splits` is given, layers move between stages, too: it
    is the predicate of allowed layer splits. So the best plan depends neither on `top` nor on the
    other candidates.

    Ctrl-C ends the search with the best so far, as does a `progress` that raises KeyboardInterrupt.
    """
    found = Found(request, top, below=below * (1 - ROUNDING))
    tell = progress or (lambda found: None)  # noqa: ARG005 - no progress
    screen = _Screen(request, found, splits)
    batches: list[Batch] = []
    try:
        for number, group in enumerate(groups, 1):
            batches += _bounded(request, group, len(batches), found)
            if found.early is None and number & (number - 1) == 0:
                screen.start(_soon(request, batches, splits))
            tell(found)
        batches.sort()
        rest = sum(batch.count for batch in batches)
        for usual in (True, False):
            for batch in batches:
                if batch.bound > screen.limit:
                    break
                for candidate in batch.candidates(usual=usual):
                    rest -= 1
                    if batch.setting[0] == FEWEST:
                        screen.look_at_fewest(candidate)
                    else:
                        screen.look_at(candidate)
                    tell(found)
        if rest:
            found.leave_out(BOUND, rest)
        for _ in screen.decide():
            tell(found)
    except KeyboardInterrupt:
        found.interrupted = True
        for plan in screen.heads:
            found.take(plan)
    found.plans = [finished(plan) for plan in found.plans]
    found.near = [finished(plan) for plan in found.near]
    found.searched = found.plans[0] if found.plans else None
    return found


@dataclass
class _Screen:
    """Candidates that may be among the best."""

    request: PlanRequest
    found: Found
    splits: Allowed | None
    heads: list[Evaluated] = field(default_factory=list)
    """The best plans so far of those whose bases fit."""
    alike: dict[Kin, float] = field(default_factory=dict)
    """Seconds of the best plan so far of those alike, of which only one is kept."""
    waiting: list[tuple[float, int, list[Base]]] = field(default_factory=list)
    """Queue of candidates to be evaluated in full: the least floor, a number, and bases."""

    @property
    def limit(self) -> float:
        """Seconds above which no candidate can be among the best."""
        if len(self.heads) < self.found.top:
            return self.found.below
        return min(self.found.below, self.heads[-1].step_time * (1 + ROUNDING))

    def start(self, plan: Evaluated | None) -> None:
        """Begin with a plan that fits."""
        if plan is not None:
            self._keep(plan)

    def look_at(self, given: Candidate) -> None:
        """Simulate a candidate, unless a bound shows that it is too slow or too large."""
        base, reason = self._base(given)
        if base is None:
            self.found.leave_out(reason, simulated=reason == SLOWER)
        elif reason == IN_FLIGHT:
            self.found.take(base.plan)
        else:
            self._wait([base])

    def look_at_fewest(self, given: Candidate) -> None:
        """Simulate a candidate with every number of recomputed layers that may be the fewest."""
        numbers = range(1, max(given.layers))
        if not numbers:
            self.found.leave_out(NO_FEWER)
            return
        bases = []
        # With more layers it is slower still: most candidates need no look at how many fit.
        _, reason = self._start(given)
        if not reason and not self._may_fit(given, numbers[-1]):
            reason = IN_FLIGHT
        at = 0 if reason else bisect_left(numbers, True, key=lambda one: self._may_fit(given, one))
        for number in numbers[at:] if not reason else ():
            base, reason = self._base(given.recomputing(f"full:{number}"))
            if reason in (BOUND, SLOW_PIPELINE):
                break
            if base is None or reason == IN_FLIGHT:
                continue
            bases.append(base)
            if base.plan.fits and (self.splits is None or given.degrees.pp == 1):
                break
        if bases:
            self._wait(bases)
        else:
            self.found.leave_out(reason or IN_FLIGHT)

    def decide(self) -> Iterator[None]:
        """Look at those in full that can still be among the best, the most promising first."""
        for _, _, bases in sorted(self.waiting):
            plans = [plan for base in bases if (plan := self._decided(base)) is not None]
            if plans:
                self._take(min(plans, key=lambda plan: (not plan.fits, rank(plan))))
            else:
                self.found.leave_out(SLOWER, simulated=True)
            yield

    def _decided(self, base: Base) -> Evaluated | None:
        """Return the fastest variant of a base, or one that is near; None where all are slow."""
        limit = self._limit(base.plan.candidate)
        if base.floor <= limit:
            return fastest_within(self.request, base, self.splits, limit)
        return base.plan if not base.plan.fits and base.without_limit <= limit else None

    def _take(self, plan: Evaluated) -> None:
        if plan.fits:
            self._keep(plan)
        self.found.take(plan)

    def _base(self, given: Candidate) -> tuple[Base | None, str]:
        """Return the base of a candidate that may be among the best or near; or the reason against.

        With its peaks; and with a reason nevertheless where it is near and no more.
        """
        candidate, reason = self._start(given)
        if reason:
            return None, reason
        limit = self._limit(candidate)
        peaks = least_peaks(self.request, candidate)
        near = self._forced(candidate, peaks) > limit
        if near and not self._may_be_near(candidate, peaks):
            made = candidate.uses_costs
            return None, NO_ORDER if made else IN_FLIGHT
        try:
            base = base_of(self.request, candidate, self.splits, limit)
        except DebubbleError:
            return None, NO_ORDER
        if base is None:
            return None, SLOWER
        near = near or base.floor > limit
        return base, IN_FLIGHT if near else ""

    def _limit(self, candidate: Candidate) -> float:
        """Return seconds above which a candidate is neither among the best nor of those alike."""
        alike = self.alike.get(kin(candidate), math.inf)
        return min(self.limit, alike * (1 + ROUNDING))

    def _start(self, given: Candidate) -> tuple[Candidate, str]:
        """Return a candidate in its base cut, and the reason against it, empty if there is none."""
        limit = self._limit(given)
        if self.splits is not None and split_bound(self.request, given) > limit:
            return given, BOUND
        candidate, bound = base_cut(self.request, given, self.splits)
        if bound <= limit:
            return candidate, ""
        return candidate, BOUND if self.splits is None else SLOW_PIPELINE

    def _may_fit(self, given: Candidate, number: int) -> bool:
        some, _ = base_cut(self.request, given.recomputing(f"full:{number}"), self.splits)
        return math.isfinite(self._forced(some, least_peaks(self.request, some)))

    def _forced(self, candidate: Candidate, peaks: NDArray[np.float64] | None) -> float:
        """Return seconds that a candidate takes at least so that it fits, by bounds for its peaks.

        Infinite where no variant has room.
        """
        if peaks is None or float(peaks.max()) <= self.request.limit * (1 + ROUNDING):
            return 0.0
        made = candidate.uses_costs
        if made or self.splits is None or candidate.degrees.pp == 1:
            return math.inf
        return forced_time(self.request, candidate, peaks)

    def _may_be_near(self, candidate: Candidate, peaks: NDArray[np.float64] | None) -> bool:
        """Return whether a candidate that does not fit may be kept as near."""
        near = self.found.near
        if candidate.uses_costs or peaks is None:
            return False
        if len(near) < self.found.top:
            return True
        most, limit = float(peaks.max()), self.request.limit
        if most <= NEAR * limit * (1 + ROUNDING):
            return (0, rounded(pipeline_bound(self.request, candidate))) <= rank(near[-1])[:2]
        return (1, most * (1 - ROUNDING)) <= rank(near[-1])

    def _wait(self, bases: list[Base]) -> None:
        for base in bases:
            if base.plan.fits:
                self._keep(base.plan)
        floor = min(base.floor for base in bases)
        self.waiting.append((floor, len(self.waiting), bases))

    def _keep(self, plan: Evaluated) -> None:
        kept(self.heads, plan, self.found.top)
        self.found.early = self.heads[0]
        own = kin(plan.candidate)
        self.alike[own] = min(plan.step_time, self.alike.get(own, math.inf))


SOON = 16
"""Batches that are looked at for a first plan, each time."""


def _soon(request: PlanRequest, batches: list[Batch], splits: Allowed | None) -> Evaluated | None:
    """Return some plan that fits, out of few of the most promising batches so far."""
    for batch in nsmallest(SOON, batches):
        if batch.setting[0] == FEWEST:
            continue
        for candidate in batch.candidates(usual=True):
            own, _ = base_cut(request, candidate, splits)
            peaks = least_peaks(request, own)
            if peaks is not None and float(peaks.max()) <= request.limit:
                try:
                    base = base_of(request, own, splits)
                except DebubbleError:
                    continue
                if base is not None and base.plan.fits:
                    return base.plan
    return None


def _bounded(
    request: PlanRequest, group: CandidateGroup, number: int, found: Found
) -> Iterator[Batch]:
    """Yield the batches of a group with their bounds, without those that have no room."""
    one_rank = replace(group, degrees=replace(group.degrees, pp=1), mtp_stage=None)
    whole = (1, (len(request.model.layers),))
    for setting in dict.fromkeys(one for each in group.settings.values() for one in each):
        # All layers on one stage, in the same groups otherwise.
        alone = one_rank.candidate("1f1b", whole, setting)
        batch = Batch(least_time(request, alone, group.degrees.pp), number, group, setting)
        if least_memory(request, alone, group.degrees.pp) > request.limit:
            found.leave_out(NO_ROOM, batch.count)
        else:
            number += 1
            yield batch
