from dataclasses import replace

import pytest

from debubble.planner.hardware.gpus import GPUS
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


def test_attention_is_slower_backward() -> None:
    gpu = GPUS["h100"]
    assert attention_time(gpu, 1e12) == pytest.approx(1e12 / 553e12)
    assert attention_time(gpu, 1e12, backward=True) == pytest.approx(1e12 / 422e12)
