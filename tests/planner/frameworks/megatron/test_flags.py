"""Our arguments in Megatron-LM's own parser and checks: taken, and meant as we mean them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import yaml

from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.case import Case
from debubble.planner.frameworks.megatron.flags import megatron_lines, split_lines
from debubble.planner.frameworks.megatron.model_arguments import model_arguments, not_described
from debubble.planner.frameworks.primus.flags import plan_values
from debubble.planner.frameworks.table import FRAMEWORKS
from debubble.planner.model.files import read_model
from debubble.planner.model.mixers import Recurrence
from debubble.planner.model.transformer import Layer, Mlp
from tests import wheels
from tests.planner import megatron
from tests.planner.cases import case, changed, dense, latent, mixture, sampled
from tests.planner.frameworks.test_rules import EXAMPLES, RULES


@pytest.mark.parametrize(
    ("cut", "ranks", "chunks", "lines"),
    [
        ((8,) * 4, 4, 1, []),
        ((2,) * 16, 4, 4, ["--num-layers-per-virtual-pipeline-stage 2"]),
        ((7, 8, 8, 7), 4, 1,
         ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]),
        ((2, 2, 2, 2, 2, 2, 2, 1), 4, 2,
         ["--num-virtual-stages-per-pipeline-rank 2", "--account-for-loss-in-pipeline-split"]),
        ((1, 2, 2, 2), 4, 1, ["--account-for-embedding-in-pipeline-split"]),
        ((5, 9, 9, 9), 4, 1, ["--decoder-first-pipeline-num-layers 5"]),
        ((9, 9, 9, 5), 4, 1, ["--decoder-last-pipeline-num-layers 5"]),
        ((4, 9, 9, 5), 4, 1,
         ["--decoder-first-pipeline-num-layers 4", "--decoder-last-pipeline-num-layers 5"]),
        ((6, 2), 2, 1, ["--decoder-first-pipeline-num-layers 6"]),
        ((2, 4, 4, 3) * 2, 4, 2,
         ["--num-virtual-stages-per-pipeline-rank 2", "--decoder-first-pipeline-num-layers 4",
          "--decoder-last-pipeline-num-layers 6"]),
        ((7, 9, 8, 8), 4, 1, ["--pipeline-model-parallel-layout 'Et*7|t*9|t*8|t*8L'"]),
        ((0, 8, 8, 8), 4, 1, ["--pipeline-model-parallel-layout 'E|t*8|t*8|t*8L'"]),
        ((3, 1, 1, 0), 2, 2, ["--pipeline-model-parallel-layout 'Et*3|t|t|L'"]),
        ((30,), 1, 1, []),
    ],
)  # fmt: skip
def test_older_forms_where_they_do_and_a_layout_elsewhere(
    cut: tuple[int, ...], ranks: int, chunks: int, lines: list[str]
) -> None:
    assert split_lines(Candidate(Degrees(pp=ranks, chunks=chunks), 1, 8, "", cut), 0) == lines


def test_multi_token_prediction_away_from_the_loss_is_a_layout() -> None:
    own = case(latent(), "interleaved-1f1b", pp=16, chunks=2, layers=PUBLISHED, mtp_stage=30)
    lines = megatron_lines(own)
    assert "--pipeline-model-parallel-layout 'Et*3|(tt|)*29m|L'" in lines
    assert "--mtp-num-layers 1" in lines
    assert not any("mtp" in line for line in megatron_lines(case(dense())))


def test_groups_of_experts_and_their_scale_have_their_arguments() -> None:
    lines = model_arguments(read_model("deepseek-v3"))
    assert "--moe-router-num-groups 8" in lines
    assert "--moe-router-group-topk 4" in lines
    assert "--moe-router-topk-scaling-factor 2.5" in lines
    others = model_arguments(mixture())
    assert not any("group-topk" in line or "scaling-factor" in line for line in others)


PUBLISHED = (3, *[2] * 29, 0, 0)
"""Layers of DeepSeek-V3 in Megatron-LM's documentation; the last stages are "m|L"."""


def test_scripts_have_the_models_activation_and_base_of_positions_and_each_argument_once() -> None:
    write, primus = FRAMEWORKS["megatron"].files[".sh"], FRAMEWORKS["primus"].files[".yaml"]
    one = case(read_model("llama-3.1-8b"), dp=2)
    assert "  --rotary-base 500000\n" in write(one)
    assert "rotary_base: 500000\n" in primus(one)
    assert "--swiglu\n" in write(one)
    words = megatron.script_words(write(case(read_model("deepseek-v3"), ep=8, dp=8, pp=8)))
    options = [word for word in words if word.startswith("--")]
    assert len(options) == len(set(options))
    alone = case(read_model("llama-3.2-1b"), m=1)
    assert "one GPU, 1f1b, 1 microbatch of 1" in " ".join(write(alone).split("\n# "))
    assert "# 1 node:" in FRAMEWORKS["bridge"].files[".py"](alone)
    assert "  --use-rope-scaling\n  --rope-scaling-factor 8\n" in write(one)
    assert "use_rope_scaling: true" in primus(one)
    assert "--squared-relu" in megatron.script_words(write(case(read_model("nemotron-4-15b"))))


