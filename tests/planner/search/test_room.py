"""Room for layers, looked up before any cut, against the memory of evaluated candidates."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from debubble.core.errors import DebubbleError
from debubble.planner.candidate import recomputed_layers
from debubble.planner.request import Fixed, plan_request
from debubble.planner.search.choices import FEWEST
from debubble.planner.search.evaluate import timed, with_peaks
from debubble.planner.search.groups import Batch, groups
from debubble.planner.search.room import rooms_of

MODELS = {"llama-3.1-8b": 16, "mixtral-8x7b": 16, "deepseek-v2": 64}


@pytest.mark.slow
@pytest.mark.parametrize("framework", [None, "megatron", "automodel"])
@pytest.mark.parametrize("model", MODELS)
def test_what_fits_has_room(model: str, framework: str | None) -> None:
    gpus, draw, tried = MODELS[model], random.Random(3), 0
    asked = plan_request(model, "h100", gpus, 2 * gpus, 4096, fixed=Fixed(framework=framework))
    piped = [one for one in groups(asked) if 1 < one.degrees.pp <= 8 and one.microbatches <= 16]
    for group in draw.sample(piped, min(16, len(piped))):
        batch = Batch(group, draw.choice(group.all_settings))
        at = draw.randrange(batch.count)
        candidate = group.candidate(*batch.orders[at], batch.setting)
        if candidate.uses_costs:
            continue
        if batch.setting[0] == FEWEST:
            number = draw.randint(1, max(candidate.layers))
            candidate = candidate.recomputing(f"full:{number}")
        try:
            plan = with_peaks(*timed(asked, candidate))
        except DebubbleError:
            continue
        limit = max(plan.peaks)
        fewest = rooms_of(replace(asked, limit=limit), [batch], limit)[0].fewest[at]
        assert fewest is not None, candidate
        assert fewest <= (recomputed_layers(candidate.recompute) or 0)
        tried += 1
    assert tried > 3


@pytest.mark.slow
def test_less_memory_leaves_room_for_no_more() -> None:
    asked = plan_request("llama-3.1-70b", "h100", 64, 128, 4096, fixed=Fixed(framework="megatron"))
    some = [one for one in groups(asked) if one.degrees.pp > 2]
    for group in random.Random(1).sample(some, 5):
        for setting in group.all_settings:
            batch, before = Batch(group, setting), None
            for limit in (20e9, 40e9, 80e9, 160e9):
                found = [float("inf") if one is None else one
                         for one in rooms_of(asked, [batch], limit)[0].fewest]  # fmt: skip
                assert before is None or all(a >= b for a, b in zip(before, found, strict=True))
                before = found


def test_batches_have_the_room_together_that_each_has_alone() -> None:
    asked = plan_request("llama-3.1-70b", "h100", 64, 128, 4096, fixed=Fixed(framework="megatron"))
    some = [one for one in groups(asked) if one.degrees.pp > 2]
    for group in random.Random(2).sample(some, 5):
        for recompute in ("none", FEWEST):
            batches = [Batch(group, one) for one in group.all_settings if one[0] == recompute]
            alike = [one for one in batches if one.orders == batches[0].orders]
            alone = [rooms_of(asked, [one], 60e9)[0] for one in alike]
            assert rooms_of(asked, alike, 60e9) == alone
