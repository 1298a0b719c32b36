"""More memory never loses a plan, and never makes its step longer; what is held never helps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import pairwise

import pytest

from debubble.planner.plannable import plannable
from debubble.planner.request import Fixed, PlanRequest, plan_request
from debubble.planner.search.best_plans import best_plans
from debubble.planner.search.search_result import Found
from debubble.schedules import registry
from tests.conftest import EXPLORES

MADE = tuple(name for name in plannable() if registry.find(name).uses_costs)
"""Schedules whose orders are made for costs and memory."""


def small(layers: int = 8, batch: int = 8) -> PlanRequest:
    """A model of a few layers that four GPUs train."""
    asked = plan_request("llama-3.1-8b", "h100", 4, batch, 4096)
    return replace(asked, model=replace(asked.model, layers=asked.model.layers[:layers]))


def best(asked: PlanRequest, limit: float, fixed: Fixed) -> float:
    """Seconds of the best plan within a limit; infinite where none fits."""
    found = best_plans(replace(asked, limit=limit, fixed=fixed), 1)
    return found.plans[0].step_time if found.plans else math.inf


def never_longer(asked: PlanRequest, fixed: Fixed, limits: Iterable[float]) -> list[float]:
    """Steps at growing limits, each no longer than the one before."""
    steps = [best(asked, limit, fixed) for limit in limits]
    for less, more in pairwise(steps):
        assert more <= less * (1 + 1e-9), steps
    assert math.isfinite(steps[-1])
    return steps


def grid(lowest: float, highest: float, count: int) -> list[float]:
    """Limits in bytes at equal ratios."""
    ratio = (highest / lowest) ** (1 / (count - 1))
    return [lowest * ratio**number for number in range(count)]


SOME = None if EXPLORES else ("1f1b", "interleaved-1f1b", "zb-v")
"""Schedules of searches over much else; all of them take minutes."""

PIPELINE = Fixed(tp=1, pp=4, dp=1, microbatch_size=1, recompute="none", zero=0)


@pytest.mark.parametrize("name", plannable() if EXPLORES else ("zb-v", "v-half", "zb-2p", "gis"))
def test_more_memory_never_makes_the_step_of_a_schedule_longer(name: str) -> None:
    fixed = replace(PIPELINE, schedules=(name,))
    steps = never_longer(small(), fixed, grid(10e9, 30e9, 60 if EXPLORES else 18))
    assert min(steps) < max(steps)


@pytest.mark.parametrize("recompute", ["none", None])
@pytest.mark.slow
def test_more_memory_never_makes_the_best_step_longer(recompute: str | None) -> None:
    limits = grid(9e9, 60e9, 60 if EXPLORES else 6)
    never_longer(small(), replace(PIPELINE, recompute=recompute, schedules=SOME), limits)


@pytest.mark.slow
def test_more_memory_never_makes_the_best_step_of_all_plans_longer() -> None:
    never_longer(small(8), Fixed(schedules=SOME), grid(8e9, 60e9, 30 if EXPLORES else 5))


def searched(asked: PlanRequest, fixed: Fixed) -> Found:
    return best_plans(replace(asked, fixed=fixed), 3)


@pytest.mark.slow
def test_what_is_near_fits_into_what_it_needs() -> None:
    fixed = replace(PIPELINE, schedules=("zb-v", "1f1b"))
    asked = replace(small(), limit=11e9)
    found = searched(asked, fixed)
    assert not found.plans
    for plan in found.near:
        wide = replace(asked, limit=max(plan.peaks))
        assert searched(wide, fixed).plans[0].step_time <= plan.step_time * (1 + 1e-9)


@pytest.mark.parametrize("limit", [16e9, 30e9] if EXPLORES else [30e9])
@pytest.mark.slow
def test_what_is_held_never_makes_the_step_shorter(limit: float) -> None:
    asked = replace(small(8), limit=limit)
    among = Fixed(schedules=SOME)
    free = best(asked, limit, among)
    choices = {
        "tp": (1, 2, 4), "pp": (1, 2, 4), "dp": (1, 2, 4), "cp": (1, 2), "chunks": (2, 3),
        "microbatch_size": (1, 2, 4), "recompute": ("none", "selective", "full", "full:1"),
        "zero": (0, 1, 2, 3), "schedules": [(name,) for name in SOME or plannable()],
    }  # fmt: skip
    assert set(choices) | {"ep", "layers", "framework"} == {spec.name for spec in fields(Fixed)}
    for name, values in choices.items():
        held = [best(asked, limit, replace(among, **{name: value})) for value in values]  # type: ignore[arg-type]
        assert min(held) >= free * (1 - 1e-9), (name, held, free)
        if name in ("tp", "pp"):
            assert math.isclose(min(held), free, rel_tol=1e-9), (name, held, free)
