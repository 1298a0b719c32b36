"""Verdicts on plans that are known to have run, or to have run out of memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest

from debubble.planner.answer.cautions import cautions
from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.memory.retries import RETRY, chance_of_retries
from debubble.planner.plannable import first_cut
from debubble.planner.request import Fixed, plan_request
from debubble.planner.search.evaluate import Evaluated
from tests.planner.cases import evaluate

MOST = 16
"""Microbatches: more of them hold no more memory."""


@dataclass(frozen=True)
class Known:
    """A plan of Megatron-LM with one sequence per microbatch, and its verdict."""

    verdict: str
    model: str
    gpu: str
    degrees: Degrees
    sequence: int = 4096
    recompute: str = "none"
    state: dict[str, Any] = field(default_factory=dict)


KNOWN = {
    # MLPerf training 5.1: 50.0 s and 13.14 s per step.
    "Nebius on H200": Known(
        "yes", "llama-3.1-405b", "h200", Degrees(4, 2, 1, 8, 8, 8), 8192,
        state={"precision": "fp8", "gradients": "bf16"},
    ),
    "NVIDIA on GB300": Known(
        "yes", "llama-3.1-405b", "gb300", Degrees(2, 2, 1, 16, 8, 8), 8192,
        state={"precision": "nvfp4", "gradients": "bf16", "weights": "fp4"},
    ),
    # Ran out of memory with 210.08 GiB allocated, 3.87 of them by CUDA graphs, and 59.51 reserved.
    "Megatron-Bridge#2221": Known(
        "maybe", "llama-3.1-405b", "gb300", Degrees(4, 1, 1, 8, 8, 4), 8192,
        state={"precision": "nvfp4", "graph_pools": 3.87 * (1 << 30)},
    ),
    # Ran out in 30 to 60 % of runs.
    "Megatron-Bridge#3107": Known(
        "maybe", "llama-3.1-70b", "h100", Degrees(4, 1, 1, 2, 4, 5), state={"precision": "fp8"}
    ),
    # 32 GPUs are the fewest on which people report it without full recompute.
    "16 A100": Known("maybe", "llama-2-70b", "a100-80gb", Degrees(8, 1, 1, 1, 2)),
    "16 A100, full": Known(
        "maybe", "llama-2-70b", "a100-80gb", Degrees(8, 1, 1, 1, 2), recompute="full"
    ),
    "32 A100": Known("yes", "llama-2-70b", "a100-80gb", Degrees(8, 1, 1, 1, 4)),
    "8 A100": Known("no", "llama-2-70b", "a100-80gb", Degrees(8), recompute="full"),
}  # fmt: skip


@lru_cache
def planned(name: str) -> Evaluated:
    """A known plan, evaluated."""
    one = KNOWN[name]
    asked = plan_request(
        one.model, one.gpu, one.degrees.gpus, one.degrees.dp * MOST, one.sequence,
        fixed=Fixed(framework="megatron"), **one.state,
    )  # fmt: skip
    cut = first_cut(len(asked.model.layers), one.degrees.stages, 0)
    schedule = "interleaved-1f1b" if one.degrees.chunks > 1 else "1f1b"
    return evaluate(asked, Candidate(one.degrees, 1, MOST, schedule, cut, one.recompute))


@pytest.mark.parametrize("name", KNOWN)
def test_plans_that_ran_fit_and_those_that_ran_out_may_not(name: str) -> None:
    plan = planned(name)
    assert plan.verdict == KNOWN[name].verdict, max(plan.peaks)


def test_the_capacity_of_gb300_is_what_a_process_reports() -> None:
    assert planned("Megatron-Bridge#2221").request.capacity == 276.5 * (1 << 30)


def test_a_plan_that_may_not_fit_is_warned_of_with_its_retries() -> None:
    plan = planned("Megatron-Bridge#3107")
    chance, seconds = plan.retries
    assert 0.1 < chance < 0.9
    rank = plan.memory[plan.fullest]
    held = rank.activations + rank.buffers + rank.logits
    assert seconds == pytest.approx(RETRY * held * MOST)
    assert cautions(plan)[0].startswith("may not fit: 81.2 GB ± 8.1 GB of 85.0 GB")


def test_a_plan_that_fits_pays_nothing() -> None:
    plan = planned("32 A100")
    assert plan.retries == (0, 0)
    assert cautions(plan) == []


def test_a_tenth_of_peaks_exceeds_the_error() -> None:
    assert chance_of_retries(100, 110, 0.1) == pytest.approx(0.1, abs=1e-4)
    assert chance_of_retries(100, 100, 0.1) == 0.5
    assert chance_of_retries(110, 100, 0.1) == pytest.approx(0.9, abs=1e-4)
    assert (chance_of_retries(1, 2, 0), chance_of_retries(2, 1, 0)) == (0, 1)


def test_what_is_kept_in_fewer_bytes_never_makes_a_verdict_worse() -> None:
    plan = planned("Nebius on H200")
    kinds: list[dict[str, Any]] = [
        {"weights": "fp8", "gradient_bytes": 2, "moment_bytes": 1, "offload_optimizer": True},
        {"weights": "fp8", "gradient_bytes": 2, "moment_bytes": 1},
        {"weights": "fp8", "gradient_bytes": 2, "moment_bytes": 2},
        {"weights": "fp8", "gradient_bytes": 2},
        {"weights": "fp8"},
        {"weights": "bf16"},
        {"weights": "bf16", "graph_pools": 4e9},
    ]
    base = replace(plan.request.training, gradient_bytes=4)
    asked = [replace(plan.request, training=replace(base, **kind)) for kind in kinds]
    plans = [evaluate(one, plan.candidate) for one in asked]
    order = ("yes", "maybe", "no")
    for less, more in pairwise(plans):
        assert max(less.peaks) < max(more.peaks)
        assert order.index(less.verdict) <= order.index(more.verdict)
    assert plans[0].verdict == "yes"
    assert plans[-1].verdict == "no"
