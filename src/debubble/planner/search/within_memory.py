"""The fastest way to run a candidate within a limit of memory.

A candidate has a base: its even layer split or the balanced one, whichever has the lower bound, in
a schedule that is made without a limit if it is made for costs. From there a chain of variants
leads to less and less memory, each no faster than the one before: first layers move, and made
schedules get smaller, as long as the step stays as short; then, again and again, by a small share
of the memory. The limit only decides which variants fit. So **more memory never makes a step
longer**: a variant that fits into less is in the chain for more, too. Nothing depends on the other
candidates of a search, or on the number of plans that are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError
from debubble.planner.candidate import Candidate
from debubble.planner.memory.peaks import fragmentation
from debubble.planner.request import PlanRequest
from debubble.planner.search.bounds import (
    least_step_of,
    pipeline_bound,
    saves_memory,
    time_in_memory,
)
from debubble.planner.search.evaluate import (
    Evaluated,
    costs_of,
    schedule_of,
    timed,
    with_full_peaks,
    with_peaks,
)
from debubble.planner.search.layer_split import (
    Allowed,
    base_cuts,
    forced_time,
    least_busy,
    refined,
)
from debubble.planner.search.search_result import ROUNDING, rank
from debubble.planner.search.stages import StepTimes, stages_of

STEP = 0.02
"""Share of its memory by which a variant is smaller than the one before, at least."""

AS_FAST = 1e-3
"""Share of a step by which a made schedule may be slower than the fastest if it holds less."""

LARGER, SMALLER = (2.0, 1.5, 1.25), (1.0, 7 / 8, 3 / 4, 5 / 8, 1 / 2, 3 / 8, 1 / 4)
"""Shares of a schedule's memory in which others are made: the fastest, and one as fast in less."""

MOST_WAITS = 0.75
"""Share of the base's waits that other layers and schedules may save."""

MOST_TIME, MOST_TIME_MADE, MOST_BY_ORDER = 0.012, 0.05, 0.16
"""Shares that variants may save: of the base's step, by other layers; and where schedules are made
for costs, of the least step of any order of the base's layers, and of the base's step. By
measurement, of Llama 8B and 70B and Mixtral 8x7B: at most 1.02 % of 350 plans; and with any memory,
more than 5 % for two of 157 (7.1 %), and at most 14.8 %."""


def most_time(candidate: Candidate) -> float:
    """Return the share of the least step of a base that its variants may save."""
    return MOST_TIME_MADE if candidate.uses_costs else MOST_TIME


@dataclass(frozen=True)
class Base:
    """A candidate in its base, simulated."""

    plan: Evaluated
    floor: float
    """Seconds that none of its variants within the limit is below."""
    without_limit: float
    """Seconds that none of its variants with any memory is below."""


def base_cut(
    request: PlanRequest, given: Candidate, splits: Allowed | None, enough: float = math.inf
) -> tuple[Candidate, float]:
    """Return the candidate with its own layer split, or the balanced one if its bound is lower.

    With seconds that no variant is below, whatever the layer split that it moves to. From `enough`
    on it is not asked whether the framework runs the balanced one.
    """
    if splits is None or given.degrees.pp == 1:
        return given, pipeline_bound(request, given)
    bounds = base_cuts(request, given)
    cut, bound, share = (
        min(bounds, key=bounds.__getitem__),
        bounds[given.layers],
        1 - most_time(given),
    )
    if bounds[cut] < bound:
        if share * bounds[cut] > enough:
            return given, share * bounds[cut]
        other = replace(given, layers=cut)
        if splits(other):
            given, bound = other, bounds[cut]
    return given, share * bound


def least_floor(request: PlanRequest, candidate: Candidate, splits: Allowed | None) -> float:
    """Return seconds that the floor of a candidate's base is not below, without simulating it.

    By the bound of its pipeline, and by the step's ends, which do not depend on the order.
    """
    stages = stages_of(request, candidate)
    after = float(stages.gradients.min()) + stages.after
    floor = least_step_of(request, candidate)
    free = splits is not None and candidate.degrees.pp > 1
    if free or candidate.uses_costs:
        floor *= 1 - most_time(candidate)
    if free:
        floor = max(floor, least_busy(request, candidate) + after)
    return floor * (1 - ROUNDING)


