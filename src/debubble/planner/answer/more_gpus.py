"""What more GPUs bring: one more node next to the best plan, or enough where none fits."""

from __future__ import annotations

from dataclasses import replace

from debubble.planner.search.best_plans import Progress, best_plans, search
from debubble.planner.search.evaluate import Asked, Plan
from debubble.planner.search.groups import Fixed, groups

DOUBLINGS = 10
"""How often the GPUs are doubled in search of enough."""

SMALLEST = {"microbatch_size": 1, "recompute": "full", "schedules": ("1f1b",)}
"""What needs least memory, where it is open."""


def with_gpus(asked: Asked, gpus: int) -> Asked:
    """The same question for another number of GPUs."""
    return replace(asked, cluster=replace(asked.cluster, gpus=gpus))


def one_more_node(
    asked: Asked, fixed: Fixed, best: Plan, progress: Progress | None = None
) -> Plan | None:
    """The fastest plan with one more node; None where none is faster than `best`."""
    node = asked.cluster.gpu.node
    more = with_gpus(asked, (asked.cluster.gpus // node + 1) * node)
    plans = best_plans(more, fixed, 1, progress, below=best.step_time).plans
    return plans[0] if plans and plans[0].step_time < best.step_time else None


def enough_gpus(asked: Asked, fixed: Fixed, progress: Progress | None = None) -> Plan | None:
    """A plan that fits on more GPUs, out of doublings of those that were asked for.

    Only what needs least memory is tried, so that fewer GPUs may do.
    """
    free = {name: value for name, value in SMALLEST.items() if getattr(fixed, name) is None}
    if fixed.chunks is not None:
        free.pop("schedules", None)
    small = replace(fixed, **free)  # type: ignore[arg-type]
    for doubling in range(1, DOUBLINGS + 1):
        more = with_gpus(asked, asked.cluster.gpus << doubling)
        found = groups(more.model, more.cluster, more.training, small)
        result = search(more, found, 1, progress)
        if result.plans:
            return result.plans[0]
        if result.interrupted:
            break
    return None