def test_scripts_say_at_their_top_what_arguments_do_not_describe() -> None:
    gemma = case(dense(activation="gelu_pytorch_tanh"), dp=2)
    head = "# These arguments do not describe all of the model, fill in: a gate of GeLU.\n"
    text = FRAMEWORKS["megatron"].files[".sh"](gemma)
    assert text.splitlines(keepends=True)[2] == head
    assert "--swiglu" not in text
    gate = "the activation of the model's gate is gelu_pytorch_tanh"
    assert f"--quick-geglu  # fill in: {gate}" in text
    assert "--rotary-base 10000  # fill in: the model's rope_theta" in text
    text = FRAMEWORKS["primus"].files[".yaml"](gemma)
    assert head in text.partition("work_group")[0]
    assert "rotary_base: 10000  # fill in: the model's rope_theta" in text
    assert "quick_geglu: true  # fill in: the activation of the model's gate" in text
    mixers = (Layer(Recurrence(4, 64, 64, 3072, 1024), Mlp(14336)), *dense().layers)
    left = not_described(replace(dense(activation="silu"), layers=mixers))
    assert left == ["layers without attention", "layers of several kinds"]
    assert not not_described(replace(dense(), activation="silu"))


GOOD: list[Case] = [
    case(dense(), tp=8, dp=4),
    case(dense(), tp=4, cp=2, pp=4, b=2, m=8, recompute="full", zero=0),
    case(dense(), "interleaved-1f1b", tp=4, dp=2, pp=4, chunks=4, m=12, recompute="selective"),
    case(dense(30), tp=2, dp=2, pp=4, recompute="selective", flash=False),
    case(dense(31), "interleaved-1f1b", pp=4, chunks=2),
    case(dense(), pp=4, layers=(5, 9, 9, 9)),
    case(dense(), pp=4, layers=(9, 9, 9, 5)),
    case(dense(), pp=2, layers=(20, 12)),
    case(dense(), pp=4, layers=(4, 12, 12, 4)),
    case(dense(26), "interleaved-1f1b", pp=4, chunks=2, layers=(2, 4, 4, 3) * 2),
    case(dense(), "interleaved-1f1b", pp=4, chunks=2, layers=(3, 5, 4, 4, 4, 4, 4, 4)),
    case(dense(), pp=4, layers=(0, 11, 11, 10)),
    case(dense(), "interleaved-1f1b", pp=4, chunks=2, layers=(0, 3, 7, 5, 6, 4, 7, 0)),
    case(dense(30), pp=32, m=64),
    case(dense(), dp=2, pp=2, gradient_bytes=2, moment_bytes=2, precision="fp16"),
    case(dense(), dp=2, pp=2, gradient_bytes=2, moment_bytes=1, precision="fp8"),
    case(dense(), dp=2, pp=2, precision="mxfp8"),
    case(dense(), dp=2, pp=2, precision="mxfp8", weights="bf16"),
    case(dense(), dp=2, pp=2, precision="nvfp4", weights="fp4"),
    case(dense(), dp=2, pp=2, offload_optimizer=True),
    case(dense(), dp=2, pp=2, graph_pools=4e9),
    case(dense(), dp=4, pp=2, zero=3),
    case(dense(), dp=4, tp=2, zero=2),
    case(mixture(), tp=2, ep=8, dp=4, pp=2, recompute="selective"),
    case(dense(), "interleaved-1f1b", pp=4, chunks=2, recompute="full:3"),
    case(dense(), tp=2, dp=2, pp=2, precision="fp8"),
    case(mixture(), "interleaved-overlap", ep=8, dp=8, pp=2, chunks=2, m=16),
    case(latent(), "interleaved-1f1b", ep=64, dp=64, pp=16, chunks=2, m=32),
    case(latent(), ep=8, tp=2, dp=8, pp=8, recompute="selective"),
    case(latent(), "interleaved-overlap", ep=64, dp=64, pp=16, chunks=2, m=32),
    case(
        latent(),
        "interleaved-1f1b",
        ep=8,
        dp=8,
        pp=16,
        chunks=2,
        m=16,
        layers=PUBLISHED,
        mtp_stage=30,
    ),
    case(latent(), pp=4, ep=8, dp=8, layers=(20, 21, 20, 0), mtp_stage=2),
]


