"""What changes nothing moves nothing: the best plan's own values, and memory that it has anyway."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest

from debubble.planner.answer.why import why_not
from debubble.planner.request import Fixed, PlanRequest, plan_request
from debubble.planner.search.best_plans import best_plans
from debubble.planner.search.evaluate import Evaluated
from debubble.planner.search.search_result import Found
from tests.conftest import EXPLORES

SOME = None if EXPLORES else ("1f1b", "interleaved-1f1b", "zb-v", "v-half")
HELD = Fixed(pp=4, microbatch_size=1, recompute="none", schedules=SOME)


def asked_within(limit: float) -> PlanRequest:
    asked = plan_request("llama-3.1-8b", "h100", 4, 8, 4096)
    model = replace(asked.model, layers=asked.model.layers[:8])
    return replace(asked, limit=limit, model=model, fixed=HELD)


@cache
def found_within(limit: float, held: Fixed | None = None) -> Found:
    """The best plans within a limit, or the best alone of those with more values held."""
    asked = asked_within(limit)
    return best_plans(replace(asked, fixed=held), 1) if held else best_plans(asked, 2)


def own_values(plan: Evaluated) -> dict[str, Any]:
    """What the command line would hold so that this plan is asked for, option by option."""
    candidate = plan.candidate
    return {
        **vars(candidate.degrees),
        "microbatch_size": candidate.microbatch_size,
        "schedules": (candidate.schedule,),
        "recompute": candidate.recompute,
        "zero": candidate.zero,
        "layers": candidate.layers,
    }


@pytest.mark.parametrize("limit", [25e9, pytest.param(80e9, marks=pytest.mark.slow)])
def test_the_best_plan_is_the_best_with_its_own_values(limit: float) -> None:
    best = found_within(limit).plans[0]
    values = own_values(best)
    assert set(values) | {"framework", "mtp", "mtp_stage"} == {spec.name for spec in fields(Fixed)}
    for name, value in values.items():
        held = replace(HELD, **{name: value})
        if name == "layers":  # a split is found for one schedule; others may make more of it
            held = replace(held, schedules=(best.candidate.schedule,))
        again = found_within(limit, held)
        assert math.isclose(again.plans[0].step_time, best.step_time, rel_tol=1e-9), name
        assert again.plans[0].candidate == best.candidate, name
        why = why_not(name, best, lambda found=again: found)
        assert why.reason == "the best plan has it", name


def test_memory_that_nothing_needs_moves_nothing() -> None:
    best = found_within(80e9).plans[0]
    for limit in (max(best.peaks), 80e9 + 1, 1e15):
        again = found_within(limit).plans[0]
        assert again.step_time == pytest.approx(best.step_time, rel=1e-9) or limit > 80e9
        assert again.step_time <= best.step_time * (1 + 1e-9)