def least_made(request: PlanRequest, candidate: Candidate, limit: float) -> float:
    """Return seconds that no variant within `limit` is below, of a schedule made for costs."""
    return (1 - MOST_TIME_MADE) * time_in_memory(request, candidate, limit)


def base_of(
    request: PlanRequest, candidate: Candidate, splits: Allowed | None, enough: float = math.inf
) -> Base | None:
    """Return a candidate with its base cut, simulated, without its peaks.

    None if all of its variants take more than `enough`.
    """
    plan, pipeline = _simulated(request, candidate)
    floor = plan.step_time
    free = splits is not None and candidate.degrees.pp > 1
    if candidate.uses_costs:
        # In more memory another order of the same layers may be much faster.
        least = (1 - MOST_TIME_MADE) * least_step_of(request, candidate)
        floor = max((1 - MOST_BY_ORDER) * floor, least)
    elif free:
        uneven = max(pipeline.busy - least_busy(request, candidate), 0.0)
        saved = uneven + MOST_WAITS * (pipeline.makespan - pipeline.busy)
        floor = max(floor - saved, (1 - MOST_TIME) * floor)
    return Base(plan, floor, floor) if floor <= enough else None


def _simulated(request: PlanRequest, candidate: Candidate) -> tuple[Evaluated, StepTimes]:
    """Return a candidate with its step time, and its pipeline."""
    if not candidate.uses_costs:
        schedule = schedule_of(candidate, Costs())
        pipeline = stages_of(request, candidate).simulate(schedule)
        if pipeline is not None:
            return Evaluated(request, candidate, pipeline.seconds, ()), pipeline
    plan, timeline = timed(request, candidate)
    busy = float(timeline.busy.max())
    return plan, StepTimes(plan.step_time, timeline.makespan, busy)


def within_limit_of(
    request: PlanRequest, base: Base, splits: Allowed | None, enough: float = math.inf
) -> Base:
    """Return a base with its peaks, and a floor for what fits."""
    candidate, within = base.plan.candidate, base.floor
    plan = with_peaks(base.plan)
    if candidate.uses_costs:
        within = max(within, least_made(request, candidate, request.limit))
    free = splits is not None and candidate.degrees.pp > 1
    if free and not plan.fits and not candidate.uses_costs:
        within = max(within, forced_time(request, candidate, np.array(plan.peaks)))
        if within <= enough:  # not by what activations take alone, but maybe by all that is there
            plan = with_full_peaks(plan)
            within = max(within, forced_time(request, candidate, np.array(plan.peaks)))
    return Base(plan, within, base.without_limit)


@dataclass
class BaseVariants:
    """The variants of a base, looked at one by one as long as they may be among the best."""

    request: PlanRequest
    base: Base
    splits: Allowed | None
    floor: float = 0.0
    """Seconds that no variant that was not looked at is below; infinite where none is left."""
    started: bool = False
    """True if some variant was looked at."""

    def __post_init__(self) -> None:
        self.floor = self.base.floor
        self.plan = self.base.plan
        """The best variant so far that fits, or the base, with its peaks, where none does."""
        start = replace(self.plan, request=replace(self.request, limit=math.inf))
        free = self.splits is not None or start.candidate.uses_costs
        if start.candidate.degrees.pp > 1 and free:
            self._left = _chain(start, self.base.without_limit, self.splits)
        else:
            self._left = iter(())

    def look(self) -> None:
        """Look at the next variant."""
        self.started = True
        floor, plan = next(self._left, (math.inf, None))
        self.floor = max(self.floor, floor)
        if plan is None or max(plan.peaks) > self.request.limit or floor < self.base.floor:
            return
        self.floor = math.inf
        fitting = [one for one in (self.plan, replace(plan, request=self.request)) if one.fits]
        self.plan = min(fitting, key=rank)


def best_variant(request: PlanRequest, plan: Evaluated, splits: Allowed | None) -> Evaluated:
    """Return the fastest variant of a plan within the limit."""
    variants = BaseVariants(request, Base(plan, 0.0, 0.0), splits)
    while math.isfinite(variants.floor):
        variants.look()
    return variants.plan


Floors: TypeAlias = Iterator[tuple[float, Evaluated | None]]
"""Seconds that no later variant is below, each with a variant that takes as long, if there is."""


