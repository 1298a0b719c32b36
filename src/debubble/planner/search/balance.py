"""The work of ranks for one microbatch, and the layer split that balances it."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np

from debubble.planner.candidate import Candidate, recomputed_layers
from debubble.planner.case import Case
from debubble.planner.cost.stage_costs import layer_sums
from debubble.planner.request import PlanRequest

Cut: TypeAlias = tuple[int, ...]
"""Layers of every stage."""


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
