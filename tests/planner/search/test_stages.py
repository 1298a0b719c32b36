"""Stages that schedules of one placement share, against whole simulations."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError
from debubble.planner.request import Fixed, plan_request
from debubble.planner.search.bounds import pipeline_bound, pipeline_bounds
from debubble.planner.search.evaluate import schedule_of, timed
from debubble.planner.search.groups import groups
from debubble.planner.search.layer_split import moved
from debubble.planner.search.stages import stages_of


@pytest.mark.parametrize(
    ("model", "framework"),
    [
        ("llama-3.1-8b", None),
        ("llama-3.1-8b", "automodel"),
        ("deepseek-v3", "megatron"),
        ("gpt-3-175b", "deepspeed"),
    ],
)
def test_a_step_is_that_of_the_engine(model: str, framework: str | None) -> None:
    asked = plan_request(model, "h100", 32, 64, 2048, fixed=Fixed(framework=framework))
    draw, steps = random.Random(1), 0
    for group in draw.sample([one for one in groups(asked) if one.microbatches <= 8], 25):
        candidate = draw.choice([one for one in group.candidates() if not one.uses_costs])
        try:
            plan, timeline = timed(asked, candidate)
        except DebubbleError:
            continue
        found = stages_of(asked, candidate).simulate(schedule_of(candidate, Costs()))
        if found is None:
            continue  # pairs of actions have costs of their own
        steps += 1
        assert (found.seconds, found.makespan) == (plan.step_time, timeline.makespan), candidate
        assert found.busy == pytest.approx(float(timeline.busy.max()))
    assert steps > 10


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full:1"])
def test_bounds_of_several_cuts_are_those_of_each(recompute: str) -> None:
    asked = plan_request("deepseek-v3", "h100", 32, 64, 2048, fixed=Fixed(recompute=recompute))
    draw = random.Random(1)
    for group in draw.sample([one for one in groups(asked) if one.degrees.pp > 1], 5):
        candidate = draw.choice(list(group.candidates()))
        last = len(candidate.layers) - 1
        cuts = [candidate.layers, moved(candidate.layers, 1, 0), moved(candidate.layers, 1, last)]
        each = [pipeline_bound(asked, replace(candidate, layers=cut)) for cut in cuts]
        assert pipeline_bounds(asked, candidate, cuts) == pytest.approx(np.array(each))