def _chain(plan: Evaluated, floor: float, splits: Allowed | None) -> Floors:
    """Yield variants with their peaks, each no faster than the one before and in less memory."""
    if not plan.candidate.uses_costs:
        if splits is not None:
            plan, _ = refined(plan, splits, floor)
        yield from _timed(_with_other_layers(with_peaks(plan), splits))
        return
    room = plan.simulate().peak_activation.max()
    own = saves_memory(plan.candidate.schedule)
    shares = SMALLER if own else (*LARGER, *SMALLER)
    if splits is not None:
        for_moves = np.full(plan.candidate.degrees.pp, shares[0 if own else 1] * room)
        plan, _ = refined(plan, splits, floor, for_moves.tolist())
        yield least_step_of(plan.request, plan.candidate), None
    plan = with_peaks(plan)
    yield from _timed(_with_other_orders(plan, [share * room for share in shares]))


def _timed(plans: Iterator[Evaluated]) -> Floors:
    return ((plan.step_time, plan) for plan in plans)


def _with_other_layers(plan: Evaluated, splits: Allowed | None) -> Iterator[Evaluated]:
    yield plan
    while splits is not None:
        less = replace(plan.request, limit=(1 - STEP) * max(plan.peaks))
        plan, _ = refined(replace(plan, request=less), splits, plan.step_time)
        if not plan.fits:
            return
        yield plan


def _with_other_orders(plan: Evaluated, rooms: Sequence[float]) -> Iterator[Evaluated]:
    """Yield variants in schedules that hold less: first the smallest as fast, then slower ones.

    `rooms` are bytes of activations that every rank may hold, some larger and some smaller.
    """
    found, longest = [plan], plan.step_time * (1 + AS_FAST)
    for room in rooms:
        other = _made(plan, np.full(plan.candidate.degrees.pp, room))
        if other is None:
            break
        found.append(other)
        longest = min(longest, other.step_time * (1 + AS_FAST))
        if other.step_time > longest and len(found) > len(LARGER) + 1:
            break
    first = min((one for one in found if one.step_time <= longest), key=lambda one: max(one.peaks))
    yield first
    last, top = first, float(first.simulate().peak_activation.max())
    limit = max(first.peaks)
    while True:
        limit = (1 - STEP) * min(limit, max(last.peaks))
        smaller = _smaller(first, limit, top)
        if smaller is None:
            return
        if smaller.step_time >= last.step_time:
            last = smaller
            yield last


def _smaller(plan: Evaluated, limit: float, top: float) -> Evaluated | None:
    """Return a plan in a schedule made for a limit, with at most `top` bytes on any rank."""
    share = 1 + fragmentation(plan.request.training)
    held = plan.simulate().peak_activation
    room = np.minimum((limit - np.array(plan.peaks)) / share + held, top)

    def make(less: NDArray[np.float64]) -> Evaluated | None:
        return _made(plan, room - less / share)

    return within_limit(make, limit)


def _made(plan: Evaluated, room: NDArray[np.float64]) -> Evaluated | None:
    """Return a plan with its schedule made for some bytes of activations."""
    request, candidate = plan.request, plan.candidate
    try:
        order = schedule_of(candidate, costs_of(plan.case), room.tolist())
        return with_peaks(*timed(request, candidate, order))
    except DebubbleError:
        return None


TRIES = 4
"""Most repeats of making a schedule with less room, if buffers or logits grow."""


def within_limit(
    make: Callable[[NDArray[np.float64]], Evaluated | None], limit: float
) -> Evaluated | None:
    """Return the plan that `make` makes with so much less room that all memory is in the limit.

    A schedule decides over more than activations: buffers and logits may be larger in it, or be
    there at another time. So the whole memory is judged, and its excess is taken from the
    room of every rank; `make` is given these bytes, of every rank or one number. The last of a few
    tries is returned even if it is too large, and None if there is no schedule at all.
    """
    less: NDArray[np.float64] = np.zeros(1)
    plan = None
    for _ in range(TRIES):
        made = make(less)
        if made is None:
            break
        plan = made
        if max(plan.peaks) <= limit:
            break
        less = less + np.maximum(np.array(plan.peaks) - limit, 0.0) * (1 + ROUNDING)
    return plan
