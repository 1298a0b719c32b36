"""Parts of the planner's model against measurements of their own, for docs/planner-truth.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from debubble.planner.candidate import Candidate, Degrees, Training
from debubble.planner.case import Case
from debubble.planner.cost.measured_run import spread
from debubble.planner.cost.published_efficiencies import shipped_factors
from debubble.planner.cost.step import step_time
from debubble.planner.frameworks.torch.runtime import TORCH
from debubble.planner.hardware.cluster import Cluster, find_gpu
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.hardware.kernel_times import product_time
from debubble.planner.hardware.links import RankGroup, all_reduce
from debubble.planner.model.files import read_model

MIB = 2**20
CURVES = {
    ("h200", 8, 8): {1: 46e-6, 16: 134e-6, 64: 339e-6, 256: 1.08e-3, 1024: 4.05e-3, 4096: 15.9e-3},
    ("b200", 8, 8): {1: 51e-6, 16: 115e-6, 256: 727e-6, 4096: 10.1e-3},
    ("b200", 32, 8): {1: 406e-6, 16: 508e-6, 256: 2.27e-3, 4096: 22.1e-3},
}
"""Measured all-reduces in seconds by MiB (Machine Learning Engineering, network benchmarks)."""
CHART = {
    512: 28, 768: 65, 1024: 89, 1280: 152, 1536: 149, 1792: 202, 2048: 195, 2304: 244, 3072: 236,
    4096: 259, 4608: 275, 5120: 261, 5632: 281, 8192: 291,
}  # fmt: skip
"""TFLOP/s of square bf16 products on A100, read off NVIDIA's cuBLAS chart."""


def gain_of_two_chunks() -> float:
    """Return the gain of two chunks on torchtitan's 405B, as many microbatches as ranks."""
    model, cluster = read_model("llama-3.1-405b"), Cluster(find_gpu("h100-96gb-hbm2e"), 512)
    training = Training(64, 8192, "fp8", runtime=TORCH)
    times = []
    for chunks, schedule in ((1, "1f1b"), (2, "interleaved-1f1b")):
        degrees = Degrees(tp=8, dp=8, pp=8, chunks=chunks)
        layers = spread(len(model.layers), degrees.stages)
        candidate = Candidate(degrees, 1, 8, schedule, layers, "full", 2)
        times.append(
            step_time(Case(model, cluster, training, candidate, shipped_factors())).seconds
        )
    return times[0] / times[1]


def curves() -> Iterator[str]:
    yield "| all-reduce | " + " | ".join(f"{size} MiB" for size in CURVES["h200", 8, 8]) + " |"
    yield "|---" * (len(CURVES["h200", 8, 8]) + 1) + "|"
    for (gpu, ranks, inside), times in CURVES.items():
        cells = []
        for size in CURVES["h200", 8, 8]:
            if size not in times:
                cells.append("–")
                continue
            found = all_reduce(GPUS[gpu], RankGroup(ranks, inside), size * MIB)
            cells.append(f"{100 * (found / times[size] - 1):+.0f} %".replace("-", "−"))
        yield f"| {ranks} {gpu.upper()} | " + " | ".join(cells) + " |"


def chart() -> str:
    """Mean error of square products on A100, relative to the chart's own best."""
    gpu = replace(GPUS["a100-80gb"], gemm=CHART[8192] / 312)
    errors = [
        abs(2 * n**3 / product_time(gpu, "bf16", n, n, n) / 1e12 / rate - 1)
        for n, rate in CHART.items()
    ]
    mean = 100 * sum(errors) / len(errors)
    return f"{mean:.1f} % on average, {100 * max(errors):.0f} % at most (at 512)"
