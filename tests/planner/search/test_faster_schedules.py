"""Orders that the optimizer finds for plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from debubble.optimize import strategies
from debubble.planner.answer.data import data
from debubble.planner.answer.report import text
from debubble.planner.answer.searches import Answer
from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.request import PlanRequest, plan_request
from debubble.planner.search import faster_schedules
from debubble.planner.search.best_plans import Found
from debubble.planner.search.evaluate import simulated
from debubble.planner.search.faster_schedules import faster_order, optimized
from tests.planner.cases import evaluate

ASKED = plan_request("llama-3.1-8b", "h100", 8, 16, 4096)
ONE = Candidate(Degrees(dp=2, pp=4), 1, 8, "zb-h1", (8, 9, 9, 6))


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("solver", [True, False])
def test_a_faster_order_within_the_memory(solver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not solver:
        monkeypatch.setattr(strategies, "has_solver", lambda: False)
    plan = evaluate(ASKED, ONE)
    found, least, interrupted = faster_order(plan, 1.0)
    assert found is not None
    assert not interrupted
    assert least <= found.step_time < 0.97 * plan.step_time
    assert found.fits
    assert found.schedule == "optimized"
    assert found.candidate == plan.candidate
    assert sum(found.causes.values()) == pytest.approx(found.step_time)
    timeline = simulated(ASKED.case(ONE), found.order)
    assert timeline.makespan < found.step_time
    assert timeline.schedule.placement == simulated(ASKED.case(ONE)).schedule.placement


@pytest.mark.slow
def test_little_memory_is_kept() -> None:
    tight = replace(ASKED, limit=52e9)
    plan = evaluate(tight, ONE)
    found, least, _ = faster_order(plan, 1.0)
    wide, least_of_all, _ = faster_order(evaluate(ASKED, ONE), 1.0)
    assert wide is not None
    assert max(wide.peaks) > tight.limit
    assert least >= least_of_all - 1e-9
    assert found is not None
    assert max(found.peaks) <= tight.limit
    assert wide.step_time < found.step_time < plan.step_time


def test_the_best_plans_get_orders() -> None:
    alone = evaluate(ASKED, Candidate(Degrees(tp=8), 1, 16, "1f1b", (32,)))
    plans = [evaluate(ASKED, ONE), evaluate(ASKED, replace(ONE, schedule="1f1b")), alone]
    found = Found(ASKED, 3, sorted(plans, key=lambda plan: plan.step_time))
    told: list[int] = []
    optimized(found, 1, 1.0, lambda number, _: told.append(number))
    assert len(told) == 1
    assert [plan.schedule for plan in found.plans].count("optimized") == 1
    assert found.plans[0].schedule == "optimized"
    answer = Answer(ASKED, 3, found.plans)
    said = data(answer)["plans"]
    assert said[0]["schedule"] == "optimized"
    assert said[0]["instead_of"] == "zb-h1"
    assert said[0]["lower_bound"] <= said[0]["step_time"]
    assert all("order.csv" in lines for lines in said[0]["flags"].values())
    assert "no schedule of its stages is faster than" in text(answer, 100)


def test_ctrl_c_keeps_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [evaluate(ASKED, ONE), evaluate(ASKED, replace(ONE, schedule="1f1b"))]
    found = Found(ASKED, 2, plans.copy())

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(faster_schedules, "faster_order", stop)
    optimized(found, 2)
    assert found.interrupted
    assert found.plans == plans


def test_what_cannot_be_optimized_is_said() -> None:
    plan = evaluate(ASKED, ONE)
    tight: PlanRequest = replace(ASKED, limit=20e9)
    found = Found(tight, 1, [replace(plan, request=tight)])
    told: list[str] = []
    optimized(found, 1, 1.0, lambda _, line: told.append(line))
    assert len(told) == 1
    assert len(found.plans) == 1
