"""Bounds that are looked up before anything is simulated, against what they bound."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.errors import DebubbleError
from debubble.planner.memory.peaks import fragmentation
from debubble.planner.request import Fixed, plan_request
from debubble.planner.search.bounds import (
    LeastMemory,
    least_memory,
    least_turns,
    standing_of,
    time_in_memory,
)
from debubble.planner.search.evaluate import costs_of, schedule_of, timed
from debubble.planner.search.groups import groups
from debubble.planner.search.layer_split import runnable
from debubble.planner.search.within_memory import (
    BaseVariants,
    base_cut,
    base_of,
    least_floor,
    within_limit_of,
)

FRAMEWORKS = (None, "megatron", "automodel")


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_floor_is_below_the_one_that_is_known_without_simulating(framework: str | None) -> None:
    fixed = Fixed(framework=framework)
    asked = plan_request("llama-3.1-8b", "h100", 16, 32, 4096, fixed=fixed)
    draw, splits, near = random.Random(0), runnable(asked), []
    for group in draw.sample([one for one in groups(asked) if one.microbatches <= 8], 40):
        for allowed in (splits, None):
            own, _ = base_cut(asked, draw.choice(list(group.candidates())), allowed)
            try:
                base = base_of(asked, own, allowed)
            except DebubbleError:
                continue
            assert base is not None
            near.append(least_floor(asked, own, allowed) / base.floor)
            assert near[-1] <= 1, own
    assert sorted(near)[len(near) // 2] > 0.9


def test_no_setting_of_a_group_needs_less_than_the_least() -> None:
    asked = plan_request("mixtral-8x7b", "h100", 16, 32, 4096)
    asked = replace(asked, fixed=Fixed(framework="megatron"))
    known = LeastMemory(asked)
    for group in random.Random(0).sample(list(groups(asked)), 40):
        every = (
            least_memory(asked, group.alone(setting), group.degrees.pp)
            for setting in group.all_settings
        )
        assert known.of(group) <= min(every) * (1 + 1e-9)


@pytest.mark.slow
def test_a_schedule_that_is_made_in_more_memory_is_not_below_the_floor_of_its_base() -> None:
    asked = plan_request("llama-3.1-8b", "h100", 24, 128, 4096, fixed=Fixed(framework="automodel"))
    asked = replace(asked, limit=math.inf)
    saved = []
    for group in groups(asked):
        made = [one for one in group.candidates() if one.schedule == "v-zb"]
        if group.degrees.pp == 3 and group.microbatches == 4 and group.degrees.tp == 1 and made:
            own, _ = base_cut(asked, made[0], runnable(asked))
            base = base_of(asked, own, runnable(asked))
            assert base is not None
            variants = BaseVariants(asked, within_limit_of(asked, base, None), runnable(asked))
            for _ in range(3):
                variants.look()
            saved.append(1 - variants.plan.step_time / base.plan.step_time)
            assert variants.plan.step_time >= base.floor
    assert max(saved) > 0.06


@given(
    work=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=9),
    microbatches=st.integers(1, 20),
)
def test_no_work_of_ranks_fills_a_pipeline_faster(work: list[float], microbatches: int) -> None:
    ahead = np.cumsum([0.0, *work])
    slowest = float((microbatches * np.array(work) + ahead[:-1]).max())
    assert slowest >= sum(work) * least_turns(len(work), microbatches) * (1 - 1e-9)


def test_the_bound_on_a_pipeline_that_fills_slowly_is_reached() -> None:
    work = [(1 - 1 / 6) ** rank for rank in range(4)]
    ahead = np.cumsum([0.0, *work[:-1]])
    assert 6 * np.array(work) + ahead == pytest.approx(sum(work) * least_turns(4, 6))


@pytest.mark.parametrize("name", ["zb-auto", "v-half"])
def test_no_schedule_within_the_memory_is_faster_than_what_its_memory_allows(name: str) -> None:
    fixed = Fixed(framework="automodel", tp=1, cp=1, recompute="none", schedules=(name,))
    asked = plan_request("llama-3.1-8b", "h100", 32, 128, 4096, fixed=fixed)
    share, tight = 1 + fragmentation(asked.training), []
    for group in (one for one in groups(asked) if one.degrees.pp == 8 and one.microbatch_size == 1):
        for candidate in group.candidates():
            standing = standing_of(asked, candidate)
            plan, timeline = timed(asked, candidate)
            for part in (0.5, 0.75, 1.0):
                limit = float((standing + part * share * timeline.peak_activation).max())
                room = (limit - standing) / share
                made = schedule_of(candidate, costs_of(plan.case), room.tolist())
                _, within = timed(asked, candidate, made)
                least = time_in_memory(asked, candidate, limit)
                tight.append(least / within.makespan)
    assert 0.5 < max(tight) <= 1
