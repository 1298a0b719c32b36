from pathlib import Path

import pytest

from debubble.planner.candidate import Degrees
from debubble.planner.cost.measured_rows import MeasuredRow, read_row
from debubble.planner.cost.measured_run import default_layers, spread
from debubble.planner.cost.row_models import known_model
from debubble.planner.cost.step import step_time
from debubble.planner.frameworks.deepspeed.runtime import DEEPSPEED
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.published_runtimes import NANOTRON
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.model.files import read_model
from debubble.planner.model.mixers import Attention
from debubble.planner.model.transformer import Mlp
from debubble.planner.request import Fixed, plan_request
from tests.planner.rows import ROW


def read(**changes: str) -> MeasuredRow:
    return read_row(ROW | changes, "row 0")


def test_a_row_is_a_plan() -> None:
    plan = read()
    own, training = plan.candidate, plan.request.training
    assert own.degrees == Degrees(4, 2, 1, 2, 4, 5)
    assert own.layers == (4,) * 20
    assert (own.microbatches, own.schedule) == (64, "interleaved-1f1b")
    assert (own.zero, own.recompute) == (1, "none")
    assert (plan.seconds, plan.memory, plan.assumed) == (14.66, None, ())
    assert (training.runtime, training.gradient_bytes, training.overlap_tp) == (MEGATRON, 4, True)
    assert plan.request.cluster.gpu.name == "h100"


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"recompute": "full (no SP)"}, "recompute", "full"),
        ({"recompute": "full:2"}, "recompute", "full:2"),
        ({"recompute": "selective (op)"}, "recompute", "selective"),
        ({"recompute": "mlp,norm"}, "modules", ("mlp", "layernorm")),
        ({"recompute": ""}, "recompute", "none"),
        ({"zero": "3 (FSDP)"}, "zero", 3),
        ({"zero": "2-like (FSDP2)"}, "zero", 2),
        ({"zero": "FSDP"}, "zero", 3),
        ({"zero": "FSDP: optimizer+grads sharded, weights kept after forward"}, "zero", 2),
        ({"zero": ""}, "zero", 1),
        ({"zero": "2"}, "zero", 2),
        # Before Megatron-FSDP: the distributed optimizer.
        ({"zero": "2", "year": "2024"}, "zero", 1),
        ({"schedule": "1F1B (DeepSpeed)", "vp": "1"}, "schedule", "1f1b"),
        ({"schedule": "ZB-2p", "vp": "1"}, "schedule", "zb-2p"),
        ({"schedule": "ZB-1p", "vp": "1"}, "schedule", "zb-h1"),
        ({"schedule": "Interleaved1F1B"}, "schedule", "interleaved-1f1b"),
        ({"schedule": "ZBVZeroBubble", "vp": "2"}, "schedule", "zb-v"),
        ({"schedule": "DualPipeV", "vp": ""}, "schedule", "dualpipe-v"),
        ({"schedule": "", "vp": "NA"}, "schedule", "interleaved-1f1b"),
        ({"schedule": "", "vp": "", "framework": "nanotron"}, "schedule", "1f1b"),
    ],
)  # fmt: skip
def test_words_of_cells_are_known(changes: dict[str, str], field: str, value: object) -> None:
    assert getattr(read(**changes).candidate, field) == value


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"sequence_parallel": "no"}, "sequence_parallel", False),
        ({"precision": "fp8-cs"}, "precision", "fp8"),
        ({"precision": "fp8-mx"}, "precision", "mxfp8"),
        ({"precision": "amp_bf16"}, "precision", "bf16"),
        ({"precision": ""}, "precision", "bf16"),
        ({"gradient_bytes": "2"}, "gradient_bytes", 2),
        ({"attention": "scores"}, "flash", False),
        ({"overlap": "none"}, "overlap_dp", False),
        ({"overlap": "tp+p2p"}, "overlap_dp", False),
        ({"overlap": "tp+p2p"}, "overlap_p2p", True),
        ({"fused_kernels": "no"}, "fused", False),
        ({"fused_loss": "yes"}, "fused_loss", True),
        ({"fused_norms": "no"}, "fused_norms", False),
        ({"framework": "megatron-deepspeed"}, "runtime", DEEPSPEED),
        ({"framework": "torchtitan"}, "runtime", TORCH),
        ({"framework": "nemo"}, "runtime", MEGATRON),
    ],
)
def test_columns_say_what_the_software_did(
    changes: dict[str, str], field: str, value: object
) -> None:
    assert getattr(read(**changes).request.training, field) == value


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("A100-80GB", "a100-80gb"), ("A100-40GB-SXM", "a100-40gb"), ("GB200", "gb200"),
     ("H100-80GB-SXM (700W)", "h100"), ("H100-96GB-HBM2e-500W", "h100-96gb-hbm2e"),
     ("MI300X", "mi300x")],
)  # fmt: skip
def test_gpus_are_known_by_their_published_names(gpu: str, name: str) -> None:
    assert read(gpu=gpu, precision="bf16").request.cluster.gpu.name == name


