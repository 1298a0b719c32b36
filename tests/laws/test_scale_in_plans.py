"""The same amount of memory spelled otherwise is the same question."""

from __future__ import annotations

import pytest

from debubble.planner.ask import ask
from debubble.planner.search.best_plans import best_plans
from debubble.planner.search.groups import Fixed

SPELLINGS = ("30GB", "30 gb", "30e9", "30000MB", "0.03TB", "30000000000", "30.0e9B")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_memory(spelling: str) -> None:
    asked = ask("llama-3.2-1b", "h100", 4, 8, memory=spelling)
    plain = ask("llama-3.2-1b", "h100", 4, 8, memory=SPELLINGS[0])
    assert asked.limit == plain.limit
    held = Fixed(pp=4, microbatch_size=1, recompute="none", schedules=("zb-v",))
    own, other = (best_plans(one, held, 1).plans[0] for one in (asked, plain))
    assert (own.candidate, own.step_time, own.peaks) == (
        other.candidate, other.step_time, other.peaks
    )  # fmt: skip
