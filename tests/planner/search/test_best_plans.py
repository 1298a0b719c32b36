"""The search against an exhaustive one, and its bounds against simulations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import debubble.planner.search.screen as search_module
import debubble.planner.search.within_memory as within_memory
from debubble.core.errors import DebubbleError
from debubble.planner.answer.report import text
from debubble.planner.answer.searches import ask, search_all
from debubble.planner.answer.why import why_data, why_not, why_text
from debubble.planner.candidate import Candidate
from debubble.planner.frameworks.table import broken
from debubble.planner.request import Fixed, PlanRequest, plan_request
from debubble.planner.search.best_plans import Found, search
from debubble.planner.search.bounds import least_peaks, pipeline_bound
from debubble.planner.search.evaluate import timed
from debubble.planner.search.groups import CandidateGroup, groups
from debubble.planner.search.layer_split import runnable
from debubble.planner.search.within_memory import Base
from tests.conftest import EXPLORES
from tests.planner.cases import evaluate

SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1")


def few(asked: PlanRequest, **held: object) -> list[CandidateGroup]:
    given = {"schedules": SCHEDULES, "zero": 1, "cp": 1} | held
    found = groups(replace(asked, fixed=Fixed(**given)))  # type: ignore[arg-type]
    return [group for group in found if group.microbatches <= 16]


def every(asked: PlanRequest, found: list[CandidateGroup]) -> Iterator[tuple[float, Candidate]]:
    for group in found:
        for candidate in group.candidates():
            try:
                plan = evaluate(asked, candidate)
            except DebubbleError:
                continue
            if plan.fits:
                yield plan.step_time, candidate


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "batch", "limit"),
    [
        ("llama-3.1-8b", "h100", 8, 16, 80e9),
        pytest.param("llama-3.1-8b", "a100-40gb", 16, 32, 40e9, marks=pytest.mark.slow),
    ],
)
def test_nothing_that_is_left_out_is_faster(
    model: str, gpu: str, gpus: int, batch: int, limit: float
) -> None:
    asked = replace(plan_request(model, gpu, gpus, batch, 4096), limit=limit)
    held = few(asked, chunks=None)
    held = [group for group in held if group.degrees.pp <= 4 and group.count < 60]
    found = search(asked, held, top=3)
    best = min(time for time, _ in every(asked, held))
    assert found.plans[0].step_time <= best * (1 + 1e-9)
    assert found.considered == sum(group.count for group in held)
    assert found.considered > found.simulated > 0
    assert sum(found.left_out.values()) + len(found.plans) + len(found.near) == found.considered


def all_splits(asked: PlanRequest, found: list[CandidateGroup]) -> Iterator[float]:
    """Step times of everything that fits, under all splits of two or three stages."""
    count = len(asked.model.layers)
    for group in found:
        for candidate in group.candidates():
            stages = candidate.degrees.stages
            for cut in product(range(count + 1), repeat=stages):
                if sum(cut) == count:
                    yield from (
                        plan.step_time
                        for plan in [evaluate(asked, replace(candidate, layers=cut))]
                        if plan.fits
                    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "batch", "free"),
    [
        ("llama-3.1-8b", "h100", 8, 16, True),
        ("llama-3.1-8b", "a100-40gb", 16, 32, False),
        ("llama-2-13b", "a100-40gb", 8, 16, False),
        ("mixtral-8x7b", "h100", 16, 32, True),
        *[
            ("llama-3.1-8b", "h100", 8, 16, False),
            ("llama-3.1-8b", "a100-40gb", 16, 32, True),
            ("llama-2-13b", "a100-40gb", 8, 16, True),
            ("mixtral-8x7b", "h100", 16, 32, False),
        ]
        * EXPLORES,
    ],
)
def test_the_bound_on_memory_changes_no_plan(
    monkeypatch: pytest.MonkeyPatch, model: str, gpu: str, gpus: int, batch: int, free: bool
) -> None:
    asked = plan_request(model, gpu, gpus, batch, 8192)
    held = [group for group in few(asked, zero=None, cp=None) if group.degrees.pp > 1]
    held = held[: 40 : 1 if EXPLORES else 10]
    splits = runnable(asked) if free else None
    bounded = search(asked, held, 3, splits=splits)
    monkeypatch.setattr(search_module, "least_peaks", lambda *_: None)
    simulated = search(asked, held, 3, splits=splits)
    assert [(p.candidate, p.step_time, p.peaks) for p in bounded.plans] == [
        (p.candidate, p.step_time, p.peaks) for p in simulated.plans
    ]
    assert bounded.considered == simulated.considered == sum(group.count for group in held)
    assert bounded.simulated <= simulated.simulated


@pytest.mark.parametrize("framework", [None, "torchtitan"])
def test_no_rank_stays_below_the_bound_on_memory(framework: str | None) -> None:
    # PyTorch's schedules keep tensors between stages for the whole step.
    asked = plan_request("llama-3.1-8b", "h100", 8, 64, 4096, fixed=Fixed(framework=framework))
    asked = replace(asked, limit=float("inf"))
    some = few(asked) if framework is None else groups(asked)
    every_one = [one for group in some for one in group.candidates() if one.microbatches <= 64]
    for candidate in random.Random(1).sample(every_one, 60):
        try:
            plan = evaluate(asked, candidate)
        except DebubbleError:
            continue
        least = least_peaks(asked, candidate)
        assert least is not None
        assert all(a <= b * (1 + 1e-9) for a, b in zip(least, plan.peaks, strict=True))


def test_fewest_layers_are_recomputed_where_all_are_too_slow_and_none_do_not_fit() -> None:
    asked = plan_request("llama-3.1-8b", "a100-40gb", 8, 32, 8192, memory="40GB")

    def best(recompute: str | None) -> Found:
        fixed = Fixed(tp=2, pp=4, schedules=("1f1b",), recompute=recompute)
        return search(asked, groups(replace(asked, fixed=fixed)), 1)

    assert not best("none").plans
    assert not best("selective").plans
    (some,) = best(None).plans
    assert some.candidate.recompute == "full:2"
    assert some.step_time < 0.9 * best("full").plans[0].step_time
    assert not best("full:1").plans
    assert best("full:3").plans[0].step_time > some.step_time


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "names"),
    [(80e9, ("1f1b", "zb-h1")), (20e9, ("1f1b", "zb-h1"))]
    if EXPLORES
    else [(80e9, ("zb-h1",)), (20e9, ("1f1b",))],
)
def test_no_layer_split_is_faster(limit: float, names: tuple[str, ...]) -> None:
    asked = plan_request("llama-3.1-8b", "h100", 4, 8, 4096)
    model = replace(asked.model, layers=asked.model.layers[:4])
    asked = replace(asked, model=model, limit=limit)
    held = few(asked, schedules=names, tp=1, ep=1)
    splits = runnable(asked)
    found = search(asked, held, 2, splits=splits)
    best = min(all_splits(asked, held))
    assert found.plans[0].step_time <= best * 1.005
    assert len(found.plans) == 2
    # With little memory only other splits than the even ones have room.
    assert bool(search(asked, held, 2).plans) == (limit > 20e9)
    assert sum(found.left_out.values()) + len(found.plans) + len(found.near) == found.considered
    assert found.considered == sum(group.count for group in held)


@pytest.mark.slow
def test_a_framework_runs_refined_splits() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 16, 32, 4096)
    held = few(asked, pp=4, framework="torchtitan", zero=2, recompute="selective")
    even = search(asked, held, 3)
    found = search(
        asked, held, 3, splits=runnable(replace(asked, fixed=Fixed(framework="torchtitan")))
    )
    assert found.plans[0].step_time < even.plans[0].step_time
    for plan in found.plans:
        case = asked.case(plan.candidate)
        assert not broken(case, "torchtitan")


@pytest.mark.slow
def test_bounds_hold_and_are_near() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 32, 64, 8192)
    held = groups(replace(asked, fixed=Fixed(zero=1, recompute="none")))
    draw = random.Random(0)
    ratios = []
    for group in draw.sample(list(held), 30):
        candidate = draw.choice(list(group.candidates()))
        try:
            _, timeline = timed(asked, candidate)
        except DebubbleError:
            continue
        bound = pipeline_bound(asked, candidate)
        assert bound <= timeline.makespan * (1 + 1e-9), candidate
        ratios.append(bound / timeline.makespan)
    assert sorted(ratios)[len(ratios) // 2] > 0.9


@pytest.mark.slow
def test_an_interrupted_search_keeps_the_best() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 8, 16, 4096)

    def stop(found: Found) -> None:
        if found.plans:
            raise KeyboardInterrupt

    found = search(asked, few(asked), 3, stop)
    assert found.interrupted
    assert found.plans[0].causes
    assert "best so far (search stopped)" in text(found, 200)


@pytest.mark.slow
def test_a_search_that_is_stopped_at_once_has_a_plan() -> None:
    asked = plan_request("llama-3.1-70b", "h200", 64, 128, 8192)

    def stop(found: Found) -> None:
        if found.best:
            raise KeyboardInterrupt

    found = search(asked, groups(PlanRequest(asked.model, asked.cluster, asked.training)), 3, stop)
    assert found.interrupted
    (plan,) = found.plans
    assert plan.fits
    assert found.simulated < 100


@pytest.mark.slow
def test_only_what_is_faster_than_a_limit_is_kept() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 8, 16, 4096)
    best = search(asked, few(asked), 1).plans[0]
    found = search(asked, few(asked), 1, below=best.step_time)
    assert not found.plans
    assert found.simulated < found.considered
    found = search(asked, few(asked), 3, below=best.step_time * 1.01)
    assert found.plans[0].candidate == best.candidate
    assert all(plan.step_time < best.step_time * 1.01 for plan in found.plans)


def test_orders_that_turn_out_the_same_are_one_plan() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 8, 32, 4096)
    held = few(asked, schedules=("zb-v", "v-zb", "1f1b"), tp=1, pp=2, microbatch_size=2)
    found = search(asked, held, 10)
    assert len(found.plans) == len({(p.step_time, p.peaks) for p in found.plans})


@pytest.mark.slow
def test_plans_that_do_not_fit_are_near() -> None:
    asked = replace(plan_request("llama-3.1-8b", "h100", 8, 16, 4096), limit=30e9)
    found = search(asked, few(asked), 3)
    near = [max(plan.peaks) / asked.limit for plan in found.near]
    assert near
    assert all(share > 1 for share in near)
    assert any(share <= 1.25 for share in near)


def test_nothing_fits() -> None:
    asked = replace(plan_request("llama-3.1-70b", "h100", 8, 16, 4096), limit=10e9)
    found = search(asked, few(asked), 3)
    assert not found.plans
    assert list(found.left_out) == ["too large with one microbatch, with any schedule"]


@pytest.mark.slow
def test_why_not() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 16, 16, 4096)
    best = search(asked, few(asked), 1).plans[0]
    assert best.candidate.degrees.pp != 8
    answer = why_not("pp=8", best, lambda: search(asked, few(asked, pp=8), 1))
    assert answer.plan is not None
    assert answer.plan.candidate.degrees.pp == 8
    assert "slower" in answer.reason
    assert why_text(answer).startswith("pp=8: ")
    assert why_data(answer)["plan"]["degrees"]["pp"] == 8
    same = why_not("zero=1", best, lambda: search(asked, few(asked), 1))
    assert same.reason == "the best plan has it"
    small = replace(asked, limit=13e9)
    answer = why_not("tp=1", None, lambda: search(small, few(small, tp=1, dp=1), 1))
    assert "fit" in answer.reason or "room" in answer.reason


def test_why_not_what_no_plan_can_have() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 16, 16, 4096)
    held = replace(asked, fixed=Fixed(pp=3))
    answer = why_not("pp=3", None, lambda: search_all(ask(held, ["megatron"]), 1))
    assert answer.plan is None
    assert answer.reason.startswith("pp 3 does not divide 16 GPUs; the nearest that work are pp 4")


def test_what_needs_least_is_near_where_nothing_fits() -> None:
    fixed = Fixed(framework="megatron", pp=4, tp=1, microbatch_size=1, recompute="selective")
    asked = plan_request("llama-3.1-8b", "h100", 4, 8, 4096, fixed=fixed)
    small = replace(asked.model, layers=asked.model.layers[:8])
    asked = replace(asked, model=small, limit=16e9)
    found = search(asked, groups(asked), 3)
    assert not found.plans
    peaks = {
        candidate.schedule: max(evaluate(asked, candidate).peaks)
        for group in groups(asked)
        for candidate in group.candidates()
    }
    assert {plan.candidate.schedule for plan in found.near} == set(peaks)
    assert max(found.near[0].peaks) == pytest.approx(min(peaks.values()))


@pytest.mark.parametrize("limit", [5e9, 25e9])
def test_the_nearest_of_all_splits_needs_least(limit: float) -> None:
    asked = plan_request("llama-3.1-8b", "h100", 2, 8, 4096, fixed=Fixed(framework="megatron"))
    asked = replace(asked, model=replace(asked.model, layers=asked.model.layers[:6]), limit=limit)
    found = search(asked, groups(asked), 3)
    peaks = {
        candidate: max(evaluate(asked, candidate).peaks)
        for group in groups(asked)
        for candidate in group.candidates()
    }
    assert not found.plans
    assert max(found.near[0].peaks) == pytest.approx(min(peaks.values()))


@pytest.mark.slow
def test_nothing_that_nearly_fits_is_faster_than_what_is_near() -> None:
    fixed = Fixed(framework="megatron", cp=1, recompute="none", tp=1)
    asked = replace(plan_request("llama-3.1-8b", "h100", 16, 64, 4096, fixed=fixed), limit=30e9)
    found = search(asked, groups(asked), 3, splits=runnable(asked))
    near = []
    for candidate in (one for group in groups(asked) for one in group.candidates()):
        try:
            plan = evaluate(replace(asked, limit=float("inf")), candidate)
        except DebubbleError:
            continue
        if asked.limit < max(plan.peaks) <= 1.25 * asked.limit:
            near.append(plan.step_time)
    assert found.near
    assert found.near[0].step_time <= min(near)


def test_what_has_no_room_is_not_looked_at_before_a_plan_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixed = Fixed(framework="megatron", cp=1, recompute="none")
    asked = replace(plan_request("llama-3.1-8b", "h100", 16, 64, 4096, fixed=fixed), limit=20e9)
    large = []

    def base_of(request: PlanRequest, candidate: Candidate, *more: Any) -> Base | None:
        peaks = least_peaks(request, candidate)
        assert peaks is not None
        large.append(float(peaks.max()) > 1.25 * request.limit)
        return within_memory.base_of(request, candidate, *more)

    monkeypatch.setattr(search_module, "base_of", base_of)
    found = search(asked, groups(asked), 3)
    assert found.near
    assert sum(large) < 20
