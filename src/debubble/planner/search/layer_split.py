"""The layers of every stage: cuts that balance ranks, then moves of one layer in the engine."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import DebubbleError
from debubble.engine.timeline import Timeline
from debubble.planner.candidate import Candidate, recomputed_layers
from debubble.planner.frameworks.table import broken
from debubble.planner.memory.peaks import margin
from debubble.planner.plannable import fills_slowly, splits_backwards
from debubble.planner.request import PlanRequest
from debubble.planner.search.balance import Cut, balanced, least_load, loads_of, rank_loads
from debubble.planner.search.bounds import (
    bounds_of_cuts,
    homes_of,
    least_step_of,
    least_turns,
    pipeline_bound,
    pipeline_bounds,
)
from debubble.planner.search.evaluate import Evaluated, costs_of, schedule_of, timed, with_peaks
from debubble.planner.search.longest_path import (
    SURE,
    LongestPath,
    are_slow,
    least_step,
    no_gain,
)
from debubble.planner.search.stages import Stages, first_alike

SIMULATIONS = 200
"""Most simulations for one plan."""

MADE = 60
"""Most simulations for one plan if every cut needs its own schedule, which takes as long as many
simulations."""

ACTIONS = 2_000_000
"""Most simulated actions for one plan, about: large pipelines are simulated less often."""

PATIENCE, PATIENCE_MADE = 12, 5
"""Most simulations in a row that make nothing better; and where cuts need their own schedules, of
which 408 of 442 that were better came within three, with 94 % of what was gained."""

PATHS = 4
"""Longest paths of earlier cuts that bound the step of another one."""

MOVES = 96
"""Moves of one layer that are looked at from one cut, the most promising first."""


def forced_time(request: PlanRequest, candidate: Candidate, peaks: NDArray[np.float64]) -> float:
    """Return seconds below which nothing that fits is looked for; 0 where every rank has room.

    Every rank that is too full gives layers to those with room, first to the least busy. Infinite
    where these have no room for as many. A layer counts as the average of its rank.
    """
    homes = homes_of(candidate)
    counts = np.bincount(homes, candidate.layers)
    each = np.maximum((peaks - margin(request.training)) / np.maximum(counts, 1), 1.0)
    gone = np.ceil((peaks - request.limit) / each)
    missing = int(gone[gone > 0].sum())
    loads = loads_of(request, candidate)
    ranks = list(zip(rank_loads(loads, homes, candidate.layers), (-gone).tolist(), strict=True))
    heap = [(load, room) for load, room in ranks if room >= 0]
    if missing > sum(room for _, room in heap):
        return math.inf
    layer, most = sum(loads.layers) / len(loads.layers), 0.0
    heapq.heapify(heap)
    while missing:
        load, room = heapq.heappop(heap)
        if room:
            heapq.heappush(heap, (load + layer, room - 1))
            most, missing = max(most, load + layer), missing - 1
    return most * candidate.microbatches


def least_busy(request: PlanRequest, candidate: Candidate) -> float:
    """Return seconds below which no layer split brings a candidate's busiest rank."""
    least = least_load(loads_of(request, candidate), homes_of(candidate))
    return least * candidate.microbatches


def split_bound(request: PlanRequest, candidate: Candidate) -> float:
    """Return seconds below which no order and no layer split brings a candidate's pipeline."""
    least = least_busy(request, candidate)
    if fills_slowly(candidate.schedule, candidate.degrees.chunks):
        loads = loads_of(request, candidate)
        work = sum(loads.layers) + loads.first + loads.last
        least = max(least, work * least_turns(candidate.degrees.pp, candidate.microbatches))
    return least


def base_cuts(request: PlanRequest, candidate: Candidate) -> dict[Cut, float]:
    """Return the bounds of a candidate's pipeline with its own cut, and with the balanced one."""
    degrees = candidate.degrees
    return _base_cuts(
        request, candidate.without_order(), degrees.pp, degrees.chunks, candidate.microbatches,
        first_alike(candidate.schedule, degrees.pp, degrees.chunks), candidate.layers,
        candidate.mtp_stage, splits_backwards(candidate.schedule),
    )  # fmt: skip


@lru_cache(maxsize=1 << 14)
def _base_cuts(
    request: PlanRequest, seen: Candidate, pp: int, chunks: int, microbatches: int, placed: str,
    layers: Cut, mtp_stage: int | None, split: bool,
) -> dict[Cut, float]:  # fmt: skip
    """Return what :func:`base_cuts` does for all schedules that are `placed` like one of them."""
    candidate = Candidate(
        replace(seen.degrees, pp=pp, chunks=chunks), seen.microbatch_size, microbatches, placed,
        layers, seen.recompute, seen.zero, seen.modules, mtp_stage,
    )  # fmt: skip
    cuts = list(
        dict.fromkeys((layers, balanced(loads_of(request, candidate), homes_of(candidate))))
    )
    bounds = bounds_of_cuts(Stages(request.case(candidate)), cuts, microbatches, split=split)
    return dict(zip(cuts, bounds.tolist(), strict=True))


Allowed: TypeAlias = Callable[[Candidate], bool]
"""Predicate that is true if the framework, if any, runs a candidate."""


