"""More memory never loses a plan, and never makes its step longer; what is held never helps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest

from debubble.planner.answer.more_gpus import enough_gpus
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


def test_what_is_nearest_where_nothing_fits_depends_on_no_limit_and_is_enough() -> None:
    asked, fixed = small(6), Fixed(framework="megatron", dp=1)
    asked = replace(asked, fixed=fixed)
    founds = [best_plans(replace(asked, limit=limit), 3) for limit in grid(3e9, 12e9, 4)]
    assert not any(found.plans for found in founds)
    nearest = [max(found.near[0].peaks) for found in founds]
    assert nearest == pytest.approx(nearest[:1] * len(nearest))
    assert math.isfinite(best(asked, nearest[0] * (1 + 1e-9), fixed))


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


NARROWER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"gradient_bytes": 2}),
    ({}, {"moment_bytes": 2}),
    ({"moment_bytes": 2}, {"moment_bytes": 1}),
    ({"precision": "fp8", "weights": "bf16"}, {"precision": "fp8", "weights": "fp8"}),
    ({"graph_pools": 1e9}, {}),
]
"""Fields of trainings, and others with which fewer bytes are kept."""


@pytest.mark.parametrize(("wide", "narrow"), NARROWER)
@pytest.mark.parametrize("limit", grid(8e9, 40e9, 8) if EXPLORES else [14e9, 40e9])
def test_what_is_kept_in_fewer_bytes_never_makes_the_step_longer(
    wide: dict[str, Any], narrow: dict[str, Any], limit: float
) -> None:
    asked, fixed = small(), Fixed(tp=1, pp=2, zero=1, schedules=("1f1b",))

    def step(kept: dict[str, Any]) -> float:
        return best(replace(asked, training=replace(asked.training, **kept)), limit, fixed)

    assert step(narrow) <= step(wide) * (1 + 1e-9)


def test_more_memory_never_needs_more_gpus() -> None:
    asked = replace(small(), fixed=Fixed(schedules=("1f1b",), zero=0))
    counts = []
    for limit in grid(3e9, 12e9, 20 if EXPLORES else 5):
        plan = enough_gpus((replace(asked, limit=limit),))
        counts.append(math.inf if plan is None else plan.candidate.degrees.gpus)
    assert counts == sorted(counts, reverse=True)
    assert min(counts) < max(counts)


def test_the_best_plan_fits_into_a_gpu_whatever_memory_is_asked_for() -> None:
    for memory in (None, 20e9, 80e9, 200e9):
        asked = plan_request("llama-3.1-8b", "h100", 8, 8, 4096, memory=memory)
        found = best_plans(replace(asked, fixed=Fixed(tp=2, pp=4, schedules=("1f1b",))), 3)
        assert all(plan.verdict == "yes" for plan in found.plans)
        assert all(plan.verdict != "yes" for plan in found.near)


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
    choices: dict[str, Sequence[Any]] = {
        "tp": (1, 2, 4), "pp": (1, 2, 4), "dp": (1, 4), "cp": (2,), "chunks": (3,),
        "microbatch_size": (2,), "recompute": ("selective", "full:1"), "zero": (0, 3),
        "schedules": [(name,) for name in SOME or plannable()],
    }  # fmt: skip
    if EXPLORES:
        choices |= {
            "dp": (1, 2, 4), "cp": (1, 2), "chunks": (2, 3), "microbatch_size": (1, 2, 4),
            "recompute": ("none", "selective", "full", "full:1"), "zero": (0, 1, 2, 3),
        }  # fmt: skip
    assert set(choices) | {"ep", "layers", "framework", "mtp", "mtp_stage"} == {
        spec.name for spec in fields(Fixed)
    }
    for name, values in choices.items():
        held = [best(asked, limit, replace(among, **{name: value})) for value in values]  # type: ignore[arg-type]
        assert min(held) >= free * (1 - 1e-9), (name, held, free)
        if name in ("tp", "pp"):
            assert math.isclose(min(held), free, rel_tol=1e-9), (name, held, free)
