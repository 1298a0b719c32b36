"""Published steps, each predicted with the efficiency of another one."""

from dataclasses import replace
from itertools import combinations

import pytest

from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.case import Case
from debubble.planner.cost.published_efficiencies import shipped_factors
from debubble.planner.cost.step import step_time
from debubble.planner.frameworks.deepspeed.runtime import DEEPSPEED
from debubble.planner.hardware.cluster import Cluster, find_gpu
from tests.planner.published import (
    Published,
    gpt,
    gpt_175b,
    korthikanti,
    llama_70b,
    llama_405b,
    nemotron_340b,
)

SIZES = ("22B", "175B", "530B", "1T")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("known", ["full", "selective"])
def test_one_recompute_predicts_the_other(size: str, known: str) -> None:
    other = {"full": "selective", "selective": "full"}[known]
    case = korthikanti(size, other)
    factors = korthikanti(size, known).calibrated()
    assert case.seconds(factors) == pytest.approx(case.measured, rel=0.03)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_one_model_predicts_the_others(size: str, recompute: str) -> None:
    factors = korthikanti("175B", "selective").calibrated()
    case = korthikanti(size, recompute)
    assert case.seconds(factors) == pytest.approx(case.measured, rel=0.08)


def test_one_row_of_h100_predicts_others_of_its_degree() -> None:
    for known, other in ((llama_70b(), gpt_175b()), (llama_405b(), nemotron_340b())):
        assert other.seconds(known.calibrated()) == pytest.approx(other.measured, rel=0.08)


def test_one_row_of_h100_predicts_other_degrees() -> None:
    factors = llama_70b().calibrated()
    for other in (llama_405b(), nemotron_340b()):
        assert other.seconds(factors) == pytest.approx(other.measured, rel=0.08)


def test_shipped_efficiencies_predict_steps_that_gave_none() -> None:
    for case in (nemotron_340b(), gpt_175b(), llama_405b()):
        assert case.seconds(shipped_factors()) == pytest.approx(case.measured, rel=0.08)


def test_a_model_of_530b_takes_what_it_took_on_280_nodes() -> None:
    # MT-NLG, arXiv 2201.11990, section 2.4: 60.1 s.
    case = korthikanti("530B", "full")
    training = replace(
        case.training, batch=1920, precision="bf16", gradient_bytes=4, runtime=DEEPSPEED
    )
    degrees = Degrees(tp=8, dp=8, pp=35)
    candidate = Candidate(degrees, 1, 240, "1f1b", (3,) * 35, "full", 1)
    cluster = Cluster(case.cluster.gpu, 2240)
    found = step_time(Case(case.model, cluster, training, candidate, shipped_factors()))
    assert found.seconds == pytest.approx(60.1, rel=0.05)


def test_interleaving_gains_what_torchtitan_measured() -> None:
    # 128 and 100 tokens per second and GPU: Llama 3.1 405B on 512 H100, 8 microbatches.
    from planner_parts import gain_of_two_chunks

    assert gain_of_two_chunks() == pytest.approx(1.28, rel=0.05)


def test_a_ramp_of_the_batch_takes_what_it_took() -> None:
    # BigScience, 182B on 384 A100: 35.77, 59.65, 83.11 and 107.12 s for 512 to 2048 sequences.
    model = gpt(72, 14336, 64, 250880)
    cluster = Cluster(replace(find_gpu("a100-80gb"), nic=6.25e9), 384)
    training = replace(korthikanti("175B", "full").training, runtime=DEEPSPEED)
    degrees, factors = Degrees(tp=4, pp=12, dp=8), shipped_factors()
    for batch, seconds in ((512, 35.77), (1024, 59.65), (1536, 83.11), (2048, 107.12)):
        candidate = Candidate(degrees, 2, batch // 16, "1f1b", (6,) * 12, "full", 1)
        found = step_time(Case(model, cluster, replace(training, batch=batch), candidate, factors))
        assert found.seconds == pytest.approx(seconds, rel=0.06)


PLANS = {
    (4, 12, 2): 110.48, (4, 6, 2): 111.71, (4, 12, 4): 111.89, (2, 12, 2): 112.50,
    (8, 6, 4): 114.11, (8, 12, 4): 117.07, (4, 6, 4): 117.11, (2, 24, 1): 119.53,
    (2, 24, 2): 122.75, (8, 12, 2): 128.82, (4, 24, 1): 130.60,
}  # fmt: skip
"""Seconds by tp, pp and microbatch size: BigScience's 181B on 384 A100, 25 February 2022."""


def test_plans_rank_as_they_ran() -> None:
    model = gpt(72, 14336, 64, 250880)
    cluster = Cluster(replace(find_gpu("a100-80gb"), nic=6.25e9), 384)
    training = replace(korthikanti("175B", "full").training, runtime=DEEPSPEED, batch=2048)

    def case(tp: int, pp: int, size: int) -> Published:
        degrees = Degrees(tp=tp, pp=pp, dp=384 // tp // pp)
        layers, count = (72 // pp,) * pp, 2048 // size // degrees.dp
        candidate = Candidate(degrees, size, count, "1f1b", layers, "full", 1)
        return Published(model, cluster, training, candidate, PLANS[tp, pp, size])

    factors = case(4, 12, 2).calibrated()
    found = {plan: case(*plan).seconds(factors) for plan in PLANS}
    signs = [(found[a] - found[b]) * (PLANS[a] - PLANS[b]) for a, b in combinations(PLANS, 2)]
    assert sum(sign > 0 for sign in signs) - sum(sign < 0 for sign in signs) >= 0.6 * len(signs)
    for plan, seconds in PLANS.items():
        assert found[plan] == pytest.approx(seconds, rel=0.09)


def test_the_step_ends_when_every_rank_has_stepped() -> None:
    case = llama_70b()
    step = step_time(case.case(shipped_factors()))
    assert step.seconds >= step.timeline.makespan + max(step.ends.optimizer)
    assert step.seconds <= step.timeline.makespan + sum(
        max(part) for part in (step.ends.gradients, step.ends.optimizer, step.ends.weights)
    )
