"""FLOPs per token against published counts and against sums written out here."""

from dataclasses import replace

import pytest

from debubble.planner.cost.flops import (
    flops_per_token,
    head_flops,
    layer_flops,
    mtp_flops,
)
from debubble.planner.model.files import read_model
from debubble.planner.model.mixers import Attention


@pytest.mark.parametrize(
    ("name", "full", "causal"),
    [
        # Megatron-Bridge's TFLOP/s over its tokens per second give 51.48, 449.5 and 2523.9.
        ("llama-3.1-8b", 57.913, 51.470),
        ("llama-3.1-70b", 481.435, 449.223),
        ("llama-3.1-405b", 2625.42, 2523.96),
    ],
)
def test_dense_models(name, full, causal):
    found = flops_per_token(read_model(name), 8192)
    assert found["full"] / 1e9 == pytest.approx(full, abs=0.005)
    assert found["causal"] / 1e9 == pytest.approx(causal, abs=0.005)


@pytest.mark.parametrize(
    ("name", "mtp", "causal"),
    [
        # Megatron-Bridge: 23.1, 148.1, 249.7 and 260.1.
        ("qwen3-30b-a3b", 0, 23.01),
        ("qwen3-235b-a22b", 0, 148.03),
        ("deepseek-v3", 0, 249.81),
        ("deepseek-v3", 1, 259.99),
    ],
)
def test_mixtures_of_experts(name, mtp, causal):
    model = replace(read_model(name), mtp=mtp)
    assert flops_per_token(model, 4096)["causal"] / 1e9 == pytest.approx(causal, abs=0.005)


def test_layer_of_llama_3_8b():
    model = read_model("llama-3.1-8b")
    one = layer_flops(model, model.layers[0], 8192)
    weights = model.layer_parameters(model.layers[0]) - 2 * 4096
    assert weights == 218_103_808
    assert one.linear == 2 * weights == pytest.approx(436.2e6, abs=0.05e6)
    assert one.core == pytest.approx(67.1e6, abs=0.05e6)
    assert one.experts == 0
    assert head_flops(model) == 2 * 4096 * 128256


def test_classic_layer_is_the_zero_bubble_papers():
    # arXiv 2401.10241, table 1: F sbh(24h + 4s), all pairs counted.
    model = read_model("gpt-3-175b")
    hidden, sequence = 12288, 2048
    one = layer_flops(model, model.layers[0], sequence)
    assert 24 * hidden**2 + 4 * sequence * hidden == one.F + one.core


def test_whole_model_is_korthikantis():
    # arXiv 2205.05198, eq. 7: 72 BLsh² (1 + s/6h + V/12hL) per step.
    model = read_model("gpt-3-175b")
    h, layers, s, vocabulary = 12288, 96, 2048, 51200
    expected = 72 * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * h * layers))
    assert flops_per_token(model, s)["full"] == pytest.approx(expected, rel=1e-12)


def test_a_window_counts_the_band_below_the_diagonal():
    for sequence, window in ((4096, 128), (256, 255), (64, 64), (64, 100)):
        band = sum(min(window, query + 0.5) for query in range(sequence)) / sequence
        if window >= sequence:
            assert Attention(1, 1, 8, window=window).attended(sequence) == sequence / 2
        else:
            assert Attention(1, 1, 8, window=window).attended(sequence) == pytest.approx(
                band, rel=1e-9
            )
    model = read_model("gpt-oss-20b")
    near, all_tokens = model.layers[0], model.layers[1]
    assert layer_flops(model, near, 4096).core < layer_flops(model, all_tokens, 4096).core / 10


def test_mtp_is_a_layer_a_projection_and_a_head():
    model = read_model("deepseek-v3")
    one, mtp = layer_flops(model, model.layers[-1], 4096), mtp_flops(model, 4096)
    assert one.F + 4 * model.hidden**2 + head_flops(model) == mtp.F
    assert mtp_flops(replace(model, mtp=2), 4096).F == 2 * mtp.F
    assert mtp_flops(replace(model, mtp=0), 4096).F == 0
