"""Bounds from longest paths, against simulations of random layer splits."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.plannable import first_cut
from debubble.planner.request import PlanRequest, plan_request
from debubble.planner.search.bounds import homes_of
from debubble.planner.search.evaluate import timed
from debubble.planner.search.longest_path import LongestPath, are_slow, least_step, no_gain


def asked(model: str, torch: bool) -> PlanRequest:
    found = plan_request(model, "h100", 16, 64, 4096)
    return replace(found, training=replace(found.training, runtime=TORCH)) if torch else found


def start(request: PlanRequest, name: str, chunks: int, recompute: str) -> Candidate:
    layers = first_cut(len(request.model.layers), 4 * chunks)
    return Candidate(Degrees(2, 1, 1, 2, 4, chunks), 2, 16, name, layers, recompute)


def moved(layers: tuple[int, ...], one: int, other: int) -> tuple[int, ...]:
    found = list(layers)
    found[one] -= 1
    found[other] += 1
    return tuple(found)


@pytest.mark.parametrize("torch", [False, True])
@pytest.mark.parametrize("recompute", ["none", "full:1"])
@pytest.mark.parametrize(
    ("model", "name", "chunks"),
    [
        ("llama-3.1-8b", "1f1b", 1),
        ("llama-3.1-8b", "interleaved-1f1b", 3),
        ("deepseek-v2-lite", "zb-h1", 1),
        ("deepseek-v2-lite", "dualpipe-v", 2),
    ],
)
def test_no_step_with_other_layers_is_below_the_bound(
    model: str, name: str, chunks: int, recompute: str, torch: bool
) -> None:
    request, draw = asked(model, torch), random.Random(1)
    one = start(request, name, chunks, recompute)
    paths = [LongestPath(*timed(request, one))]
    near = []
    for _ in range(12):
        given = [stage for stage, count in enumerate(one.layers) if count]
        other = replace(
            one, layers=moved(one.layers, draw.choice(given), draw.randrange(4 * chunks))
        )
        plan, timeline = timed(request, other)
        bound = least_step(request, other, paths, float("inf"))
        assert bound <= plan.step_time * (1 + 1e-9)
        near.append(bound / plan.step_time)
        paths.append(LongestPath(plan, timeline, getattr(paths[0], "gradients", None)))
        one = other
    assert paths[0].counts is None or min(near) > 0.8
    assert paths[0].counts is not None or name == "dualpipe-v"


def test_moves_in_vain_make_no_step_shorter() -> None:
    request = asked("llama-3.1-8b", torch=False)
    one = start(request, "interleaved-1f1b", 4, "none")
    plan, timeline = timed(request, one)
    vain = no_gain(LongestPath(plan, timeline), plan, homes_of(one))
    moves = [(a, b) for a, b in np.argwhere(vain).tolist() if a != b and one.layers[a]]
    assert len(moves) > 10
    for a, b in random.Random(2).sample(moves, 10):
        other, _ = timed(request, replace(one, layers=moved(one.layers, a, b)))
        assert other.step_time >= plan.step_time * (1 - 1e-12)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_the_bound_is_the_step_for_its_own_layers(name: str) -> None:
    request = asked("llama-3.1-8b", torch=False)
    plan, timeline = timed(request, start(request, name, 1, "none"))
    bound = least_step(request, plan.candidate, [LongestPath(plan, timeline)], float("inf"))
    assert bound == pytest.approx(plan.step_time, rel=1e-12)


@pytest.mark.parametrize("recompute", ["none", "full:1"])
@pytest.mark.parametrize(("model", "torch"), [("llama-3.1-8b", True), ("deepseek-v2-lite", False)])
def test_the_bounds_of_many_moves_are_those_of_each(
    model: str, torch: bool, recompute: str
) -> None:
    request = asked(model, torch)
    one = start(request, "interleaved-1f1b", 2, recompute)
    plan, timeline = timed(request, one)
    paths = [LongestPath(plan, timeline)]
    stages = range(len(one.layers))
    cuts = [moved(one.layers, a, b) for a in stages for b in stages if a != b and one.layers[a]]
    each = [least_step(request, replace(one, layers=cut), paths, math.inf) for cut in cuts]
    for enough in (plan.step_time, 1.02 * plan.step_time):
        slow = are_slow(request, one, cuts, paths, enough)
        assert slow.tolist() == [least > enough * (1 + 1e-9) for least in each]
