"""Plans on more GPUs: with one more node, or enough where none fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from debubble.planner.plannable import plannable
from debubble.planner.request import Fixed, PlanRequest
from debubble.planner.search.best_plans import Progress, best_plans, search
from debubble.planner.search.evaluate import Evaluated
from debubble.planner.search.groups import groups
from debubble.schedules import registry

DOUBLINGS = 10
"""Most doublings of the GPUs in search of enough."""

SMALLEST = {"microbatch_size": 1, "recompute": "full", "schedules": ("1f1b",)}
"""Options that need the least memory, used where they are open."""


SLACK = 0.05
"""Share of a step by which another plan with one more node may be faster: less than plans are off,
and a fraction of the search."""


def one_more_node(best: Evaluated, progress: Progress | None = None) -> Evaluated | None:
    """Return the fastest plan for the framework of `best` with one more node; None if it loses.

    No other is faster by more than :data:`SLACK`, of schedules that are not made for costs: each
    of those takes as long to make as many simulations.
    """
    request = best.request
    if request.fixed.schedules is None:
        given = tuple(name for name in plannable() if not registry.find(name).uses_costs)
        request = replace(request, fixed=replace(request.fixed, schedules=given))
    node = request.cluster.gpu.node
    gpus = (request.cluster.gpus // node + 1) * node
    more = replace(request, cluster=replace(request.cluster, gpus=gpus))
    plans = best_plans(more, 1, progress, below=best.step_time, slack=SLACK).plans
    return plans[0] if plans and plans[0].step_time < best.step_time else None


def enough_gpus(
    requests: Sequence[PlanRequest], progress: Progress | None = None
) -> Evaluated | None:
    """Return a plan that fits on more GPUs, out of doublings of those of the requests.

    Of all frameworks the first that needs fewest GPUs is taken. Only the options that need the
    least memory are tried, so that fewer GPUs may do.
    """
    for doubling, request in product(range(1, DOUBLINGS + 1), requests):
        cluster = replace(request.cluster, gpus=request.cluster.gpus << doubling)
        more = replace(request, cluster=cluster)
        result = search(more, groups(replace(more, fixed=_smallest(request.fixed))), 1, progress)
        if result.plans:
            return result.plans[0]
        if result.interrupted:
            break
    return None


def _smallest(fixed: Fixed) -> Fixed:
    """Return constraints with the options that need the least memory where they are open."""
    free = {name: value for name, value in SMALLEST.items() if getattr(fixed, name) is None}
    if fixed.chunks is not None:
        free.pop("schedules", None)
    return replace(fixed, **free)  # type: ignore[arg-type]
