"""Warnings about a plan."""

from __future__ import annotations

from debubble.core.units import rough_percent
from debubble.planner.answer.words import gigabytes, seconds
from debubble.planner.frameworks.table import find_framework
from debubble.planner.model.shape_traps import shape_traps
from debubble.planner.search.evaluate import Evaluated


def cautions(plan: Evaluated) -> list[str]:
    """Return warnings about shapes, memory, and models that a framework's arguments cannot say."""
    request, found = plan.request, []
    name = request.fixed.framework
    if name is not None and (left := find_framework(name).leaves_out(request.model)):
        found.append(f"the file to run lacks parts of the model: {', '.join(left)}")
    traps = shape_traps(request.model, plan.candidate.degrees.tp)
    return [*traps, *_memory_warnings(plan), *found]


def _memory_warnings(plan: Evaluated) -> list[str]:
    """Return warnings of a plan for more memory than GPUs have, or that may not fit."""
    request, gpu = plan.request, plan.request.cluster.gpu
    found = []
    if request.capacity > gpu.memory:
        found.append(
            f"planned for {gigabytes(request.capacity)}, and {gpu.name} has {gigabytes(gpu.memory)}"
        )
    if plan.verdict != "maybe":
        return found
    peak, (chance, more) = max(plan.peaks), plan.retries
    return [
        *found,
        f"may not fit: {gigabytes(peak)} ± {gigabytes(plan.memory_error)} of "
        f"{gigabytes(request.capacity)}; {100 * chance:.0f} % of such runs lack memory: they end, "
        f"or PyTorch's allocator adds up to {seconds(more)} to a step",
    ]


def too_fast(plan: Evaluated) -> list[str]:
    """Return a warning if a plan computes faster than the best known product.

    Modeled kernels are slower than that; an efficiency from a wrong measurement is not.
    """
    request, gpu = plan.request, plan.request.cluster.gpu
    best = gpu.gemm8 if request.training.precision == "fp8" else gpu.gemm
    mfu = plan.speed.mfu["causal"]
    if mfu <= best:
        return []
    return [
        f"an MFU of {rough_percent(mfu)} is more than the {rough_percent(best)} that the best "
        f"matrix product on {gpu.name} is known to reach; check batch, sequence and GPUs of the "
        "measurement, and that its time is that of a whole step"
    ]