def runnable(request: PlanRequest) -> Allowed:
    """Return whether the request's framework runs a candidate; without one, whether any can."""
    return lambda candidate: not broken(request.case(candidate), request.fixed.framework)


def refined(
    plan: Evaluated, allowed: Allowed, floor: float = 0.0, room: Sequence[float] | None = None
) -> tuple[Evaluated, int]:
    """Return a plan with its layers split better, and the number of cuts that were looked at.

    From the better of its own cut and the balanced one, a layer moves from one stage to another
    (those between them shift) as long as that makes it fit, or keeps it within the memory and makes
    it faster, but not below `floor` seconds. Cuts that cannot be faster by
    :func:`~debubble.planner.search.bounds.pipeline_bound` are not simulated. Without a limit of
    memory peaks are not computed. `room` is for orders that are made, see
    :func:`~debubble.planner.search.evaluate.schedule_of`.
    """
    homes, loads = homes_of(plan.candidate), loads_of(plan.request, plan.candidate)
    if len(homes) == 1:
        return plan, 0
    best, simulated, in_a_row, tried = plan, 0, 0, {plan.candidate.layers}
    paths: list[LongestPath] = []
    others: deque[LongestPath] = deque(maxlen=PATHS)
    limited = math.isfinite(plan.request.limit)
    made, alike = plan.candidate.uses_costs, len(set(plan.request.model.layers)) == 1
    alike &= recomputed_layers(plan.candidate.recompute) is None
    patience = PATIENCE_MADE if made else PATIENCE
    actions = 3 * len(homes) * plan.candidate.microbatches
    most = max(min(MADE if made else SIMULATIONS, ACTIONS // actions), 10)

    def note(timeline: Timeline) -> None:
        path = None if made else LongestPath(best, timeline)
        if path is not None and path.counts is not None:
            paths.append(path)

    def is_better(cut: Cut, bound: float | None = None, *, in_vain: bool = False) -> bool:
        """Try a cut, keep it if it is better than the best, and return whether it is.

        `bound` is that of its pipeline, where it is known.
        """
        nonlocal best, simulated, in_a_row
        if cut in tried or simulated >= most or in_a_row >= patience:
            return False
        tried.add(cut)
        candidate, fits = replace(best.candidate, layers=cut), not limited or best.fits
        if fits and (bound or pipeline_bound(plan.request, candidate)) >= best.step_time:
            return False
        slow = fits and (
            in_vain
            or least_step(plan.request, candidate, (*paths[-1:], *others), best.step_time)
            >= best.step_time
        )
        if not slow and not allowed(candidate):
            return False
        simulated += 1
        if slow:
            return False
        in_a_row += 1
        if made and fits and least_step_of(plan.request, candidate) > best.step_time * SURE:
            return False
        try:
            order = None
            if room is not None:
                order = schedule_of(candidate, costs_of(plan.request.case(candidate)), room)
            found, timeline = timed(plan.request, candidate, order, memory=limited)
            if paths:
                others.append(LongestPath(found, timeline, paths[-1].gradients))
            if found.step_time < floor or (fits and found.step_time >= best.step_time):
                return False
            if limited:
                found = with_peaks(found, timeline)
        except DebubbleError:
            return False
        if limited and _value(found) >= _value(best):
            return False
        best, in_a_row = found, 0
        note(timeline)
        return True

    def moves() -> Iterator[tuple[Cut, bool, float | None]]:
        """Yield cuts with one layer elsewhere, first taken from the fullest or busiest.

        And whether that is known to be no faster, and the bound of the pipeline.
        """
        cut = best.candidate.layers
        fits = not limited or best.fits
        load = rank_loads(loads, homes, cut) if fits else best.peaks
        stages = range(len(cut))

        def promise(move: tuple[int, int]) -> tuple[float, int]:
            one, other = move
            return load[homes[one]] - load[homes[other]], cut[one] - cut[other]

        vain = np.zeros((len(cut), len(cut)), dtype=bool)
        if fits and alike and paths:
            vain = no_gain(paths[-1], best, homes)
        pairs = ((one, other) for one in stages if cut[one] for other in stages if one != other)
        best_moves = heapq.nlargest(MOVES, pairs, promise)
        cuts = [moved(cut, one, other) for one, other in best_moves]
        slow = np.array([vain[move] for move in best_moves], dtype=bool)
        if fits:
            known = (*paths[-1:], *others)
            slow |= are_slow(plan.request, best.candidate, cuts, known, best.step_time)
        bounds: list[float | None] = [None] * len(cuts)
        if fits and cuts:
            bounds = pipeline_bounds(plan.request, best.candidate, cuts).tolist()
        yield from zip(cuts, slow.tolist(), bounds, strict=True)

    if not limited or best.fits:
        note(plan.simulate())
    is_better(balanced(loads, homes))
    while any(is_better(cut, bound, in_vain=vain) for cut, vain, bound in moves()):
        pass
    return best, simulated


def moved(cut: Cut, one: int, other: int) -> Cut:
    """Return a cut with a layer of one stage on another."""
    found = list(cut)
    found[one] -= 1
    found[other] += 1
    return tuple(found)


def _value(plan: Evaluated) -> tuple[float, float]:
    """Return the missing memory, then the step time; less is better."""
    return max(max(plan.peaks) - plan.request.limit, 0.0), plan.step_time