REFUSED = {
    "heads": "num_attention_heads",
    "kv-heads": "must be a multiple or divisor of tensor_model_parallel_size",
    "sequence": r"seq-length should be a multiple of 2 \* context-parallel-size",
    "expert-ranks": "not divisible by expert_tensor_model_pipeline_parallel size",
    "overlap-experts": "only supported with expert model parallelism",
    "overlap-recompute": "disable full recomputation",
    "overlap-mtp": "MTP supports at most one layer",
}
"""Rules that it checks before it runs, and its words."""


@dataclass(frozen=True)
class Judged:
    """Plans and what Megatron-LM makes of their arguments.

    `wrong` break one of our rules, and `better` have the nearest change that the rule names; of
    `scripts` it has all words, those of the model too.
    """

    good: list[tuple[Case, dict[str, Any]]]
    wrong: list[tuple[str, dict[str, Any]]]
    better: list[tuple[Case, dict[str, Any]]]
    scripts: list[tuple[Case, dict[str, Any]]]


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest) -> Judged:
    pytest.importorskip("torch", reason="Megatron-LM imports PyTorch")
    wheel = megatron.fetch(wheels.folder_of(request, "megatron"))
    good = [*GOOD, *sampled("megatron", 6)]
    names = [name for name in REFUSED for _ in EXAMPLES[name]]
    wrong = [one for name in REFUSED for one, _ in EXAMPLES[name]]
    better = [nearest(name, one) for name, one in zip(names, wrong, strict=True)]
    texts = [megatron.text_of(one) for one in good]
    # Our own text for the others is why they do not run.
    texts += ["\n".join(megatron_lines(one)) for one in (*wrong, *better)]
    texts += [FRAMEWORKS["megatron"].files[".sh"](one) for one in GOOD]
    cases = [*good, *wrong, *better, *GOOD]
    found = iter(megatron.verdicts(wheel, list(zip(cases, texts, strict=True))))
    return Judged(
        *([(what, next(found)) for what in group] for group in (good, names, better, GOOD))  # type: ignore[arg-type]
    )


def nearest(name: str, one: Case) -> Case:
    """A case with a rule's change, and as many GPUs and sequences as its degrees then need."""
    problem = RULES[name].check(one)
    assert problem is not None
    other = changed(one, problem.changes)
    own = other.candidate
    batch = other.degrees.dp * own.microbatch_size * own.microbatches
    return changed(other, {"gpus": other.degrees.gpus, "batch": batch})


@pytest.mark.slow
def test_megatron_takes_our_flags_and_means_the_same(judged: Judged) -> None:
    for one, made in judged.good:
        assert "error" not in made, (one.candidate, made)
        assert meant(made) == said(one)
        d, own = one.degrees, one.candidate
        starts = own.first_layers
        for rank in range(d.pp):
            stages = range(rank, d.stages, d.pp)
            assert made["layers"][rank] == [own.layers[stage] for stage in stages]
            assert made["offsets"][rank] == [starts[stage] for stage in stages]


@pytest.mark.slow
def test_megatron_refuses_what_our_rules_do_and_takes_the_nearest(judged: Judged) -> None:
    for name, made in judged.wrong:
        assert re.search(REFUSED[name], made["error"]), (name, made)
    for one, made in judged.better:
        assert "error" not in made, (one.candidate, made)


@pytest.mark.slow
def test_scripts_are_taken_with_plan_and_model(judged: Judged) -> None:
    for one, made in judged.scripts:
        assert "error" not in made, (one.candidate, made)
        assert meant(made) == said(one)
        args, model = made["args"], one.model
        assert args["num_layers"] == len(model.layers)
        assert args["hidden_size"] == model.hidden
        assert args["vocab_size"] == model.vocabulary
        assert args["num_experts"] == (model.experts or None)
        assert args["mtp_num_layers"] == (model.mtp or None)
        assert args["swiglu"]


@pytest.mark.slow
def test_primus_overrides_what_the_arguments_set(judged: Judged) -> None:
    for one, made in judged.scripts:
        values = plan_values(one)
        assert values
        for name in values.keys() - NOT_PLAIN:
            assert made["args"][name] == values[name], name
        content = yaml.safe_load(FRAMEWORKS["primus"].files[".yaml"](one))
        overrides = content["modules"]["pre_trainer"]["overrides"]
        assert values.items() <= overrides.items()
        assert overrides.keys() <= made["args"].keys() | NOT_PLAIN


NOT_PLAIN = {
    "attention_backend",
    "moe_layer_freq", "pipeline_model_parallel_layout", "exp_avg_dtype", "exp_avg_sq_dtype",
    "num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage",
}  # fmt: skip
"""Arguments whose values are no plain data after its checks."""


