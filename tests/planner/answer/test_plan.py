"""``debubble.plan``: the answer of the command, as an object."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest

import debubble as db
from debubble.cli.output import json_text
from debubble.planner.answer.why import why_not
from debubble.planner.options import PLAN_OPTIONS
from tests.command import call

SMALL = {"gpu": "h100", "gpus": 4, "batch": 8, "seq": 2048}
HELD = {"pp": 2, "schedule": "1f1b", "microbatch_size": 1, "zero": 1}


@pytest.fixture(scope="module")
def plan() -> db.Plan:
    return db.plan("llama-3.2-1b", **SMALL, **HELD, why="recompute=full", top=3)  # type: ignore[arg-type]


def test_parameters_are_the_options_of_the_command() -> None:
    assert {*inspect.signature(db.plan).parameters} == {row.name for row in PLAN_OPTIONS}


@pytest.mark.slow
def test_data_is_that_of_the_command(plan: db.Plan) -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (SMALL | HELD).items()]
    told = call("plan", "llama-3.2-1b", *words, "--why", "recompute=full", "--top", 3, "--json")
    # The command prints numbers without digits of rounding.
    assert json_text(plan.to_dict()) == told.out.strip()


def test_a_plan_can_be_simulated_again(plan: db.Plan) -> None:
    timeline = db.simulate(plan.schedule, plan.costs)
    assert timeline.makespan == pytest.approx(plan.timeline.makespan)
    assert timeline.makespan < plan.step_seconds
    assert plan.schedule.ranks == len(plan.memory) == 2
    assert max(rank.peak for rank in plan.memory) == max(plan.best.peaks)
    low, high = plan.step_range
    assert 0 < low < plan.step_seconds < high
    assert plan.step_error == pytest.approx(max(plan.step_seconds - low, high - plan.step_seconds))


def test_alternatives_are_plans(plan: db.Plan) -> None:
    assert len(plan.alternatives) == 2
    for other in plan.alternatives:
        assert other.step_seconds >= plan.step_seconds
        assert other.candidate != plan.candidate
        assert other.to_dict()["plans"] in [[one] for one in plan.to_dict()["plans"]]
        assert "--micro-batch-size 1" in other.flags("megatron")


def test_texts_say_what_is_planned(plan: db.Plan) -> None:
    assert "per step with" in repr(plan)
    assert "recompute=full: " in str(plan)
    with pytest.raises(db.ParameterError, match="did you mean 'megatron'"):
        plan.flags("megatorn")


def test_a_file_is_written_by_its_name(plan: db.Plan, tmp_path: Path) -> None:
    with pytest.raises(db.ParameterError, match="path is 123; give the name of a file"):
        plan.save(123)  # type: ignore[arg-type]
    assert plan.save(tmp_path / "costs.yaml") == [str(tmp_path / "costs.yaml")]
    with pytest.raises(db.ParameterError, match=r"Primus is not for NVIDIA's GPUs; .* is plan.sh"):
        plan.save("run.primus.yaml")


def test_why_a_faster_plan_says_what_got_faster(plan: db.Plan) -> None:
    [faster] = plan.why
    assert faster.plan is not None
    back = why_not("recompute=none", faster.plan, lambda: plan.found)
    assert re.search(r"faster than .*: recompute -", back.reason)
    stopped = replace(plan.found, interrupted=True)
    assert why_not("zero=1", faster.plan, lambda: stopped).reason == (
        f"best so far (search stopped), {back.reason}"
    )
    stopped.plans = []
    assert why_not("zero=1", plan.best, lambda: stopped).reason == "none so far (search stopped)"


def test_what_does_not_fit_says_so() -> None:
    found = db.plan("llama-3.2-1b", **SMALL, **HELD, memory=5e9)  # type: ignore[arg-type]
    assert not found.fits
    assert found.alternatives == ()
    assert found.to_dict()["plans"] == []
    with pytest.raises(db.ParameterError, match=r"no plan fits into 5\.0 GB"):
        found.schedule  # noqa: B018


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gpus": 4.5}, "gpus is 4.5; give a whole number"),
        ({"layers": "8,x"}, "layers is '8,x'; give a number for every stage"),
        ({"layers": 16}, "layers is 16; give a number for every stage"),
        ({"schedule": 3}, "schedule is 3; give a name such as 1f1b"),
        ({"recompute": "ful"}, "recompute is 'ful'; did you mean 'full'"),
        ({"tp": 3}, "tp 3 does not divide 4 GPUs; the nearest"),
        ({"why": "pp"}, "give a value, too, such as pp=2"),
        ({"why": {"tp": 2}}, "why is {'tp': 2}; give a condition such as 'pp=16', or a list"),
        ({"why": "tp=2,pp=2"}, "why is 'tp=2,pp=2'; give one condition, such as tp=2, and hold"),
        ({"why": "framework=foo"}, "unknown framework 'foo'; known"),
        ({"why": "precision=fp9"}, "'precision=fp9'; did you mean"),
        ({"why": "schedule=1f1c"}, "unknown schedule '1f1c'; did you mean '1f1b'"),
        ({"gpu": None}, "gpu is None; give such as 'h100'"),
        ({"gpus": None}, "gpus is None; give such as 8"),
        ({"model": None}, "model is None; give a name such as"),
        ({"model": 7}, "model is 7; give a name such as"),
        ({"model": {"layers": 3}}, "model is {'layers': 3}; give a name such as"),
        ({"memory": "7 furlongs"}, "memory"),
        ({"imbalance": "much"}, "imbalance is 'much'; give a number"),
        ({"time_limit": 0, "optimize": 1}, "time_limit is '0'; it is a positive number"),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(db.DebubbleError, match=message):
        db.plan(**{"model": "llama-3.2-1b", **SMALL, **wrong})  # type: ignore[arg-type]


def test_a_plan_that_no_framework_runs_is_refused_with_the_way_out() -> None:
    asked = SMALL | {"pp": 2, "schedule": "zb-h1", "microbatch_size": 1, "zero": 1}
    with pytest.raises(db.ParameterError, match="the nearest that works is framework any") as told:
        db.plan("llama-3.2-1b", **asked)  # type: ignore[arg-type]
    assert "torchtitan: " in str(told.value)
    plan = db.plan("llama-3.2-1b", **asked, framework="any")  # type: ignore[arg-type]
    assert plan.framework is None
    assert plan.to_dict()["plans"][0]["framework"] is None
    with pytest.raises(db.ParameterError, match=r"checked for none, .* --framework torchtitan or"):
        plan.save("plan.py")
    with pytest.raises(db.ParameterError, match="megatron does not run this"):
        db.plan("llama-3.2-1b", **asked, framework="megatron")  # type: ignore[arg-type]


def test_a_framework_may_be_asked_for_with_why() -> None:
    asked = SMALL | HELD | {"schedule": "1f1b"}
    plan = db.plan("llama-3.2-1b", **asked, why=["framework=deepspeed", "framework=megatron"])  # type: ignore[arg-type]
    deepspeed, megatron = plan.why
    assert deepspeed.plan is not None
    assert deepspeed.plan.request.fixed.framework == "deepspeed"
    assert megatron.reason == "the best plan has it"


def test_orders_are_searched_for_frameworks_that_take_them() -> None:
    asked = SMALL | HELD | {"schedule": "1f1b", "framework": "megatron", "optimize": 1}
    with pytest.raises(db.ParameterError, match="framework torchtitan, automodel or any"):
        db.plan("llama-3.2-1b", **asked)  # type: ignore[arg-type]


def test_values_may_be_lists() -> None:
    found = db.plan(
        "llama-3.2-1b", **SMALL, pp=2, schedule=["1f1b", "gpipe"], layers=[8, 8], zero=1,
        microbatch_size=1,
    )  # type: ignore[arg-type]  # fmt: skip
    assert found.candidate.layers == (8, 8)
    assert {one["schedule"] for one in found.to_dict()["plans"]} <= {"1f1b", "gpipe"}
