"""The fastest way to run a candidate within a limit of memory.

A candidate has a base: its even layer split or the balanced one, whichever has the lower bound, in
an order that is made without a limit where its schedule makes one. From there a chain of variants
leads to less and less memory, each no faster than the one before: first layers move, and made
orders get smaller, as long as the step stays as short; then, again and again, by a small share of
the memory. The limit says only which variants fit. So **more memory never makes a step longer**:
what fits into less is in the chain for more, too. Nor does anything depend on what else is
searched, or on how many plans are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import DebubbleError
from debubble.engine.timeline import Timeline
from debubble.planner.candidate import Candidate
from debubble.planner.memory.peaks import FRAGMENTATION
from debubble.planner.search.bounds import pipeline_bound, saves_memory
from debubble.planner.search.evaluate import (
    Asked,
    Plan,
    costs_of,
    schedule_of,
    simulated,
    timed,
    with_peaks,
)
from debubble.planner.search.found import ROUNDING, rank
from debubble.planner.search.layer_split import (
    Allowed,
    forced_time,
    refined,
    split_bound,
    with_balanced,
)
from debubble.schedules import registry

STEP = 0.02
"""Share of its memory by which a variant is smaller than the one before, at least."""

AS_FAST = 1e-3
"""Share of a step by which a made order may be slower than the fastest if it holds less."""

LARGER, SMALLER = (2.0, 1.5, 1.25), (1.0, 7 / 8, 3 / 4, 5 / 8, 1 / 2, 3 / 8, 1 / 4)
"""Shares of what an order holds in which others are made: the fastest, and one as fast in less."""

MOST_WAITS, MOST_TIME = 0.75, 0.05
"""Shares of the base's waits and of its step that other layers and orders may save. That is more
than they do where it matters, and says of most candidates that they cannot be the best."""


@dataclass(frozen=True)
class Base:
    """A candidate in its base, simulated."""

    plan: Plan
    floor: float
    """Seconds that none of its variants within the limit is below."""
    without_limit: float
    """The same with any memory."""


def base_cut(asked: Asked, given: Candidate, splits: Allowed | None) -> tuple[Candidate, float]:
    """The candidate with its own layer split, or with the balanced one where its bound is lower.

    With seconds that no variant is below, whatever the layer split that it moves to.
    """
    bound = pipeline_bound(asked, given)
    if splits is None or given.degrees.pp == 1:
        return given, bound
    other = with_balanced(asked, given)
    if other.layers != given.layers:
        less = pipeline_bound(asked, other)
        if less < bound and splits(other):
            given, bound = other, less
    return given, (1 - MOST_TIME) * bound


def base_of(
    asked: Asked, candidate: Candidate, splits: Allowed | None, enough: float = math.inf
) -> Base | None:
    """A candidate with its base cut, simulated; None where no variant takes `enough` seconds."""
    plan, timeline = timed(asked, candidate)
    floor = plan.step_time
    free = splits is not None and candidate.degrees.pp > 1
    if free or registry.find(candidate.schedule).uses_costs:
        busy = float(timeline.busy.max())
        uneven = max(busy - split_bound(asked, candidate), 0.0) if free else 0.0
        saved = uneven + MOST_WAITS * (timeline.makespan - busy)
        floor = max(floor - saved, (1 - MOST_TIME) * floor)
    if floor > enough:
        return None
    plan, within = with_peaks(asked, plan, timeline), floor
    if free and not plan.fits and not registry.find(candidate.schedule).uses_costs:
        within = max(floor, forced_time(asked, candidate, np.array(plan.peaks)))
        if within <= enough:  # not by what activations take alone, but maybe by all that is there
            whole = with_peaks(replace(asked, limit=math.inf), plan, timeline)
            plan = replace(whole, limit=asked.limit)
            within = max(within, forced_time(asked, candidate, np.array(plan.peaks)))
    return Base(plan, within, floor)


def fastest_within(
    asked: Asked, base: Base, splits: Allowed | None, enough: float = math.inf
) -> Plan:
    """The fastest variant that fits, or the base, with its peaks, where none does.

    Variants that take longer than `enough` seconds are not looked for.
    """
    start = base.plan
    made = registry.find(start.candidate.schedule).uses_costs
    if start.candidate.degrees.pp == 1 or (splits is None and not made):
        return start
    found = [start]
    for plan in _chain(replace(asked, limit=math.inf), base, splits):
        if plan.step_time > enough:
            break
        if max(plan.peaks) <= asked.limit and plan.step_time >= base.floor:
            found.append(replace(plan, limit=asked.limit))
            break
    return min((plan for plan in found if plan.fits), key=rank, default=start)


def _chain(wide: Asked, base: Base, splits: Allowed | None) -> Iterator[Plan]:
    """Variants with their peaks, each no faster than the one before and in less memory."""
    plan = base.plan
    if not registry.find(plan.candidate.schedule).uses_costs:
        if splits is not None:
            plan, _ = refined(wide, plan, splits, base.without_limit)
        yield from _with_other_layers(wide, _judged(wide, plan), splits)
        return
    room = simulated(wide, plan.candidate, plan.order).peak_activation.max()
    own = saves_memory(plan.candidate.schedule)
    shares = SMALLER if own else (*LARGER, *SMALLER)
    if splits is not None:
        for_moves = np.full(plan.candidate.degrees.pp, shares[0 if own else 1] * room)
        plan, _ = refined(wide, plan, splits, base.without_limit, for_moves.tolist())
    yield from _with_other_orders(wide, _judged(wide, plan), [share * room for share in shares])


def _with_other_layers(wide: Asked, plan: Plan, splits: Allowed | None) -> Iterator[Plan]:
    yield plan
    while splits is not None:
        less = replace(wide, limit=(1 - STEP) * max(plan.peaks))
        plan, _ = refined(less, replace(plan, limit=less.limit), splits, plan.step_time)
        if not plan.fits:
            return
        yield plan


def _with_other_orders(wide: Asked, plan: Plan, rooms: Sequence[float]) -> Iterator[Plan]:
    """Variants in orders that hold less: first the smallest that is as fast, then slower ones.

    `rooms` are bytes of activations that every rank may hold, some larger and some smaller.
    """
    found, longest = [plan], plan.step_time * (1 + AS_FAST)
    for room in rooms:
        other = _made(wide, plan.candidate, np.full(plan.candidate.degrees.pp, room))
        if other is None:
            break
        found.append(other)
        longest = min(longest, other.step_time * (1 + AS_FAST))
        if other.step_time > longest and len(found) > len(LARGER) + 1:
            break
    first = min((one for one in found if one.step_time <= longest), key=lambda one: max(one.peaks))
    yield first
    last, top = first, float(simulated(wide, plan.candidate, first.order).peak_activation.max())
    limit = max(first.peaks)
    while True:
        limit = (1 - STEP) * min(limit, max(last.peaks))
        smaller = _smaller(wide, first, limit, top)
        if smaller is None:
            return
        if smaller.step_time >= last.step_time:
            last = smaller
            yield last


def _smaller(wide: Asked, plan: Plan, limit: float, top: float) -> Plan | None:
    """A plan in an order that its schedule makes for a limit, with at most `top` on any rank."""
    share = 1 + FRAGMENTATION
    held = simulated(wide, plan.candidate, plan.order).peak_activation
    room = np.minimum((limit - np.array(plan.peaks)) / share + held, top)

    def make(less: NDArray[np.float64]) -> Plan | None:
        return _made(wide, plan.candidate, room - less / share)

    return within_limit(make, limit)


def _made(wide: Asked, candidate: Candidate, room: NDArray[np.float64]) -> Plan | None:
    """A candidate in the order that its schedule makes for some bytes of activations."""
    try:
        order = schedule_of(candidate, costs_of(wide, candidate), room.tolist())
        plan, timeline = timed(wide, candidate, order)
    except DebubbleError:
        return None
    return _judged(wide, plan, timeline)


def _judged(wide: Asked, plan: Plan, timeline: Timeline | None = None) -> Plan:
    """A plan with its peaks."""
    return with_peaks(wide, plan, timeline or simulated(wide, plan.candidate, plan.order))


TRIES = 4
"""How often an order is made with less room, where buffers or logits are larger than before."""


def within_limit(make: Callable[[NDArray[np.float64]], Plan | None], limit: float) -> Plan | None:
    """What `make` makes when it is given so much less room that the whole memory is in the limit.

    An order decides over more than activations: buffers and logits may be larger in it, or be there
    at another time. So what is judged is the whole, and what it is too large by is taken from the
    room of every rank; `make` is given these bytes, of every rank or one number. The last of a few
    tries is returned even if it is too large, and None where there is no order at all.
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
