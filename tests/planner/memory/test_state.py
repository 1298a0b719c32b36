"""Weights, gradients and optimizer states against published measurements and written-out sums."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.memory.state import (
    bytes_per_parameter,
    layer_parameters,
    padded_vocabulary,
    stage_parameters,
    stage_states,
)
from debubble.planner.model.files import read_model
from debubble.planner.model.mixers import Attention
from debubble.planner.model.transformer import Layer, Mlp, Model
from tests.planner.cases import PLAIN, case_of, mtp_parameters

GIB = 1 << 30


def candidate(layers, *, zero=1, **degrees):
    return Candidate(Degrees(**degrees), 1, 8, "1f1b", tuple(layers), zero=zero)


def even(model, *, zero=1, **degrees):
    stages = Degrees(**degrees).stages
    return candidate([len(model.layers) // stages] * stages, zero=zero, **degrees)


def test_bytes_per_parameter_are_megatrons():
    plain, half = Training(8, 1024), Training(8, 1024, precision="fp16")
    assert sum(bytes_per_parameter(plain, 0, 8)) == 18
    assert sum(bytes_per_parameter(plain, 1, 8)) == 6 + 12 / 8
    assert sum(bytes_per_parameter(plain, 2, 8)) == 2 + 16 / 8
    assert sum(bytes_per_parameter(plain, 3, 8)) == 18 / 8
    assert sum(bytes_per_parameter(half, 0, 8)) == 20
    assert sum(bytes_per_parameter(half, 1, 8)) == 4 + 16 / 8
    narrow = replace(plain, gradient_bytes=2)
    assert sum(bytes_per_parameter(narrow, 1, 8)) == 4 + 12 / 8
    assert sum(bytes_per_parameter(replace(narrow, moment_bytes=2), 1, 8)) == 4 + 8 / 8
    assert sum(bytes_per_parameter(replace(narrow, moment_bytes=1), 1, 8)) == 4 + 6 / 8
    offloaded = replace(plain, offload_optimizer=True)
    assert bytes_per_parameter(offloaded, 1, 8) == (2, 4, 0)
    assert bytes_per_parameter(replace(half, offload_optimizer=True), 1, 8) == (2, 2, 0)
    fsdp = replace(plain, runtime=TORCH)
    assert sum(bytes_per_parameter(fsdp, 3, 8)) == 16 / 8
    assert sum(bytes_per_parameter(fsdp, 0, 8)) == 16


@pytest.mark.parametrize(
    ("gpu", "precision", "weights", "zero", "each"),
    [
        ("h100", "bf16", None, 1, 2),
        # Cast weights are kept in both directions, next to those in 16 bits or in their place.
        ("h100", "fp8", "bf16", 1, 2 + 2),
        ("h100", "fp8", None, 1, 2),
        ("h100", "fp8", None, 0, 2 + 2),
        ("b200", "fp8", None, 1, 1),
        ("b200", "mxfp8", None, 1, 2 + 1 / 16),
        ("b200", "nvfp4", None, 1, 2 + 1 + 1 / 8),
        ("b200", "nvfp4", "fp4", 1, 1 + 1 / 8),
    ],
)
def test_weights_of_layers_that_products_multiply(gpu, precision, weights, zero, each):
    model = read_model("llama-3.1-8b")
    training = Training(8, 1024, precision, weights=weights)
    plan = candidate([0, 32, 0], zero=zero, dp=8, pp=3)
    case = case_of(model, training, plan, GPUS[gpu])
    ends, layers, _ = (state.weights for state in stage_states(case))
    assert layers == pytest.approx(each * 32 * model.layer_parameters(model.layers[0]))
    assert ends == 2 * model.vocabulary * model.hidden


@pytest.mark.parametrize(
    ("name", "degrees", "sequence", "allocated"),
    [
        # Memory allocated between two steps, in the logs of NVIDIA's dgxc-benchmarking, v25.04.02.
        ("llama-3.1-8b", {"cp": 2, "dp": 4}, 8192, 44_271_689_728),
        ("nemotron-4-15b", {"tp": 2, "dp": 32}, 4096, 34_466_545_664),
    ],
)
def test_measured_between_steps(name, degrees, sequence, allocated):
    model = read_model(name)
    training = Training(128, sequence, gradient_bytes=2)
    state = stage_states(case_of(model, training, even(model, **degrees)))[0]
    assert state.total == pytest.approx(allocated, rel=0.01)


@pytest.mark.parametrize(
    ("hidden", "layers", "tp", "pp", "gib"),
    [
        # Calculon's validation set after Korthikanti et al., arXiv 2205.05198.
        (6144, 48, 8, 1, 45.5625),
        (12288, 96, 8, 8, 45.5625),
        (20480, 105, 8, 35, 31.640625),
        (25600, 128, 8, 64, 32.958984375),
    ],
)
def test_weights_and_optimizer_of_calculons_validation(hidden, layers, tp, pp, gib):
    bare = Layer(Attention(64, 64, hidden // 64), Mlp(4 * hidden, gated=False))
    norms = 2 * 2 * hidden
    model = Model("bare", hidden, (bare,) * layers, 51200, norm="layer")
    matrices, _ = layer_parameters(model, bare, tp, 1)
    matrices -= norms
    count = matrices * layers / pp
    assert sum(bytes_per_parameter(Training(8, 2048), 0, 1)) * count / GIB == gib


def test_vocabulary_is_padded_as_megatron_does():
    model, training = read_model("gpt2"), Training(8, 1024)
    assert padded_vocabulary(model, training, 1) == 50304
    assert padded_vocabulary(model, training, 8) == 51200
    assert padded_vocabulary(model, replace(training, runtime=TORCH), 2) == 50258
    assert padded_vocabulary(read_model("llama-3.1-8b"), training, 2) == 128256


def test_a_stage_sum_is_the_model():
    training = Training(8, 1024, runtime=PLAIN)
    for name in ("llama-3.1-8b", "deepseek-v2", "mixtral-8x7b", "gpt-oss-20b"):
        model = read_model(name)
        plan = even(model, pp=2, chunks=2)
        counts = [
            stage_parameters(case_of(model, training, plan))[stage].sum() for stage in range(4)
        ]
        assert sum(counts) == model.parameters, name


def test_both_ends_have_a_tied_embedding():
    model, training = read_model("llama-3.2-1b"), Training(8, 1024, runtime=PLAIN)
    alone = stage_parameters(case_of(model, training, even(model)))[0].sum()
    plan = even(model, pp=2)
    ends = sum(stage_parameters(case_of(model, training, plan))[stage].sum() for stage in range(2))
    assert alone == model.parameters
    assert ends == model.parameters + model.embedding_parameters


def test_multi_token_prediction_is_on_the_last_stage_with_an_embedding():
    training = Training(8, 4096, runtime=PLAIN)
    model = read_model("deepseek-v3")
    plan = candidate([31, 30], pp=2)
    without = replace(model, mtp=0)
    more = stage_parameters(case_of(model, training, plan))[1].sum()
    more -= stage_parameters(case_of(without, training, plan))[1].sum()
    assert more == mtp_parameters(model) + model.embedding_parameters


def test_multi_token_prediction_brings_an_embedding_to_its_stage():
    training = Training(8, 4096, runtime=PLAIN)
    model = read_model("deepseek-v3")
    with_loss = candidate([31, 30, 0], pp=3)
    apart = replace(with_loss, mtp_stage=1)
    one, other = (
        stage_parameters(case_of(model, training, plan)).sum(axis=1) for plan in (with_loss, apart)
    )
    moved = mtp_parameters(model) + model.embedding_parameters
    assert [b - a for a, b in zip(one, other, strict=True)] == [0, moved, -moved]
    tied = replace(model, tied=True)
    one, other = (
        stage_parameters(case_of(tied, training, plan)).sum(axis=1) for plan in (with_loss, apart)
    )
    # The head is a copy, too, wherever it is.
    moved = mtp_parameters(model)
    copy = model.embedding_parameters
    assert [b - a for a, b in zip(one, other, strict=True)] == [0, moved + copy, -moved]


def test_experts_have_replicas_of_their_own():
    model, training = read_model("qwen3-30b-a3b"), Training(8, 4096)
    plan = even(model, ep=8, dp=16)
    dense, experts = stage_parameters(case_of(model, training, plan))[0]
    assert experts == 48 * 128 * 3 * 2048 * 768 / 8
    state = stage_states(case_of(model, training, plan))[0]
    assert state.optimizer == dense * 12 / 16 + experts * 12 / 2


def test_tensor_parallelism_leaves_norms_and_narrow_projections_whole():
    model = read_model("deepseek-v3")
    layer = model.layers[0]
    one, _ = layer_parameters(model, layer, 1, 1)
    eight, _ = layer_parameters(model, layer, 8, 1)
    down = 7168 * (1536 + 512 + 64) + 1536 + 512
    whole = down + 2 * 7168
    assert eight == whole + (one - whole) / 8


def test_fewer_heads_of_keys_than_ranks_are_there_more_than_once():
    model = read_model("qwen3-30b-a3b")
    layer = model.layers[0]
    four, _ = layer_parameters(model, layer, 4, 128)
    eight, _ = layer_parameters(model, layer, 8, 128)
    query = 2 * 2048 * 4096
    assert four - eight == query / 4 - query / 8


def test_zero_3_gathers_two_layers_and_fsdp_in_a_pipeline_keeps_all():
    model = read_model("llama-3.1-8b")
    training = Training(8, 8192)
    layer = model.layer_parameters(model.layers[0])
    plan = even(model, dp=8, zero=3)
    state = stage_states(case_of(model, training, plan))[0]
    assert state.weights == 2 * model.parameters / 8 + 2 * 2 * layer
    assert state.gradients == 4 * model.parameters / 8 + 2 * 4 * layer
    two = stage_states(case_of(model, training, replace(plan, zero=2)))[0]
    assert (two.weights, two.gradients) == (2 * model.parameters, state.gradients)
    assert two.total - 2 * 4 * layer == pytest.approx((2 + 16 / 8) * model.parameters)
    fsdp = replace(training, runtime=TORCH)
    one = stage_states(case_of(model, fsdp, replace(plan, zero=1)))[0]
    assert one == stage_states(case_of(model, fsdp, replace(plan, zero=2)))[0]
    whole = stage_states(case_of(model, fsdp, plan))[0].total
    assert whole - 2 * 2 * layer == pytest.approx(16 * model.parameters / 8)
    split = even(model, dp=4, pp=2, zero=3)
    count = stage_parameters(case_of(model, fsdp, split))[0].sum()
    state = stage_states(case_of(model, fsdp, split))[0]
    assert state.weights == 4 * count / 4 + 2 * count
    assert state.gradients == 4 * count / 4 + 4 * count
    assert state.total - 2 * count - 4 * count == pytest.approx(16 * count / 4)


def test_stages_without_layers_have_their_ends_alone():
    model, training = read_model("llama-3.1-8b"), Training(8, 8192)
    plan = candidate([0, 32, 0], pp=3)
    counts = [stage_parameters(case_of(model, training, plan))[stage].sum() for stage in range(3)]
    assert counts[0] == model.embedding_parameters
    assert counts[2] == model.head_parameters + model.hidden
    assert stage_states(case_of(model, training, plan))[0].weights == 2 * counts[0]


@given(st.data())
def test_any_split_of_layers_has_the_same_parameters(data):
    model = read_model("deepseek-v2-lite")
    training = Training(8, 1024, runtime=PLAIN)
    stages = data.draw(st.integers(1, 8))
    cuts = sorted(data.draw(st.lists(st.integers(0, 27), min_size=stages - 1, max_size=stages - 1)))
    layers = [end - begin for begin, end in pairwise([0, *cuts, 27])]
    zero = data.draw(st.integers(0, 3))
    plan = candidate(layers, pp=stages, dp=data.draw(st.integers(1, 4)), zero=zero)
    counts = [
        stage_parameters(case_of(model, training, plan))[stage].sum() for stage in range(stages)
    ]
    assert sum(counts) == model.parameters
    states = [stage_states(case_of(model, training, plan))[stage] for stage in range(stages)]
    total = sum(sum(bytes_per_parameter(training, zero, plan.degrees.dp)) * n for n in counts)
    # And of two layers at a time what replicas gather, or have not split yet.
    there = 2 * (zero == 3 and plan.degrees.dp > 1) + 4 * (zero >= 2)
    for begin, count in zip([0, *cuts], layers, strict=True):
        own = model.layers[begin : begin + count]
        sizes = [sum(layer_parameters(model, layer, 1, 1)) for layer in own]
        total += there * min(2, count) * max(sizes, default=0.0)
    assert sum(state.total for state in states) == pytest.approx(total)
