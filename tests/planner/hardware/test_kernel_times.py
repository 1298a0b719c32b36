from dataclasses import replace

import pytest

from debubble.planner.hardware.gpus import GPUS, Gpu
from debubble.planner.hardware.kernel_times import attention_time, memory_time, product_time

CHART = {
    768: 65, 1024: 89, 1280: 152, 1536: 149, 1792: 202, 2048: 195, 2304: 244, 3072: 236, 4096: 259,
    4608: 275, 5120: 261, 5632: 281, 8192: 291,
}  # fmt: skip


@pytest.mark.parametrize(("n", "rate"), CHART.items())
def test_square_products_reach_the_rates_of_the_chart(n: int, rate: float) -> None:
    # NVIDIA's chart of cuBLAS on A100, read off to 3 TFLOP/s.
    gpu = replace(GPUS["a100-80gb"], gemm=291 / 312)
    found = 2 * n**3 / product_time(gpu, "bf16", n, n, n) / 1e12
    assert found == pytest.approx(rate, rel=0.13 if n == 1536 else 0.05)


@pytest.mark.parametrize("name", ["a100-80gb", "h100", "b200", "mi300x"])
def test_a_large_product_reaches_the_best_measured_rate(name: str) -> None:
    gpu = GPUS[name]
    n = 8192
    reached = 2 * n**3 / product_time(gpu, "bf16", n, n, n) / gpu.bf16
    assert reached == pytest.approx(gpu.gemm, rel=0.05)


def test_a_width_that_tensor_cores_do_not_like_is_slow() -> None:
    # Machine Learning Engineering: 273 and 398 TFLOP/s on H100.
    gpu = GPUS["h100"]
    odd, even = (product_time(gpu, "bf16", 8192, f, 4096) for f in (10922, 10944))
    assert even / odd == pytest.approx(273 / 398, rel=0.05)


def test_narrow_products_are_limited_by_memory() -> None:
    gpu = GPUS["h100"]
    assert product_time(gpu, "bf16", 8, 8192, 8192) > memory_time(gpu, 2 * 8192**2)


def test_an_expert_without_tokens_takes_no_time() -> None:
    assert product_time(GPUS["h100"], "bf16", 0, 4096, 4096, 8) == 0


def test_narrower_inputs_are_faster() -> None:
    gpu = GPUS["b200"]
    times = [product_time(gpu, kind, 8192, 8192, 8192) for kind in ("bf16", "fp8", "fp4")]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("tokens", "portable", "forward", "backward"),
    [
        (32768, False, 615, 532), (8192, False, 604, 484), (4096, False, 549, 427),
        (1024, False, 392, 239), (32768, True, 356, 318), (8192, True, 316, 268),
        (4096, True, 306, 229), (1024, True, 229, 133),
    ],
)  # fmt: skip
def test_attention_reaches_the_rates_that_were_measured_on_h100(
    tokens: int, portable: bool, forward: float, backward: float
) -> None:
    """TFLOP/s of 32 heads of 128 (``benchmarks/gpu_layers_h100.jsonl``)."""
    for back, rate in ((False, forward), (True, backward)):
        seconds = attention_time(GPUS["h100"], 1e12, tokens, backward=back, portable=portable)
        assert 1 / seconds == pytest.approx(rate, rel=0.12)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_short_attention_is_slow(gpu: Gpu) -> None:
    times = [attention_time(gpu, 1e12, tokens) for tokens in (512, 2048, 8192)]
    assert times == sorted(times, reverse=True)
    assert attention_time(gpu, 1e12, 4096, backward=True) > attention_time(gpu, 1e12, 4096)
