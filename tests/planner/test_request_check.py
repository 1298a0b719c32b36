"""Bad requests get the value, the limit, and what works instead."""

from __future__ import annotations

import re
from typing import Any

import pytest

import debubble as db
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.model.transformer import Model
from debubble.planner.request import Fixed, PlanRequest, check_precision, plan_request
from debubble.planner.request_check import check_request
from debubble.planner.search.groups import candidates
from tests.planner.cases import Gpus, dense, evaluate, latent, mixture


def request(model: Model, cluster: Any, training: Training, fixed: Fixed) -> PlanRequest:
    return PlanRequest(model, cluster, training, Factors(), 80e9, fixed)


def check(model: Model, gpus: int, batch: int, sequence: int = 8192, **fixed: Any) -> bool:
    cluster: Any = Gpus(gpus)
    check_request(request(model, cluster, Training(batch, sequence), Fixed(**fixed)))
    return True


def test_what_can_be_met_is_taken() -> None:
    assert check(dense(), 64, 128)
    assert check(dense(), 64, 128, tp=8, pp=4, schedules=("zbv",), recompute="full", zero=1)
    assert check(dense(), 64, 128, layers=(7, 9, 8, 8), framework="megatron")
    assert check(mixture(), 64, 128, ep=8, framework="torchtitan")
    assert check(latent(), 2048, 4096, pp=16, ep=64, framework="megatron")
    assert check(dense(), 64, 128, recompute="full:3", framework="megatron")


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "fixed", "message"),
    [
        (dense(), 64, 128, {"tp": 3}, "tp 3 does not divide 64 GPUs; the nearest that works is "
         "tp 4"),
        (dense(), 96, 96, {"tp": 3}, "tp 3 does not divide 32 heads; the nearest that works is "
         "tp 4"),
        (dense(), 64, 128, {"tp": 8, "pp": 16}, "tp 8 × pp 16 = 128 does not divide 64 GPUs; the "
         "nearest that work are tp 4, or pp 8, or 128 GPUs"),
        (dense(), 64, 128, {"tp": 4, "cp": 1, "dp": 4, "pp": 2}, "tp 4 × cp 1 × dp 4 × pp 2 are 32 "
         "GPUs of 64; the nearest that work are tp 8, or cp 2, or dp 8, or pp 4"),
        (dense(), 64, 100, {"dp": 8}, "dp 8 does not divide a batch of 100; the nearest that work "
         "are dp 4, or a batch of 104"),
        (dense(), 64, 128, {"microbatch_size": 5}, "microbatch size 5 does not divide a batch of "
         "128; the nearest that work are microbatch size 4"),
        (dense(), 64, 128, {"dp": 4, "microbatch_size": 64}, "dp 4 × microbatch size 64 = 256 does "
         "not divide a batch of 128; the nearest that work are microbatch size 32, or dp 2"),
        (dense(), 64, 128, {"pp": 64}, "pp 64 makes 64 stages of 32 layers; embedding and head can "
         "be stages of their own, so that 34 are the most; the nearest that works is pp 32"),
        (dense(), 64, 128, {"pp": 16, "chunks": 3}, "pp 16 × chunks 3 makes 48 stages"),
        (dense(), 64, 128, {"ep": 4}, "ep 4, and the model has no experts; the nearest that works "
         "is ep 1"),
        (mixture(), 64, 128, {"ep": 3}, "ep 3 does not divide 8 experts; the nearest that works is "
         "ep 4"),
        (dense(), 64, 128, {"schedules": ("zb",)}, "unknown schedule 'zb'; did you mean"),
        (dense(), 64, 128, {"schedules": ("dualpipe",)}, "'dualpipe' is not for plans: it holds "
         "two copies of the model; did you mean 'dualpipe-v'"),
        (dense(), 64, 128, {"schedules": ("zb-v",), "framework": "megatron"}, "no plan has a batch "
         "of 128 on 64 GPUs with schedule zb-v, framework megatron (megatron does not run "
         "this: no schedule 'zb-v' and no placement 'V'; it has 1f1b, interleaved-1f1b, "
         "interleaved-overlap); the nearest that work are schedule 1f1b, or framework "
         "torchtitan"),
        (dense(), 64, 128, {"schedules": ("1f1b",), "chunks": 2}, "no plan has a batch of 128 on "
         "64 GPUs with chunks 2, schedule 1f1b; the nearest that work are chunks 1, or schedule "
         "interleaved-1f1b"),
        (dense(), 64, 128, {"recompute": "ful"}, "recompute is 'ful'; did you mean 'full'?"),
        (dense(), 64, 128, {"recompute": "full:x"}, "recompute is 'full:x'; give a number of "
         "layers, such as full:1"),
        (dense(), 64, 128, {"recompute": "full:0"}, "recompute is 'full:0'; give a number of "
         "layers, such as full:1"),
        (dense(), 64, 128, {"recompute": "full:33"}, "recompute full:33 of a model with 32 layers; "
         "the nearest that works is recompute full"),
        (dense(), 64, 128, {"recompute": "full:3", "framework": "torchtitan"}, "recompute full:3, "
         "of some layers of a stage, is not for torchtitan; the nearest that works is recompute "
         "full"),
        (dense(), 64, 128, {"zero": 5}, "zero is 5; it goes from 0 to 3; the nearest is 3"),
        (dense(), 64, 128, {"tp": 0}, "tp is 0; it is at least 1"),
        (dense(), 64, 128, {"framework": "x"}, "unknown framework 'x'; known: any, automodel"),
        (dense(), 64, 0, {}, "batch is 0; it is at least 1"),
        (dense(), 64, 128, {"layers": (8, 8, 8, 9)}, "layers 8/8/8/9 are 33, and the model has 32; "
         "the nearest that works is layers 8/8/8/8"),
        (dense(), 64, 128, {"layers": (8, 8, 8, 8), "pp": 8}, "layers names 4 stages, which are "
         "not pp 8 × chunks any; the nearest that work are pp 4, or layers 4/4/4/4/4/4/4/4"),
        (dense(), 64, 128, {"tp": 16, "framework": "torchtitan"}, "torchtitan does not run this: "
         "tp 16 does not divide 8 heads of keys and values; the nearest that works is tp 8"),
        (dense(tied=True), 64, 128, {"pp": 4, "framework": "torchtitan"}, "torchtitan does not run "
         "this: tied embeddings with pp 4; the nearest that works is pp 1"),
        (latent(), 2048, 4096, {"pp": 16, "framework": "torchtitan"}, "torchtitan does not run "
         "this: 1 layer of multi-token prediction with pp 16 and cp 1; the nearest that works is "
         "MTP layers 0"),
        (latent(), 2048, 4096, {"framework": "deepspeed"}, "deepspeed does not run this: 1 layer "
         "of multi-token prediction; the nearest that works is framework megatron"),
        (dense(), 64, 16, {"pp": 8, "dp": 8, "schedules": ("dualpipe-v",)}, "no plan has a batch "
         "of 16 on 64 GPUs with dp 8, pp 8, schedule dualpipe-v; the nearest that work are dp 1"),
        (dense(), 1000, 1024, {}, "no plan has a batch of 1024 on 1000 GPUs; the nearest that work "
         "are a batch of 1025, or 992 GPUs"),
    ],
)  # fmt: skip
def test_what_cannot_be_met_is_refused(
    model: Model, gpus: int, batch: int, fixed: dict[str, Any], message: str
) -> None:
    with pytest.raises(db.ParameterError) as caught:
        check(model, gpus, batch, **fixed)
    text = str(caught.value)
    assert text.startswith(message)
    assert "\n" not in text


