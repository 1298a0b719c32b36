"""Law of the same question: a plan for a framework runs there, fits there, and is its best."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.planner.answer.searches import COMPARED, recommended_first, simplicity
from debubble.planner.frameworks.table import FRAMEWORKS, broken
from debubble.planner.search.evaluate import Evaluated, tied
from tests.planner.cases import no_more_gpus

SMALL = {"model": "llama-3.2-1b", "gpu": "h100", "gpus": 4, "batch": 8, "pp": 2, "cp": 1}
CASES: list[Any] = [
    SMALL,
    *[
        pytest.param(one, marks=pytest.mark.slow)
        for one in (
            {"model": "llama-3.1-8b", "gpu": "h100", "gpus": 8, "batch": 16, "pp": 4, "cp": 1},
            {"model": "llama-3.1-8b", "gpu": "mi300x", "gpus": 4, "batch": 8, "pp": 2, "zero": 1},
            {
                "model": "mixtral-8x7b",
                "gpu": "h200",
                "gpus": 16,
                "batch": 16,
                "ep": 8,
                "tp": 2,
                "cp": 1,
            },
        )
    ],
]
SCHEDULES = ("1f1b", "interleaved-1f1b", "zb-h1")
HELD = {"microbatch_size": 1, "recompute": "none", "schedule": SCHEDULES}


@pytest.fixture(scope="module", autouse=True)
def these_gpus() -> Iterator[None]:
    with no_more_gpus():
        yield


@pytest.fixture(scope="module", params=CASES, ids=lambda one: f"{one['model']} on {one['gpu']}")
def plans(request: pytest.FixtureRequest) -> tuple[dict[str, Any], db.Plan]:
    asked = request.param | HELD
    return asked, db.plan(**asked)


def test_every_plan_runs_and_fits_in_its_framework(plans: tuple[dict[str, Any], db.Plan]) -> None:
    _, plan = plans
    for one in plan.found.plans:
        name = one.request.fixed.framework
        assert name is not None
        assert not broken(one.case, name)
        assert one.request.training.runtime is FRAMEWORKS[name].runtime
        assert max(one.peaks) <= one.request.limit <= one.request.capacity
        assert one.request.cluster.gpu.maker in FRAMEWORKS[name].makers


def test_the_default_is_as_fast_as_every_framework(plans: tuple[dict[str, Any], db.Plan]) -> None:
    asked, plan = plans
    fastest = min(one.step_time for one in plan.found.plans)
    for name in FRAMEWORKS:
        if name in plan.found.refused:
            with pytest.raises(db.ParameterError):
                db.plan(**asked, framework=name)
            continue
        own = db.plan(**asked, framework=name, top=1)
        assert not own.fits or fastest <= own.found.plans[0].step_time * (1 + 1e-9), name


def test_the_recommended_plan_is_first_and_the_simplest_of_the_ties(
    plans: tuple[dict[str, Any], db.Plan],
) -> None:
    _, plan = plans
    data = plan.to_dict()
    assert [one["recommended"] for one in data["plans"]] == [
        number == 0 for number in range(len(data["plans"]))
    ]
    assert data["plans"][0]["framework"] == plan.framework
    best, *others = plan.found.plans
    fastest = min(plan.found.plans, key=lambda one: one.step_time)
    assert best is fastest or tied(fastest, best)
    for one in others:
        if tied(fastest, one) or one is fastest:
            assert simplicity(best) <= simplicity(one)
    steps = [one.step_time for one in others]
    assert steps == sorted(steps)


def test_one_plan_is_shown_once_with_all_that_run_it(
    plans: tuple[dict[str, Any], db.Plan],
) -> None:
    _, plan = plans
    found = plan.to_dict()["plans"]
    for one in found:
        assert one["framework"] not in one["also_runs_in"]
        for name in one["also_runs_in"]:
            assert not all(line.startswith("#") for line in one["flags"][name].splitlines())
    keys = [(str(one["degrees"]), one["schedule"], one["step_time"]) for one in found]
    assert len(keys) == len(set(keys))


def test_files_have_the_flags_that_are_printed(
    plans: tuple[dict[str, Any], db.Plan], tmp_path: Path
) -> None:
    _, plan = plans
    assert plan.framework is not None
    row = FRAMEWORKS[plan.framework]
    for ending in row.files:
        path = tmp_path / f"{row.name}{ending}"
        assert plan.save(str(path))[0] == str(path)
        text = path.read_text(encoding="utf-8")
        assert len(max(text.splitlines(), key=len)) < 200
        if ending == ".sh":
            words = shlex.split(text, comments=True)
            assert [one for one in shlex.split(plan.flags(row.name), comments=True)
                    if one not in words] == []  # fmt: skip


def plan_of(seconds: float, like: Evaluated, **causes: float) -> Evaluated:
    from dataclasses import replace

    return replace(like, step_time=seconds, causes=dict.fromkeys(like.causes, 0.0) | causes)


def test_ties_go_to_the_simplest() -> None:
    asked = SMALL | HELD | {"schedule": ("1f1b", "interleaved-1f1b"), "framework": "megatron"}
    found = db.plan(**asked, top=COMPARED).found.plans
    plain = next(one for one in found if one.candidate.degrees.chunks == 1)
    many = next(one for one in found if one.candidate.degrees.chunks > 1)
    slow = plan_of(1.01, plain, compute=0.8, bubble=0.21)
    fast = plan_of(1.0, many, compute=0.91, bubble=0.09)
    assert tied(fast, slow)
    assert recommended_first([fast, slow])[0] is slow
    clear = plan_of(1.2, plain, compute=0.9, bubble=0.3)
    assert recommended_first([fast, clear])[0] is fast