def meant(made: dict[str, Any]) -> dict[str, Any]:
    """What Megatron-LM understood, in our words."""
    args = made["args"]
    states = "use_megatron_fsdp" if args["use_megatron_fsdp"] else "use_distributed_optimizer"
    levels = {"optim_grads": 2, "optim_grads_params": 3}
    recompute = args["recompute_granularity"] or "none"
    if args["recompute_method"] == "block":
        recompute += f":{args['recompute_num_layers']}"
    zero = levels[args["data_parallel_sharding_strategy"]] if states == "use_megatron_fsdp" else 1
    return {
        "tp": args["tensor_model_parallel_size"], "cp": args["context_parallel_size"],
        "ep": args["expert_model_parallel_size"], "dp": args["data_parallel_size"],
        "pp": args["pipeline_model_parallel_size"],
        "chunks": args["virtual_pipeline_model_parallel_size"] or 1,
        "microbatch_size": args["micro_batch_size"], "batch": args["global_batch_size"],
        "sequence": args["seq_length"], "recompute": recompute,
        "zero": zero if args[states] else 0, "group": made["group"],
        "sequence_parallel": bool(args["sequence_parallel"]),
        "overlap": args["overlap_moe_expert_parallel_comm"],
        "precision": precision_of(args),
        "expert_tp": args["expert_tensor_parallel_size"],
        "gradient_bytes": 2 if args["grad_reduce_in_bf16"] else 4,
        "moments": str(args["exp_avg_dtype"]).removeprefix("torch."),
        "narrow_weights": bool(args["fp8_param_gather"] or args["fp4_param_gather"]),
        "offload": args["optimizer_cpu_offload"], "graphs": args["cuda_graph_impl"] != "none",
        "hides": (
            args["tp_comm_overlap"], args["overlap_grad_reduce"], args["overlap_param_gather"],
        ),
        "grouped": (bool(args["moe_grouped_gemm"]), bool(args["moe_permute_fusion"])),
    }  # fmt: skip


def precision_of(args: dict[str, Any]) -> str:
    """Our name of the precision that Megatron-LM trains in."""
    if args["fp4"]:
        return "nvfp4"
    if args["fp8"]:
        return "mxfp8" if args["fp8_recipe"] == "mxfp8" else "fp8"
    return "fp16" if args["fp16"] else "bf16"


def said(one: Case) -> dict[str, Any]:
    """The same of a case."""
    d, own, training = one.degrees, one.candidate, one.training
    return {
        "tp": d.tp, "cp": d.cp, "ep": d.ep, "dp": d.dp, "pp": d.pp, "chunks": d.chunks,
        "microbatch_size": own.microbatch_size, "batch": training.batch,
        "sequence": training.sequence, "recompute": own.recompute, "zero": own.zero,
        "group": d.pp, "sequence_parallel": d.tp > 1 and training.sequence_parallel,
        "overlap": own.schedule == "interleaved-overlap", "precision": training.precision,
        "expert_tp": 1 if one.model.experts else d.tp, "gradient_bytes": training.gradient_bytes,
        "moments": {4: "float32", 2: "bfloat16", 1: "uint8"}[training.moment_bytes],
        "narrow_weights": training.narrow_weights and own.zero >= 1,
        "offload": training.offload_optimizer, "graphs": training.graph_pools > 0,
        "hides": (one.hides_tensors, training.overlap_dp, training.overlap_dp and own.zero >= 1),
        "grouped": (one.model.experts > 0, one.model.experts > 0 and training.fused),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("scaling", "lines"),
    [
        ({}, []),
        ({"rope_type": "linear", "factor": 2.0}, ["--rotary-seq-len-interpolation-factor 2"]),
        ({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0},
         ["--use-rope-scaling", "--rope-scaling-factor 32"]),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
         ["--rotary-scaling-factor 4", "--mscale 1", "--mscale-all-dim 0",
          "--yarn-original-max-position-embeddings 32768"]),
    ],
)  # fmt: skip
def test_scaled_positions_have_their_arguments(scaling: dict[str, Any], lines: list[str]) -> None:
    model = replace(dense(), rope_scaling=scaling, rope_share=0.5)
    found = model_arguments(model)
    assert set(lines) <= set(found)
    assert "--rotary-percent 0.5" in found
    assert not not_described(model)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "longrope", "factor": 4.0},
        {"rope_type": "linear", "factor": 1.5},
        {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 8.0},
    ],
)
def test_scaling_without_arguments_is_to_be_filled_in(scaling: dict[str, Any]) -> None:
    model = replace(dense(), rope_scaling=scaling)
    (left,) = not_described(model)
    assert left == f"scaling of rotary positions ({scaling['rope_type']})"
    assert f"# fill in: {left}" in model_arguments(model)