def test_the_network_is_a_column() -> None:
    assert read(nic_gb_s="6.25").request.cluster.gpu.nic == 6.25e9


def test_what_a_row_leaves_open_is_assumed_and_named() -> None:
    open_ = ("vp", "micro_batch", "vocab", "ep", "recompute", "framework", "overlap", "norm")
    assert read(**dict.fromkeys(open_, "")).assumed == (
        "vocab 51200", "norm rms", "ep 1", "micro_batch 1", "framework megatron",
        "overlap tp+dp+p2p", "vp 2", "recompute none",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seq": ""}, "seq not given"),
        ({"gpus": "65"}, "does not divide 65"),
        ({"gpu": "TPUv4"}, "unknown GPU 'TPUv4'"),
        ({"gpu": ""}, "unknown GPU"),
        ({"tp": "four"}, "tp 'four' is no whole number from 1 to"),
        ({"tp": "NA"}, "tp not given"),
        ({"head_dim": "x"}, "head_dim 'x' is no whole number"),
        ({"nic_gb_s": "-1"}, "nic_gb_s '-1'; give a positive number"),
        ({"year": "abc"}, "year 'abc' is no whole number"),
        ({"gradient_bytes": "3"}, "gradient_bytes '3'; give 2 or 4"),
        ({"tp": "4.5"}, "tp '4.5' is no whole number"),
        ({"layers": "0"}, "layers '0' is no whole number"),
        ({"heads": ""}, "heads not given"),
        ({"tp": "1e400"}, "tp '1e400' is no whole number"),
        ({"layers": "50000"}, "50000 layers; at most"),
        ({"global_batch": "1000000"}, "more than 4,000,000 actions"),
        ({"micro_batch": "7"}, "no multiple"),
        ({"precision": "int8"}, "'int8' is not modeled"),
        ({"overlap": "dq"}, "overlap 'dq'; known: dp, p2p, tp"),
        ({"attention": "fast"}, "give flash or scores"),
        ({"gated": "maybe"}, "gated 'maybe'; give yes or no"),
        ({"framework": "megatrom"}, "framework is 'megatrom'; did you mean 'megatron'"),
        ({"zero": "all"}, "zero 'all'; give 0, 1, 2, 3 or FSDP"),
        ({"recompute": "some"}, "recompute 'some'; give none, selective, full"),
    ],
)
def test_rows_that_cannot_be_predicted_say_why(changes: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(**changes)


def test_unpublished_steps_are_none() -> None:
    for text in ("", "NA", "-3", "inf", "nan"):
        assert read(step_s=text).seconds is None
    assert read(mem_gb="70.5").memory == 70.5e9


def test_columns_describe_the_model() -> None:
    plain = read(gated="no", norm="layer", tied="yes", dropout="yes", head_dim="64").request.model
    assert plain.layers[0].mlp == Mlp(28672, gated=False)
    assert (plain.tied, plain.norm, plain.dropout) == (True, "layer", True)
    assert plain.layers[0].attention == Attention(64, 8, 64)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "Llama 3.1 70B"])
