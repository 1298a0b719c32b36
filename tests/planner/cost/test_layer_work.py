from dataclasses import replace

import pytest

from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.cost.flops import layer_flops
from debubble.planner.cost.layer_work import Product, Times, core_times, module_times, product_times
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.memory.layer_bytes import kept_parts, module_parts
from debubble.planner.memory.state import layer_parameters
from debubble.planner.model.files import read_model
from debubble.planner.model.mixers import NO_MIXER, Attention, LatentAttention, Recurrence
from debubble.planner.model.transformer import Experts, Layer, Mlp, Model
from tests.planner.cases import case_of

TRAINING = Training(128, 8192)


def candidate(**degrees: int) -> Candidate:
    return Candidate(Degrees(**degrees), 1, 1, "1f1b", (0,))


def test_times_are_added_and_scaled() -> None:
    assert (Times(1, 2, 3) + Times(1, 1, 1)) * 2 == Times(4, 6, 8)


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("llama-3.1-8b", {"attention", "core_attn", "layernorm", "residual", "mlp"}),
        ("mixtral-8x7b", {"attention", "core_attn", "layernorm", "residual", "moe", "moe_act"}),
        ("deepseek-v3", {"attention", "core_attn", "layernorm", "residual", "moe", "moe_act",
                         "mla_up_proj", "shared_experts"}),
    ],
)  # fmt: skip
def test_modules_have_the_names_that_can_be_computed_again(name: str, modules: set[str]) -> None:
    model = read_model(name)
    found = module_times(case_of(model, TRAINING, candidate()), model.layers[-1])
    assert set(found) == modules


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_no_layer_is_faster_than_its_flops(name: str) -> None:
    model, gpu = read_model(name), GPUS["h100"]
    layer = model.layers[-1]
    total = sum(module_times(case_of(model, TRAINING, candidate()), layer).values(), Times())
    flops = layer_flops(model, layer, TRAINING.sequence)
    least = 8192 * (flops.linear + flops.experts + flops.core) / gpu.bf16
    assert least < total.F
    assert least < total.I
    assert 8192 * (flops.linear + flops.experts) / gpu.bf16 < total.W


def test_tensor_parallelism_divides_most_of_the_work() -> None:
    model = read_model("llama-3.1-70b")
    layer = model.layers[0]
    one, eight = (
        sum(module_times(case_of(model, TRAINING, candidate(tp=tp)), layer).values(), Times()).F
        for tp in (1, 8)
    )
    assert one / 8 < eight < one / 6


def test_flash_attention_reads_no_scores() -> None:
    model = read_model("llama-3.1-8b")
    part = model.layers[0].attention
    stored = Training(128, 8192, flash=False)
    flash = core_times(case_of(model, TRAINING, candidate()), part)
    scores = core_times(case_of(model, stored, candidate()), part)
    assert flash.F < scores.F
    assert scores.W == 0


def test_a_window_makes_attention_shorter() -> None:
    case = case_of(read_model("gpt-oss-20b"), TRAINING, candidate())
    near, far = (core_times(case, layer.attention).F for layer in case.model.layers[:2])
    assert near < far / 10


def test_gradients_are_summed_by_the_product_or_apart() -> None:
    gpu, product = GPUS["h100"], Product(8192, 4096, 4096)
    wide = product_times(gpu, TRAINING, product)
    narrow = product_times(gpu, Training(128, 8192, gradient_bytes=2), product)
    apart = product_times(gpu, Training(128, 8192, fused=False), product)
    assert wide.F == narrow.F == apart.F
    assert narrow.W < wide.W < apart.W


def test_narrow_precisions_are_faster_in_spite_of_casts() -> None:
    gpu, product = GPUS["b200"], Product(8192, 16384, 16384)
    times = [
        product_times(gpu, Training(128, 8192, precision), product).F
        for precision in ("bf16", "mxfp8", "nvfp4")
    ]
    assert times == sorted(times, reverse=True)
    head = product_times(gpu, Training(128, 8192, "fp8"), product, wide=True)
    assert head == product_times(gpu, TRAINING, product)


LINEAR = Recurrence(32, 128, 128, 12352, 4096, vectors=32960)


def test_linear_attention_takes_the_same_per_token_whatever_the_length() -> None:
    model = read_model("llama-3.1-8b")
    cases = [case_of(model, Training(128, length), candidate()) for length in (4096, 32768)]
    short, long = (core_times(case, LINEAR) for case in cases)
    assert 6 * short.F < long.F < 8 * short.F
    full = Attention(16, 2, 256)
    times = [core_times(case, full).F for case in cases]
    assert times[1] > 40 * times[0]


def test_blocks_and_an_indexer_shorten_attention() -> None:
    case = case_of(read_model("llama-3.1-8b"), Training(128, 65536), candidate())
    full = LatentAttention(128, 1536, 512, 128, 64, 128)
    sparse = replace(full, index_heads=64, index_dim=128, index_top_k=2048)
    reused = replace(sparse, index_heads=0)
    blocks = Attention(40, 8, 128, chunk=8192)
    times = [core_times(case, part).F for part in (full, sparse, reused)]
    assert times[0] > 3 * times[1] > 3 * times[2]
    whole = core_times(case, replace(blocks, chunk=None)).F
    assert pytest.approx(whole / 8, rel=0.1) == core_times(case, blocks).F


@pytest.mark.parametrize(
    "layer",
    [
        Layer(LINEAR, Experts(64, 4, 512)),
        Layer(Attention(16, 2, 256, gate=4096), Mlp(5632), second=LINEAR),
        Layer(NO_MIXER, Mlp(21504, gated=False), norms=1),
        Layer(LINEAR, Mlp(0), norms=1),
        Layer(Attention(32, 8, 128), Experts(128, 8, 1024, gated=False, latent=1024)),
    ],
)
def test_layers_of_all_kinds_have_times_bytes_and_parameters(layer: Layer) -> None:
    model, gpu = Model("any", 2048, (layer,) * 4, 32000), GPUS["h100"]
    total = sum(module_times(case_of(model, TRAINING, candidate()), layer).values(), Times())
    flops = layer_flops(model, layer, TRAINING.sequence)
    assert 8192 * flops.F / gpu.bf16 < total.F
    assert sum(layer_parameters(model, layer, 1, 1)) == model.layer_parameters(layer)
    assert sum(layer_parameters(model, layer, 2, 1)) < model.layer_parameters(layer)
    assert module_parts(model, layer, TRAINING, 1)["all"].stream > 0
    assert kept_parts(model, layer, TRAINING, 1).stream > 0
