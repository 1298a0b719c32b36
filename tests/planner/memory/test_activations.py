"""Bytes of activations: published formulas, goldens, and sums written out here."""

from dataclasses import replace

import pytest

from debubble.core.errors import ParameterError
from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.memory.activations import (
    logits_bytes,
    recompute_modules,
    stage_activations,
)
from debubble.planner.model.files import read_model
from debubble.planner.model.mixers import Attention
from debubble.planner.model.transformer import Layer, Mlp, Model
from tests.planner.cases import case_of, layer_activation

GIB = 1 << 30
CLASSIC = Training(8, 2048, flash=False)


def candidate(model, *, size=1, recompute="none", modules=(), **degrees):
    stages = Degrees(**degrees).stages
    layers = (len(model.layers) // stages,) * stages
    return Candidate(
        Degrees(**degrees), size, 8, "1f1b", layers, recompute=recompute, modules=modules
    )


def modules_of(model, training):
    return recompute_modules(case_of(model, training, candidate(model, recompute="selective")))


def gpt(hidden, heads, layers):
    layer = Layer(Attention(heads, heads, hidden // heads), Mlp(4 * hidden, gated=False))
    return Model("gpt", hidden, (layer,) * layers, 51200, norm="layer", dropout=True)


@pytest.mark.parametrize(
    ("hidden", "heads", "layers", "pp", "chunks", "size", "none", "selective"),
    [
        # Calculon's validation set after Korthikanti et al., arXiv 2205.05198: 22B, 175B, 530B, 1T.
        (6144, 64, 48, 1, 1, 4, 59.25, 9.5625),
        (12288, 96, 96, 8, 3, 1, 66.84375, 12.3515625),
        (20480, 128, 105, 35, 3, 1, 114.0234375, 23.076171875),
        (25600, 160, 128, 64, 1, 1, 131.25, 26.5625),
    ],
)
def test_calculons_validation(hidden, heads, layers, pp, chunks, size, none, selective):
    model = gpt(hidden, heads, layers)
    in_flight = layers * (1 + (pp - 1) / (pp * chunks)) if chunks > 1 else layers
    split = replace(CLASSIC, sequence_parallel=True)
    whole = replace(CLASSIC, sequence_parallel=False)
    plan = candidate(model, size=size, tp=8)
    one = layer_activation(model, model.layers[0], whole, plan).stored
    assert one * in_flight / GIB == none
    plan = replace(plan, recompute="selective")
    one = layer_activation(model, model.layers[0], split, plan).stored
    assert one * in_flight / GIB == selective


def test_korthikantis_formulas():
    model, s, b, h, a = gpt(6144, 64, 48), 2048, 4, 6144, 64
    layer = model.layers[0]
    whole = replace(CLASSIC, sequence_parallel=False)

    def stored(training, tp, recompute="none"):
        plan = candidate(model, size=b, tp=tp, recompute=recompute)
        return layer_activation(model, layer, training, plan).stored

    assert stored(CLASSIC, 1) == s * b * (34 * h + 5 * a * s)
    assert stored(whole, 8) == s * b * (13 * h + 5 * a * s / 8)
    assert stored(CLASSIC, 8) == s * b * (34 * h + 5 * a * s) / 8
    assert stored(CLASSIC, 8, "selective") == 34 * s * b * h / 8
    assert stored(CLASSIC, 8, "full") == 2 * s * b * h / 8
    assert stored(whole, 8, "full") == 2 * s * b * h


def test_what_w_needs_of_a_classic_layer_is_zero_bubbles():
    model = gpt(6144, 64, 48)
    one = layer_activation(model, model.layers[0], CLASSIC, candidate(model))
    assert one.kept_for_weight == 32 * 2048 * 6144


def test_golden_of_llama_3_8b():
    model, training = read_model("llama-3.1-8b"), Training(8, 8192)
    one = layer_activation(model, model.layers[0], training, candidate(model))
    assert one.stored == 8192 * 139_392
    assert one.kept_for_weight == 8192 * 139_264
    assert one.recompute_kept == one.boundary == 8192 * 2 * 4096
    assert one.recomputed == 0
    halves = layer_activation(model, model.layers[0], training, candidate(model, tp=2, cp=2))
    assert halves.stored == one.stored / 4
    full = layer_activation(model, model.layers[0], training, candidate(model, recompute="full"))
    assert (full.stored, full.recomputed) == (one.boundary, one.stored - one.boundary)


def test_latent_attention_is_stored_at_full_width():
    model, training = read_model("deepseek-v3"), Training(8, 1)
    plan = candidate(model)
    one = layer_activation(model, model.layers[0], training, plan).stored
    narrow = 2 * (1536 + 512 + 64) * 2
    norms = 2 * 2 * 7168 + 2 * 2 * 7168
    assert one == 163_840 + narrow + norms + 4 * 128 + 6 * 18432
    small = replace(plan, recompute="selective", modules=("mla_up_proj",))
    assert one - layer_activation(model, model.layers[0], training, small).stored == 131_072


def test_experts_store_a_copy_for_each_token_they_get():
    model, training = read_model("deepseek-v3"), Training(8, 1)
    plan = candidate(model)
    dense, sparse = (
        layer_activation(model, model.layers[at], training, plan).stored for at in (0, 60)
    )
    routed = 8 * (2 * 7168 + 6 * 2048)
    assert sparse - dense == routed + 4 * 256 + 6 * 2048 - 6 * 18432
    skewed = layer_activation(model, model.layers[60], replace(training, imbalance=1.5), plan)
    assert skewed.stored == sparse
    spread = candidate(model, ep=8, dp=8)
    skewed = layer_activation(model, model.layers[60], replace(training, imbalance=1.5), spread)
    assert skewed.stored - sparse == routed / 2


@pytest.mark.parametrize(
    ("name", "at", "module", "dropped"),
    [
        ("llama-3.1-8b", 0, "layernorm", 4 * 4096),
        ("llama-3.1-8b", 0, "mlp", 6 * 14336),
        ("llama-3.1-8b", 0, "core_attn", 4 * 32),
        ("qwen3-30b-a3b", 0, "moe_act", 8 * 2 * 768),
        ("qwen3-30b-a3b", 0, "moe", 8 * (2 * 2048 + 6 * 768) + 4 * 128),
        ("deepseek-v3", 60, "shared_experts", 6 * 2048),
        ("llama-3.1-8b", 0, "moe", 0),
    ],
)
def test_modules_drop_what_they_compute_again(name, at, module, dropped):
    model, training = read_model(name), Training(8, 1)
    plan = candidate(model)
    one = layer_activation(model, model.layers[at], training, plan)
    small = replace(plan, recompute="selective", modules=(module,))
    found = layer_activation(model, model.layers[at], training, small)
    assert one.stored - found.stored == found.recomputed == dropped
    assert found.kept_for_weight == one.kept_for_weight


def test_selective_means_what_pays():
    flash = Training(8, 4096)
    assert modules_of(gpt(64, 4, 2), replace(flash, flash=False)) == ("core_attn",)
    assert modules_of(read_model("llama-3.1-8b"), flash) == ("layernorm",)
    modules = modules_of(read_model("deepseek-v3"), flash)
    assert modules == ("layernorm", "mla_up_proj", "moe_act")
    model = read_model("llama-3.1-8b")
    plan = candidate(model, recompute="selective", modules=("core_atn",))
    with pytest.raises(ParameterError, match="did you mean 'core_attn'"):
        layer_activation(model, model.layers[0], flash, plan)


def test_queries_and_keys_before_their_norms_are_stored():
    training = Training(8, 1)
    model = read_model("qwen3-8b")
    plan = candidate(model)
    layer = model.layers[0]
    without = replace(layer, attention=replace(layer.attention, qk_norm=False))
    more = layer_activation(model, layer, training, plan).stored
    assert more - layer_activation(model, without, training, plan).stored == 2 * (32 + 8) * 128


def test_ends_store_the_dropout_mask_and_the_heads_inputs():
    model = gpt(6144, 64, 48)
    s, h = 2048, 6144
    plan = candidate(model, tp=8, pp=4)
    one = layer_activation(model, model.layers[0], CLASSIC, plan).stored
    first, inner, last = (stage_activations(case_of(model, CLASSIC, plan))[at] for at in (0, 1, 3))
    assert inner.stored == 12 * one
    assert first.stored - inner.stored == s * h / 8
    assert last.stored - inner.stored == 4 * s * h / 8


def test_uneven_stages_and_stages_without_layers():
    model, training = read_model("deepseek-v3"), Training(8, 4096)
    plan = Candidate(Degrees(pp=4), 1, 8, "1f1b", (0, 3, 57, 1))
    found = [stage_activations(case_of(model, training, plan))[stage] for stage in range(4)]
    assert found[0].stored == 0
    dense = layer_activation(model, model.layers[0], training, plan).stored
    sparse = layer_activation(model, model.layers[3], training, plan).stored
    assert found[1].stored == 3 * dense
    assert found[2].stored == pytest.approx(57 * sparse)
    ends = 4 * 4096 * 7168
    assert found[3].stored == pytest.approx(2 * sparse + ends + 12 * 4096 * 7168)


def test_multi_token_prediction_holds_its_inputs_where_it_is():
    model, training = read_model("deepseek-v3"), Training(8, 4096)
    plan = Candidate(Degrees(pp=4), 1, 8, "1f1b", (31, 30, 0, 0))
    together, apart = (
        [one.stored for one in stage_activations(case_of(model, training, each))]
        for each in (plan, replace(plan, mtp_stage=2))
    )
    assert sum(apart) == sum(together)
    assert apart[3] == 6 * 4096 * 7168  # the norm's input, and the head's twice


def test_logits_that_every_rank_gathers_are_not_split():
    model, gathers = read_model("llama-3.1-8b"), replace(TORCH, whole_logits=True)
    split, whole = (
        logits_bytes(case_of(model, Training(8, 8192, runtime=runtime), candidate(model, tp=2)))
        for runtime in (TORCH, gathers)
    )
    assert whole == 2 * split


def test_logits():
    model = read_model("llama-3.1-8b")
    plan = candidate(model, size=2, tp=2, cp=2)
    assert logits_bytes(case_of(model, Training(8, 8192), plan)) == 12 * 8192 * 128256 / 2
    predicting = replace(model, mtp=1)
    assert logits_bytes(case_of(predicting, Training(8, 8192), plan)) == 12 * 8192 * 128256


def test_torchtitans_selective_recompute_keeps_every_second_product():
    model, training = read_model("llama-3.1-8b"), Training(8, 1, runtime=TORCH)
    plan = candidate(model, recompute="selective")
    found = layer_activation(model, model.layers[0], training, plan)
    kept = 4096 + 4096 + 1024 + 14336 + 4096  # input, queries, values, gate, last matrix
    attention = 2 * 4096 + 4 * 32
    assert found.stored == 2 * kept + attention
    assert found.stored + found.recomputed == 139_392
    named = replace(plan, modules=("op",))
    assert layer_activation(model, model.layers[0], training, named) == found
    assert layer_activation(model, model.layers[0], Training(8, 1), named) == found


def test_pytorchs_tensor_parallelism_stores_gathered_inputs():
    model, training = read_model("llama-3.1-8b"), Training(8, 1)
    plan = candidate(model, tp=8)
    split = layer_activation(model, model.layers[0], training, plan)
    whole = layer_activation(model, model.layers[0], replace(training, runtime=TORCH), plan)
    assert split.stored == 139_392 / 8
    assert whole.stored - split.stored == 4 * 4096 * 7 / 8
    assert whole.kept_for_weight - split.kept_for_weight == 4 * 4096 * 7 / 8
    assert whole.boundary == split.boundary


def test_products_in_8_bits_store_their_inputs_in_8_bits():
    model = read_model("llama-3.1-8b")
    plan = Candidate(Degrees(), 1, 1, "1f1b", (32,))
    wide, narrow, cast_again = (
        layer_activation(model, model.layers[0], Training(1, 8192, **more), plan).stored / 8192
        for more in ({}, {"precision": "fp8"}, {"precision": "fp8", "runtime": TORCH})
    )
    # Inputs of QKV, of the first and of the second matrix in a byte less; that of the projection
    # is beside attention's output, which attention needs.
    assert wide - narrow == 2 * 4096 + 14336 - 4096
    assert cast_again == wide