def test_a_shipped_model_by_name_is_the_described_one(name: str) -> None:
    known = read_model("llama-3.1-70b")
    alone = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    assert read(model=name, **alone).request.model == known
    assert step_time(read(model=name).case).seconds == step_time(read().case).seconds


def test_columns_count_more_than_a_name() -> None:
    assert read(model="llama-3.1-8b").request.model.hidden == 8192


ALONE = dict.fromkeys(
    ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gated", "norm", "tied", "dropout"),
    "",
)
"""Cells of a row without a shape."""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"model": "llama-3.1-70bb"},
            "model 'llama-3.1-70bb', did you mean 'llama-3.1-70b'",
        ),
        ({"model": "llama-3.1-70b", "layers": "abc"}, "layers 'abc' is no whole number"),
        ({"model": "llama-3.1-70b", "gated": "maybe"}, "gated 'maybe'; give yes or no"),
        ({"model": "llama-3.1-70b", "norm": "batch"}, "norm 'batch'; give rms or layer"),
        (
            {"model": "llama-3.1-70b", "ffn": "9"},
            "heads not given; the row's shape",
        ),
    ],
)
def test_a_model_without_a_shape_is_a_known_one(changes: dict[str, str], why: str) -> None:
    base = plan_request("llama-3.1-8b", "h100", 64, 128)
    with pytest.raises(ValueError, match=why):
        read_row(ROW | ALONE | changes, "line 2", base)
    for name in ("", "Llama 3.1 8B"):
        assert (
            read_row(ROW | ALONE | {"model": name, "vp": "2"}, "line 2", base).request.model
            == base.model
        )


def test_a_model_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "hidden: 4096\nvocabulary: 32000\nlayers: 80\n"
        "attention: {heads: 32, kv_heads: 8, head_dim: 128}\nmlp: {width: 9}\n"
    )
    alone = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    assert read(model=str(file), **alone).request.model.vocabulary == 32000


def test_only_a_whole_name_is_known() -> None:
    assert known_model("DeepSeekV3") == read_model("deepseek-v3")
    assert known_model("DeepSeek") is known_model("our llama-3.1-70b") is None


def test_a_row_takes_as_long_as_its_plan() -> None:
    """Plan mode, with everything held, has the row's candidate and time."""
    from debubble.planner.search.best_plans import search
    from debubble.planner.search.groups import groups

    row, own = read(), read().candidate
    fixed = Fixed(
        tp=4, cp=2, ep=1, dp=2, pp=4, chunks=5, microbatch_size=1, schedules=(own.schedule,),
        recompute="none", zero=1, layers=own.layers, framework="megatron",
    )  # fmt: skip
    asked = plan_request("llama-3.1-70b", "h100", 64, 128, 8192, fixed=fixed)
    [plan] = search(asked, groups(asked)).plans
    found = step_time(row.with_factors(asked.factors))
    assert plan.candidate == own
    assert plan.step_time == pytest.approx(found.seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [(8, 4, (2, 2, 2, 2)), (6, 4, (1, 2, 2, 1)), (30, 32, (0,) + (1,) * 30 + (0,)),
     (7, 4, (2, 2, 2, 1)), (3, 1, (3,))],
)  # fmt: skip
def test_layers_are_spread_as_frameworks_do(
    layers: int, stages: int, split: tuple[int, ...]
) -> None:
    assert spread(layers, stages) == split


def test_nanotron_counts_the_head_when_it_spreads_layers() -> None:
    # Its guide for Llama 3 8B: a rank ends with the block that exceeds its share of the work.
    one = read(framework="nanotron", layers="16", hidden="2048", heads="32", kv_heads="32",
               ffn="8192", vocab="131072", vp="1", schedule="1F1B")  # fmt: skip
    assert one.request.training.runtime is NANOTRON
    assert one.candidate.layers == (5, 5, 5, 1)
    assert default_layers(one.request, 1) == (16,)
