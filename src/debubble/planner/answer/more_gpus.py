"""Plans on more GPUs: with one more node, or enough where none fits."""

from __future__ import annotations

from dataclasses import replace

from debubble.planner.request import PlanRequest
from debubble.planner.search.best_plans import Progress, best_plans, search
from debubble.planner.search.evaluate import Evaluated
from debubble.planner.search.groups import groups

DOUBLINGS = 10
"""Most doublings of the GPUs in search of enough."""

SMALLEST = {"microbatch_size": 1, "recompute": "full", "schedules": ("1f1b",)}
"""Options that need the least memory, used where they are open."""


def one_more_node(
    request: PlanRequest, best: Evaluated, progress: Progress | None = None
) -> Evaluated | None:
    """Return the fastest plan with one more node; None where none is faster than `best`."""
    node = request.cluster.gpu.node
    gpus = (request.cluster.gpus // node + 1) * node
    more = replace(request, cluster=replace(request.cluster, gpus=gpus))
    plans = best_plans(more, 1, progress, below=best.step_time).plans
    return plans[0] if plans and plans[0].step_time < best.step_time else None


def enough_gpus(request: PlanRequest, progress: Progress | None = None) -> Evaluated | None:
    """Return a plan that fits on more GPUs, out of doublings of those of the request.

    Only the options that need the least memory are tried, so that fewer GPUs may do.
    """
    fixed = request.fixed
    free = {name: value for name, value in SMALLEST.items() if getattr(fixed, name) is None}
    if fixed.chunks is not None:
        free.pop("schedules", None)
    small = replace(fixed, **free)  # type: ignore[arg-type]
    for doubling in range(1, DOUBLINGS + 1):
        cluster = replace(request.cluster, gpus=request.cluster.gpus << doubling)
        more = replace(request, cluster=cluster)
        result = search(more, groups(replace(more, fixed=small)), 1, progress)
        if result.plans:
            return result.plans[0]
        if result.interrupted:
            break
    return None
