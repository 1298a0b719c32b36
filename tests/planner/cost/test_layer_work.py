import pytest

from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.cost.flops import layer_flops
from debubble.planner.cost.layer_work import Product, Times, core_times, module_times, product_times
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.model.files import read_model

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
    found = module_times(model, model.layers[-1], GPUS["h100"], TRAINING, candidate())
    assert set(found) == modules


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_no_layer_is_faster_than_its_flops(name: str) -> None:
    model, gpu = read_model(name), GPUS["h100"]
    layer = model.layers[-1]
    total = sum(module_times(model, layer, gpu, TRAINING, candidate()).values(), Times())
    flops = layer_flops(model, layer, TRAINING.sequence)
    least = 8192 * (flops.linear + flops.experts + flops.core) / gpu.bf16
    assert least < total.F
    assert least < total.I
    assert 8192 * (flops.linear + flops.experts) / gpu.bf16 < total.W


def test_tensor_parallelism_divides_most_of_the_work() -> None:
    model, gpu = read_model("llama-3.1-70b"), GPUS["h100"]
    layer = model.layers[0]
    one, eight = (
        sum(module_times(model, layer, gpu, TRAINING, candidate(tp=tp)).values(), Times()).F
        for tp in (1, 8)
    )
    assert one / 8 < eight < one / 6


def test_flash_attention_reads_no_scores() -> None:
    model, gpu = read_model("llama-3.1-8b"), GPUS["h100"]
    layer = model.layers[0]
    stored = Training(128, 8192, flash=False)
    assert core_times(layer.attention, gpu, TRAINING, candidate()).F < core_times(
        layer, gpu, stored, candidate()
    ).F  # fmt: skip
    assert core_times(layer.attention, gpu, stored, candidate()).W == 0


def test_a_window_makes_attention_shorter() -> None:
    model, gpu = read_model("gpt-oss-20b"), GPUS["h100"]
    near, far = (
        core_times(layer.attention, gpu, TRAINING, candidate()).F for layer in model.layers[:2]
    )
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
