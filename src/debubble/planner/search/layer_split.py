"""The layers of every stage: cuts that balance ranks, then moves of one layer in the engine."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import DebubbleError
from debubble.engine.timeline import Timeline
from debubble.planner.candidate import Candidate, recomputed_layers
from debubble.planner.case import Case
from debubble.planner.cost.stage_costs import layer_sums
from debubble.planner.frameworks.table import broken
from debubble.planner.memory.peaks import margin
from debubble.planner.request import PlanRequest
from debubble.planner.search.bounds import (
    bounds_of_cuts,
    homes_of,
    least_step_of,
    pipeline_bound,
    pipeline_bounds,
    splits_backwards,
)
from debubble.planner.search.evaluate import Evaluated, costs_of, schedule_of, timed, with_peaks
from debubble.planner.search.longest_path import (
    SURE,
    Cut,
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


class Loads(NamedTuple):
    """Seconds of all that one microbatch makes a GPU do, by where it is done."""

    layers: tuple[float, ...]
    first: float
    """Seconds of the embedding."""
    last: float
    """Seconds of the head and multi-token prediction."""


def loads_of(request: PlanRequest, candidate: Candidate) -> Loads:
    """Return the loads of a candidate, which are the same for every cut.

    Without the layers that ``"full:N"`` recomputes, which are others in every cut.
    """
    some = recomputed_layers(candidate.recompute) is not None
    apart = candidate.mtp_stage is not None
    return _loads(request.case(candidate.without_order("none" if some else None)), apart)


@lru_cache(maxsize=1 << 14)
def _loads(case: Case, apart: bool) -> Loads:
    """Return the loads; without multi-token prediction where that is `apart` from the loss."""
    sums = layer_sums(case)
    each = np.diff(sums.layers.sum(axis=0))
    # Layers of a kind take the same, to the last digit.
    kinds = dict(zip(case.model.layers, each.tolist(), strict=True))
    layers = tuple(kinds[layer] for layer in case.model.layers)
    last = sums.head if apart else sums.head + sums.mtp
    return Loads(layers, float(sum(sums.embedding.tolist())), float(sum(last.tolist())))


def rank_loads(loads: Loads, homes: tuple[int, ...], cut: Cut) -> list[float]:
    """Return the load of every rank for one microbatch; `homes` are the ranks of the stages."""
    sums = np.cumsum((0.0, *loads.layers))
    found = np.bincount(homes, np.diff(sums[np.cumsum((0, *cut))]))
    found[homes[0]] += loads.first
    found[homes[-1]] += loads.last
    return [float(load) for load in found]


HALVINGS = 6
"""Halvings of a range of loads, of which only those in the last one are sorted."""


@lru_cache(maxsize=1 << 14)
def balanced(loads: Loads, homes: tuple[int, ...]) -> Cut:
    """Return the cut whose busiest rank does least.

    Exact for equal layers, and for any where every rank has one stage; layers of several kinds over
    several stages per rank count as the average.
    """
    stages = len(homes)
    if stages > len(set(homes)) or len(set(loads.layers)) == 1:
        return _shared_out(loads, homes)
    sums = list(accumulate(loads.layers, initial=0.0))
    ends = [loads.first, *[0.0] * (stages - 2), loads.last] if stages > 1 else [0.0]
    total = len(loads.layers)

    def filled(most: float) -> Cut:
        """Return stages with as many layers as `most` allows; maybe too few in all."""
        cut, begin = [], 0
        for end in ends:
            stop = max(bisect_right(sums, most - end + sums[begin]) - 2, begin)
            while stop > begin and sums[stop] - sums[begin] + end > most:
                stop -= 1
            while stop < total and sums[stop + 1] - sums[begin] + end <= most:
                stop += 1
            cut.append(stop - begin)
            begin = stop
        return tuple(cut)

    # The busiest rank does what some run of layers takes, alone or with embedding or head.
    low, high = max(loads.first, loads.last), sums[-1] + loads.first + loads.last
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(filled(middle)) == total else (middle, high)
    works = np.subtract.outer(sums, sums)
    choices = np.concatenate([works[works >= 0] + end for end in set(ends)])
    near = (choices >= low * (1 - 1e-9)) & (choices <= high * (1 + 1e-9))
    choices = np.unique(choices[near & (choices >= max(loads.first, loads.last))]).tolist()
    at = bisect_left(choices, total, key=lambda most: sum(filled(most * (1 + 1e-12))))
    return filled(choices[at] * (1 + 1e-12))


PARTS = 256
"""Parts of a layer that embedding and head are rounded to where layers are shared out."""


def _shared_out(loads: Loads, homes: tuple[int, ...]) -> Cut:
    """Return a cut from giving equal layers, one by one, to the rank with the least load.

    Of ranks alike the later one, which holds fewer microbatches.
    """
    each = sum(loads.layers) / len(loads.layers)
    first, last = (round(PARTS * end / each) if each else 0 for end in (loads.first, loads.last))
    return _shared_parts(len(loads.layers), first, last, homes)


@lru_cache(maxsize=1 << 14)
def _shared_parts(layers: int, first: int, last: int, homes: tuple[int, ...]) -> Cut:
    """Share layers of :data:`PARTS` each out, next to embedding and head of so many parts."""
    ends = [0] * len(homes)
    ends[0] += first
    ends[-1] += last
    cut = [0] * len(homes)
    by_rank: dict[int, list[tuple[int, int]]] = {}
    for stage, rank in enumerate(homes):
        by_rank.setdefault(rank, []).append((ends[stage], -stage))
    ranks = [(sum(end for end, _ in stages), -rank) for rank, stages in by_rank.items()]
    heapq.heapify(ranks)
    for stages in by_rank.values():
        heapq.heapify(stages)
    for _ in range(layers):
        work, rank = ranks[0]
        heapq.heapreplace(ranks, (work + PARTS, rank))
        stages = by_rank[-rank]
        done, stage = stages[0]
        heapq.heapreplace(stages, (done + PARTS, stage))
        cut[-stage] += 1
    return tuple(cut)


def least_load(loads: Loads, homes: tuple[int, ...]) -> float:
    """Return seconds per microbatch below which no cut brings the busiest rank.

    The average; and the busiest rank where every layer takes as long as the shortest.
    """
    return _least_load(loads, max(homes) + 1, homes[0] == homes[-1])


@lru_cache(maxsize=1 << 14)
def _least_load(loads: Loads, ranks: int, one: bool) -> float:
    """Return the least load of the busiest of some ranks, where both ends are on one or on two."""
    each, count = min(loads.layers), len(loads.layers)
    mean = (sum(loads.layers) + loads.first + loads.last) / ranks
    ends = [loads.first + loads.last] if one else [loads.first, loads.last]
    most = max(ends)
    if each <= 0:
        return max(mean, most)
    least = max(most, (count * each + sum(ends)) / ranks)

    def room(load: float) -> int:
        """Return the number of layers that ranks have room for below a load."""
        share = load / each * (1 + 1e-12)
        return (ranks - len(ends)) * int(share) + sum(int(share - end / each) for end in ends)

    # The busiest rank has a whole number of layers, and maybe an end.
    steps = {end: max(math.ceil((least - end) / each - 1e-9), 0) for end in (0.0, *ends)}
    while room(least) < count:
        least = min(max(end + number * each, least) for end, number in steps.items())
        steps = {end: n + (end + n * each <= least) for end, n in steps.items()}
    return max(mean, least)


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


def split_bound(request: PlanRequest, candidate: Candidate) -> float:
    """Return seconds below which no order and no layer split brings a candidate's pipeline."""
    least = least_load(loads_of(request, candidate), homes_of(candidate))
    return least * candidate.microbatches


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
