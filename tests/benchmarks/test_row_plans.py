import pytest
from row_plans import read_row

from debubble.planner.candidate import Degrees
from debubble.planner.cost.calibration_files import spread
from debubble.planner.frameworks.habits import DEEPSPEED
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.torch.runtime import TORCH
from tests.benchmarks.rows import ROW


def test_a_row_is_a_plan() -> None:
    plan = read_row(ROW)
    assert plan.candidate.degrees == Degrees(4, 2, 1, 2, 4, 5)
    assert plan.candidate.layers == (4,) * 20
    assert (plan.candidate.microbatches, plan.candidate.schedule) == (64, "interleaved-1f1b")
    assert (plan.candidate.zero, plan.candidate.recompute) == (1, "none")
    assert (plan.seconds, plan.memory, plan.assumed) == (14.66, None, ())
    assert plan.training.overlap_tp
    assert plan.cluster.gpu.name == "h100"


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"recompute": "full (no SP)"}, "recompute", "full"),
        ({"recompute": "selective (op)"}, "recompute", "selective"),
        ({"recompute": ""}, "recompute", "none"),
        ({"zero": "3 (FSDP)"}, "zero", 3),
        ({"zero": "2-like (FSDP2)"}, "zero", 2),
        ({"zero": ""}, "zero", 1),
        ({"zero": "2"}, "zero", 2),
        # Before Megatron-FSDP: the distributed optimizer.
        ({"zero": "2", "source": "MegaScale arXiv:2402.15627"}, "zero", 1),
        ({"schedule": "1F1B (DeepSpeed)", "vp": "1"}, "schedule", "1f1b"),
        ({"schedule": "ZB-2p", "vp": "1"}, "schedule", "zb-2p"),
        ({"schedule": "ZB-1p", "vp": "1"}, "schedule", "zb-h1"),
        ({"schedule": "Interleaved1F1B"}, "schedule", "interleaved-1f1b"),
        ({"schedule": "ZBVZeroBubble", "vp": "2"}, "schedule", "zb-v"),
        ({"schedule": "DualPipeV", "vp": ""}, "schedule", "dualpipe-v"),
        ({"schedule": "", "vp": "NA"}, "schedule", "interleaved-1f1b"),
    ],
)
def test_words_of_rows_are_known(changes: dict[str, str], field: str, value: object) -> None:
    assert getattr(read_row(ROW | changes).candidate, field) == value


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"recompute": "full (no SP)"}, "sequence_parallel", False),
        ({"precision": "fp8-cs"}, "precision", "fp8"),
        ({"precision": "fp8-mx"}, "precision", "mxfp8"),
        ({"precision": "amp_bf16"}, "precision", "bf16"),
        ({"precision": ""}, "precision", "bf16"),
        ({"precision": "fp16"}, "gradient_bytes", 2),
        ({"precision": "fp16"}, "flash", False),
        ({"source": "x arXiv:2201.11990"}, "flash", False),
        ({"gpu": "A100-80GB-SXM"}, "overlap_dp", False),
        ({"schedule": "1F1B (DeepSpeed)", "vp": "1"}, "runtime", DEEPSPEED),
        ({"zero": "3 (FSDP2)"}, "runtime", TORCH),
        ({"zero": "3 (FSDP)", "source": "Megatron-Bridge"}, "runtime", MEGATRON),
    ],
)
def test_words_say_what_the_software_could(
    changes: dict[str, str], field: str, value: object
) -> None:
    assert getattr(read_row(ROW | changes).training, field) == value


@pytest.mark.parametrize(
    ("gpu", "name"),
    [("A100-80GB", "a100-80gb"), ("A100-40GB-SXM", "a100-40gb"), ("GB200", "gb200"),
     ("H100-80GB-SXM (700W)", "h100"), ("H100-96GB-HBM2e-500W", "h100-96gb-hbm2e"),
     ("MI300X", "mi300x")],
)  # fmt: skip
def test_gpus_are_known_by_their_published_names(gpu: str, name: str) -> None:
    assert read_row(ROW | {"gpu": gpu}).cluster.gpu.name == name


def test_what_a_row_does_not_say_is_assumed_and_named() -> None:
    gone = dict.fromkeys(("vp", "micro_batch", "vocab", "ep", "recompute"), "")
    plan = read_row(ROW | gone)
    assert plan.assumed == (
        "vocab 51200", "vp 2", "ep 1", "micro_batch 1", "recompute none",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seq": ""}, "seq not given"),
        ({"gpus": "65"}, "degrees make 64 GPUs, the row has 65"),
        ({"gpu": "TPUv4"}, "unknown GPU 'TPUv4'"),
        ({"gpu": ""}, "unknown GPU"),
        ({"tp": "four"}, "tp not given"),
        ({"tp": "4.5"}, "tp '4.5' is no whole number"),
        ({"tp": "-4"}, "tp not given"),
        ({"layers": "0"}, "layers '0' is no whole number"),
        ({"heads": ""}, "heads not given"),
        ({"tp": "1e400"}, "tp '1e400' is no whole number"),
        ({"layers": "5000"}, "5000 layers; at most"),
        ({"global_batch": "1000000"}, "more than 4,000,000 actions"),
        ({"micro_batch": "7"}, "no multiple"),
        ({"precision": "int8"}, "'int8' is not modeled"),
    ],
)
def test_rows_that_cannot_be_predicted_say_why(changes: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_row(ROW | changes)


def test_unpublished_steps_are_none() -> None:
    for text in ("", "NA", "-3", "inf", "nan"):
        assert read_row(ROW | {"step_s": text}).seconds is None
    assert read_row(ROW | {"mem_gb": "70.5"}).memory == 70.5e9


@pytest.mark.parametrize(
    ("text", "level"),
    [("", 1), ("1 (dist-opt)", 1), ("3 (FSDP)", 3), ("FSDP", 3),
     ("FSDP: optimizer+grads sharded, weights kept after forward", 2)],
)  # fmt: skip
def test_levels_of_sharding(text: str, level: int) -> None:
    assert read_row(ROW | {"zero": text}).candidate.zero == level


def test_the_loss_of_llm_foundry_is_fused() -> None:
    assert read_row(ROW | {"source": "mosaicml/llm-foundry scripts"}).training.fused_loss
    assert not read_row(ROW).training.fused_loss


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [(8, 4, (2, 2, 2, 2)), (6, 4, (1, 2, 2, 1)), (30, 32, (0,) + (1,) * 30 + (0,)),
     (7, 4, (2, 2, 2, 1)), (3, 1, (3,))],
)  # fmt: skip
def test_layers_are_spread_as_frameworks_do(
    layers: int, stages: int, split: tuple[int, ...]
) -> None:
    assert spread(layers, stages) == split
