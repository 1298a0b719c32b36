"""Seconds of one kernel by its shape: matrix products, attention, and memory-bound kernels.

A product is cut into tiles that run in waves over the multiprocessors; filling and draining them
takes time, and a part of the time in which results are written is not hidden. The constants
describe NVIDIA's cuBLAS chart of square bf16 products on A100, from 512 to 8192, with a mean error
of 3 %.
"""

from __future__ import annotations

import math
from functools import lru_cache

from debubble.planner.hardware.gpus import Gpu

TILES = ((256, 128, 1.0), (128, 128, 0.95), (64, 128, 0.8))
"""Tiles of a product's output, and the share of full speed that one reaches."""
FILL = 512
"""Length of the inner dimension that takes as long as filling and draining the GPU."""
VISIBLE = 0.4
"""Share of the time in which results are written that other tiles' work does not hide."""
LAUNCH = 4e-6
"""Seconds to start a kernel."""
REFERENCE = 1.02
"""Full speed over the best measured: the loss of a square product of 8192 by the above."""
ALIGNMENT, MISALIGNED = 8, 0.69
"""Elements to which dimensions are aligned for tensor cores, and the speed that is left where they
are not: 273 of 398 TFLOP/s for a feed-forward width of 10922 instead of 10944 on H100."""
MEMORY = 0.85
"""Share of the memory's bandwidth that streaming kernels reach."""

PRECISIONS = {
    "bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4",
}  # fmt: skip
"""Precisions of training, each with the precision of the inputs of layers' matrix products."""


@lru_cache(maxsize=65536)
def product_time(
    gpu: Gpu, precision: str, m: int, n: int, k: int, count: int = 1, *, written: int = 2
) -> float:
    """Return seconds of `count` matrix products ``(m, k) x (k, n)`` in one launch.

    Parameters
    ----------
    precision
        ``"bf16"``, ``"fp8"`` or ``"fp4"``: that of the inputs.
    m, n, k
        Sizes on one GPU; fractions of experts' loads are rounded up by the caller.
    count
        Equal products, such as heads or experts.
    written
        Bytes moved per number of the output: 2, or 8 where it is added to an fp32 gradient.
    """
    if min(m, n, k) <= 0:
        return 0.0
    eight = precision != "bf16" and gpu.fp8 > 0
    reached = (gpu.gemm8 if eight else gpu.gemm) * REFERENCE
    per_tile = gpu.peak(precision) * reached / gpu.multiprocessors
    best = math.inf
    for rows, columns, speed in TILES:
        waves = -(-(-(-m // rows) * -(-n // columns) * count) // gpu.multiprocessors)
        length = waves * k + FILL
        best = min(best, 2 * rows * columns * length / (per_tile * speed))
    if k % ALIGNMENT or n % ALIGNMENT:
        best /= MISALIGNED
    width = 1 if eight else 2
    moved = count * (width * (m * k + n * k) + written * m * n)
    rate = gpu.bandwidth * MEMORY
    return float(max(best + VISIBLE * written * count * m * n / rate, moved / rate) + LAUNCH)


def memory_time(gpu: Gpu, size: float) -> float:
    """Return seconds of kernels that read and write `size` bytes and do little else."""
    return size / memory_rate(gpu)


def memory_rate(gpu: Gpu) -> float:
    """Return bytes per second that kernels read and write which do little else."""
    return gpu.bandwidth * MEMORY


def attention_time(
    gpu: Gpu, flops: float, length: float, *, backward: bool = False, portable: bool = False
) -> float:
    """Return seconds of a fused attention kernel, cuDNN's or a portable one, by executed FLOPs.

    The causal mask's diagonal costs as much as so many more tokens per query as :attr:`Gpu.ramp`
    says: a kernel over `length` tokens reaches ``length / (length + ramp)`` of its rate.
    """
    rates, ramps = gpu.kernel(portable)
    return flops / rates[backward] * (1 + ramps[backward] / length)
