"""Layer splits against all splits."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import pytest

from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.plannable import first_cut, placement_of
from debubble.planner.request import PlanRequest, plan_request
from debubble.planner.search.balance import Cut, Loads, balanced, least_load, rank_loads
from debubble.planner.search.bounds import pipeline_bound
from debubble.planner.search.evaluate import Evaluated, timed, with_peaks
from debubble.planner.search.layer_split import SIMULATIONS, refined, split_bound
from tests.conftest import EXPLORES


def cuts(layers: int, stages: int) -> Iterator[Cut]:
    """All cuts of so many layers."""
    for ends in combinations_with_replacement(range(layers + 1), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *ends, layers)))


def small(layers: int, name: str = "llama-3.1-8b", limit: float = 80e9) -> PlanRequest:
    asked = plan_request(name, "h100", 8, 8, 4096)
    model = replace(asked.model, layers=asked.model.layers[:layers])
    return replace(asked, model=model, limit=limit)


def planned(asked: PlanRequest, candidate: Candidate) -> Evaluated:
    plan, timeline = timed(asked, candidate)
    return with_peaks(plan, timeline)


def of(asked: PlanRequest, schedule: str, pp: int, chunks: int, m: int = 8) -> Candidate:
    stages = pp * chunks
    cut = first_cut(len(asked.model.layers), stages, asked.model.mtp)
    degrees = Degrees(tp=8 // pp, pp=pp, chunks=chunks)
    return Candidate(degrees, 8 // m, m, schedule, cut, "selective")


PIPELINES = [("1f1b", 2, 1), ("1f1b", 4, 1), ("interleaved-1f1b", 2, 2), ("zb-v", 2, 2),
             ("zb-h1", 4, 1), ("gpipe", 4, 1)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "pp", "chunks"), PIPELINES)
@pytest.mark.parametrize("layers", [5, pytest.param(12 if EXPLORES else 8, marks=pytest.mark.slow)])
def test_no_split_is_faster(schedule: str, pp: int, chunks: int, layers: int) -> None:
    asked = small(layers)
    start = planned(asked, of(asked, schedule, pp, chunks))
    assert start.fits
    found, simulated = refined(start, lambda _: True)
    every = [
        planned(asked, replace(start.candidate, layers=cut)) for cut in cuts(layers, pp * chunks)
    ]
    best = min(plan.step_time for plan in every if plan.fits)
    assert found.fits
    assert found.step_time <= best * (1 + 1e-9)
    assert simulated <= SIMULATIONS
    # The bound for all splits is one, and that of a split is one for that split.
    bound = split_bound(asked, start.candidate)
    assert bound <= best
    assert all(pipeline_bound(asked, plan.candidate) <= plan.step_time for plan in every)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_layers_move_until_the_fullest_rank_has_room(schedule: str) -> None:
    asked = small(12)
    start = planned(asked, of(asked, schedule, 4, 1))
    every = [planned(asked, replace(start.candidate, layers=cut)) for cut in cuts(12, 4)]
    least = min(max(plan.peaks) for plan in every)
    limit = least + 0.3 * (max(start.peaks) - least)
    tight = replace(asked, limit=limit)
    start = planned(tight, start.candidate)
    assert not start.fits
    found, _ = refined(start, lambda _: True)
    assert found.fits
    best = min(plan.step_time for plan in every if max(plan.peaks) <= limit)
    assert found.step_time <= best * 1.01


def test_what_is_not_allowed_is_not_chosen() -> None:
    asked = small(12)
    start = planned(asked, of(asked, "1f1b", 4, 1))
    free, _ = refined(start, lambda _: True)
    assert free.step_time < start.step_time
    held, _ = refined(start, lambda _: False)
    assert held == start


def test_one_stage_stays() -> None:
    asked = small(6)
    start = planned(asked, of(asked, "1f1b", 1, 1))
    assert refined(start, lambda _: True) == (start, 0)


HOMES = [("1f1b", 3, 1), ("interleaved-1f1b", 2, 2), ("zb-v", 2, 2), ("1f1b", 4, 1)]


@pytest.mark.parametrize(("schedule", "pp", "chunks"), HOMES)
def test_the_busiest_rank_does_least(schedule: str, pp: int, chunks: int) -> None:
    draw = random.Random(1)
    homes = tuple(placement_of(schedule, pp, chunks).ranks_of_stages.tolist())
    for equal in (True, False):
        for count in (3, 7, 11):
            each = [1.0] * count if equal else [draw.choice([1.0, 1.7, 2.5]) for _ in range(count)]
            loads = Loads(tuple(each), draw.choice([0.1, 1.5]), draw.choice([0.7, 3.0]))
            best = min(max(rank_loads(loads, homes, cut)) for cut in cuts(count, pp * chunks))
            found = balanced(loads, homes)
            assert sum(found) == count
            assert least_load(loads, homes) <= best * (1 + 1e-9)
            if equal or chunks == 1:
                assert math.isclose(max(rank_loads(loads, homes, found)), best)
            if equal:
                assert math.isclose(least_load(loads, homes), best)


def test_layers_of_several_kinds() -> None:
    asked = plan_request("deepseek-v3", "h800", 2048, 15360, 4096)
    degrees = Degrees(ep=64, dp=128, pp=16)
    one = Candidate(degrees, 1, 120, "1f1b", first_cut(61, 16, 1), "full")
    start = planned(asked, one)
    found, _ = refined(start, lambda _: True)
    assert sum(found.candidate.layers) == 61
    assert found.step_time < start.step_time or not start.fits
