"""The same amount of memory spelled otherwise is the same question."""

from __future__ import annotations

from dataclasses import replace

import pytest

from debubble.planner.request import Fixed, PlanRequest, plan_request
from debubble.planner.search.best_plans import best_plans

SPELLINGS = ("30GB", "30 gb", "30e9", "30000MB", "0.03TB", "30000000000", "30.0e9B")


def asked_with(memory: str) -> PlanRequest:
    return plan_request("llama-3.2-1b", "h100", 4, 8, memory=memory)


@pytest.mark.parametrize("spelling", SPELLINGS[1:])
def test_spellings_of_memory(spelling: str) -> None:
    assert asked_with(spelling) == asked_with(SPELLINGS[0])


def test_equal_questions_have_equal_plans() -> None:
    held = Fixed(pp=4, microbatch_size=1, recompute="none", schedules=("zb-v",))
    own, other = (
        best_plans(replace(asked_with(spelling), fixed=held), 1).plans[0]
        for spelling in (SPELLINGS[0], SPELLINGS[-1])
    )
    assert (own.candidate, own.step_time, own.peaks) == (
        other.candidate, other.step_time, other.peaks
    )  # fmt: skip