def test_sequences_and_precisions_are_checked() -> None:
    with pytest.raises(db.ParameterError, match="the nearest that works is a sequence of 8192"):
        check(dense(), 64, 128, 8191, cp=2)
    cluster: Any = Gpus(8)
    with pytest.raises(db.ParameterError, match=r"precision is 'fp4'; (did you mean|known)"):
        check_request(request(dense(), cluster, Training(8, 64, precision="fp4"), Fixed()))


def test_every_offer_of_a_number_works() -> None:
    cluster: Any = Gpus(48)
    for name, value in (("tp", 7), ("pp", 5), ("dp", 9), ("cp", 32), ("microbatch_size", 11)):
        with pytest.raises(db.ParameterError) as caught:
            check(dense(), 48, 96, **{name: value})
        said = name.replace("_", " ")
        [offer] = re.findall(rf"nearest that work[s are i]* {said} ([0-9]+)", str(caught.value))
        fixed = Fixed(**{name: int(offer)})
        assert next(
            candidates(PlanRequest(dense(), cluster, Training(96, 8192), fixed=fixed)), None
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held", "precision", "message"),
    [
        ({"schedules": ("zb-v",), "framework": "megatron"}, "bf16",
         r"\(megatron does not run this: no schedule 'zb-v' .* it has 1f1b, .*\); .* 1f1b"),
        ({"zero": 0, "dp": 4, "framework": "automodel"}, "bf16",
         r"\(automodel does not run this: dp_replicate_size 4 .*\); the nearest .* are dp 1"),
        ({"framework": "torchtitan"}, "fp16",
         "torchtitan does not run this: precision fp16; the nearest that works is precision bf16"),
    ],
)  # fmt: skip
def test_what_a_framework_does_not_run_says_which_and_why(
    held: dict[str, Any], precision: str, message: str
) -> None:
    training = Training(64, 8192, precision)
    asked = plan_request("llama-3.1-8b", "h100", 8, 64, 8192)
    with pytest.raises(db.ParameterError, match=message):
        check_request(request(asked.model, asked.cluster, training, Fixed(**held)))


def test_gpus_without_products_in_8_bits_are_refused() -> None:
    check_precision("fp8", GPUS["h100"])
    with pytest.raises(db.ParameterError, match=r"a100-80gb has no products in 8 bits; .* bf16"):
        check_precision("fp8", GPUS["a100-80gb"])
    with pytest.raises(db.ParameterError, match="precision is 'fp9'; did you mean 'fp8'"):
        check_precision("fp9", GPUS["h100"])
    with pytest.raises(db.ParameterError, match="mi250x has no products"):
        plan_request("llama-3.1-8b", "mi250x", 8, 8, 4096, precision="fp8")


def test_fp8_is_faster_and_smaller_and_its_peak_is_its_own() -> None:
    candidate = Candidate(Degrees(dp=8), 1, 1, "1f1b", (32,), zero=2)
    questions = [
        plan_request("llama-3.1-8b", "h100", 8, 8, 4096, precision=precision)
        for precision in ("bf16", "fp8")
    ]
    wide, narrow = (evaluate(asked, candidate) for asked in questions)
    assert narrow.step_time < wide.step_time
    assert max(narrow.peaks) < max(wide.peaks)
    slow, fast = (
        plan.speed.mfu["full"] for asked, plan in zip(questions, (wide, narrow), strict=True)
    )
    assert fast / slow == pytest.approx(wide.step_time / narrow.step_time * 989 / 1979)
