"""Plans: what their times and memory consist of."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import debubble as db
from debubble.planner.answer.report import costs_yaml, whole_timeline
from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.hardware.cluster import read_bytes
from debubble.planner.request import Fixed, PlanRequest, plan_request
from debubble.planner.search.bounds import least_step_of
from debubble.planner.search.evaluate import (
    CAUSES,
    Evaluated,
    costs_of,
    simulated,
    tied,
    timed,
    with_peaks,
)
from tests.planner.cases import evaluate

ASKED = plan_request("llama-3.1-8b", "h100", 32, 64, 8192)


def candidate(schedule: str = "1f1b", chunks: int = 1, **more: object) -> Candidate:
    degrees = Degrees(tp=2, dp=4, pp=4, chunks=chunks)
    stages = degrees.stages
    given = {"microbatch_size": 1, "microbatches": 16, "layers": (32 // stages,) * stages}
    return Candidate(degrees, schedule=schedule, **given | more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1), ("zb-v", 2)]
)
def test_causes_close_the_account_of_a_step(schedule: str, chunks: int) -> None:
    one = candidate(schedule, chunks)
    plan = evaluate(ASKED, one)
    timeline = simulated(ASKED.case(one))
    assert set(plan.causes) == set(CAUSES)
    assert math.isclose(sum(plan.causes.values()), plan.step_time, rel_tol=1e-9)
    assert min(plan.causes.values()) >= -1e-12
    assert plan.causes["bubble"] == pytest.approx(timeline.makespan - timeline.busy.max())
    assert plan.causes["tp"] > 0
    assert plan.causes["ep"] == plan.causes["recompute"] == 0


def test_recompute_is_a_cause_of_its_own() -> None:
    plan, again = (evaluate(ASKED, candidate(recompute=how)) for how in ("none", "full"))
    assert again.causes["recompute"] > 0.2 * again.causes["compute"]
    assert max(again.peaks) < max(plan.peaks)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
@pytest.mark.parametrize(
    ("schedule", "chunks", "microbatches"),
    [
        ("1f1b", 1, 64), ("1f1b", 1, 65), ("interleaved-1f1b", 2, 64), ("zb-h1", 1, 64),
        ("gpipe", 1, 64), ("paddle-interleaved", 2, 65), ("dualpipe-v", 2, 64),
    ],
)  # fmt: skip
def test_peaks_of_long_pipelines_are_those_of_all_microbatches(
    schedule: str, chunks: int, microbatches: int, framework: str
) -> None:
    fixed = Fixed(framework=framework)
    asked = plan_request("llama-3.1-8b", "h100", 32, 4 * microbatches, 4096, fixed=fixed)
    asked = replace(asked, limit=math.inf)
    one = candidate(schedule, chunks, microbatches=microbatches)
    whole = evaluate(asked, one)
    assert with_peaks(replace(whole, peaks=())).peaks == pytest.approx(whole.peaks, rel=1e-9)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_times_do_not_depend_on_whether_memory_counts(framework: str) -> None:
    asked = plan_request("llama-3.1-8b", "h100", 32, 64, 8192, fixed=Fixed(framework=framework))
    case = asked.case(candidate("zb-h1"))
    with_memory, without = (costs_of(case, memory=memory) for memory in (True, False))
    assert without.runtime == with_memory.runtime == asked.training.runtime.engine
    for name in ("F", "I", "W", "p2p"):
        assert getattr(without, name) == getattr(with_memory, name)


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1), ("zb-v", 2)]
)
def test_no_step_is_below_its_bound(schedule: str, chunks: int) -> None:
    for last in (2, 4, 8):
        rest = (32 - last) // (4 * chunks - 1)
        layers = (32 - last - rest * (4 * chunks - 2), *[rest] * (4 * chunks - 2), last)
        one = candidate(schedule, chunks, layers=layers)
        seconds = timed(ASKED, one)[0].step_time
        assert 0.8 * seconds < least_step_of(ASKED, one) <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_peaks_are_those_of_the_whole_memory(recompute: str) -> None:
    one = candidate(recompute=recompute)
    plan, timeline = timed(ASKED, one)
    quick, whole = with_peaks(plan, timeline), evaluate(ASKED, one)
    assert quick.peaks == whole.peaks
    assert [rank.peak for rank in whole.memory] == list(whole.peaks)
    for rank in whole.memory:
        parts = (rank.weights, rank.gradients, rank.optimizer, rank.activations)
        beside = (rank.buffers, rank.logits, rank.margin)
        assert math.isclose(sum(parts) + sum(beside), rank.peak, rel_tol=1e-9)


def test_activations_alone_are_less_than_the_peaks() -> None:
    one = candidate()
    whole = evaluate(ASKED, one)
    tight = PlanRequest(ASKED.model, ASKED.cluster, ASKED.training, ASKED.factors, limit=1e9)
    plan, timeline = timed(tight, one)
    quick = with_peaks(plan, timeline)
    assert not quick.fits
    assert all(a <= b for a, b in zip(quick.peaks, whole.peaks, strict=True))


def test_costs_of_a_plan_are_costs_for_every_command() -> None:
    plan = evaluate(ASKED, candidate("zb-v", 2))
    timeline = whole_timeline(plan)
    costs = timeline.table.costs
    assert np.allclose(timeline.peak_activation, plan.peaks)
    assert np.array_equal(db.simulate(timeline.schedule, costs).end, timeline.end)
    found = costs_yaml(plan)
    assert "unit: bytes" in found
    from debubble.interchange.cost_files import parse_costs

    read = parse_costs(found, "plan.yaml")
    assert read.costs == costs
    assert (read.ranks, read.microbatches, read.chunks) == (4, 16, 2)


def test_speed_counts_attention_by_two_conventions() -> None:
    fast = replace(evaluate(ASKED, candidate()), step_time=2.0).speed
    assert fast.tokens_per_second == 64 * 8192 / 2
    flops = fast.flops_per_gpu
    # Published FLOPs per token: 57.913 G in full, 51.470 G of the causal half.
    assert flops["full"] == pytest.approx(57.913e9 * 64 * 8192 / 2 / 32, rel=1e-4)
    assert flops["causal"] == pytest.approx(51.470e9 * 64 * 8192 / 2 / 32, rel=1e-4)
    assert fast.mfu["causal"] == flops["causal"] / 989e12


def test_plans_tie_within_the_error_of_what_differs() -> None:
    one = evaluate(ASKED, candidate())
    more = {"tp": one.causes["tp"] + 0.11, "bubble": one.causes["bubble"] - 0.1}
    other = replace(one, step_time=one.step_time + 0.01, causes=one.causes | more)
    assert tied(one, other)
    assert not tied(one, evaluate(ASKED, candidate(zero=2)))  # does what the other does
    slow = evaluate(ASKED, candidate(recompute="full"))
    assert not tied(one, slow)


@pytest.mark.parametrize(
    ("text", "size"), [("72GB", 72e9), ("80 GiB", 80 * 2**30), ("1e9", 1e9), ("1.5kb", 1500.0)]
)
def test_amounts_of_memory(text: str, size: float) -> None:
    assert read_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "72XB", "1e99GB", "nan"])
def test_amounts_that_are_none(text: str) -> None:
    with pytest.raises(db.ParameterError, match="give an amount of one GPU, such as 72GB"):
        read_bytes(text)


def test_a_limit_leaves_room_for_the_error_of_peaks() -> None:
    own, less, more = (
        plan_request("llama-3.1-8b", "h100", 32, 64, memory=memory)
        for memory in (None, 40e9, 200e9)
    )
    share = 1 + own.training.runtime.memory_error
    gpu = own.cluster.gpu.memory
    assert (own.capacity, less.capacity, more.capacity) == (gpu, gpu, 200e9)
    assert own.limit == own.safe == gpu / share
    assert less.limit == 40e9
    assert more.limit == 200e9 / share


def test_a_plan_fits_where_nine_of_ten_real_peaks_do() -> None:
    error = ASKED.training.runtime.memory_error

    def verdict(peak: float, asked: PlanRequest = ASKED) -> str:
        return Evaluated(asked, candidate(), 1.0, (peak, peak / 2)).verdict

    assert verdict(ASKED.limit) == "yes"
    assert verdict(ASKED.limit * (1 + 1e-6)) == "maybe"
    assert verdict(ASKED.capacity) == "maybe"
    assert verdict(ASKED.capacity / (1 - error) * (1 + 1e-6)) == "no"
    asked = plan_request("llama-3.1-8b", "h100", 32, 64, memory=40e9)
    assert verdict(40e9, asked) == "yes"
    assert verdict(41e9, asked) == "no"


def test_a_limit_that_is_taken_away_says_nothing_of_the_gpu() -> None:
    wide = replace(ASKED, limit=math.inf)
    plan = Evaluated(wide, candidate(), 1.0, (ASKED.capacity,))
    assert plan.fits
    assert plan.verdict == "maybe"
    assert Evaluated(replace(wide, capacity=math.inf), candidate(), 1.0, (1e15,)).verdict == "yes"
