"""The answer to a planning request, as plain data, with the flags of every framework."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from debubble.core.schedule import Schedule
from debubble.planner.answer.cautions import cautions
from debubble.planner.answer.searches import Answer, also_runs
from debubble.planner.answer.words import PARTS, gigabytes
from debubble.planner.candidate import Candidate
from debubble.planner.cost.flops import flops_per_token
from debubble.planner.frameworks.table import FRAMEWORKS, broken, find_framework, flags
from debubble.planner.frameworks.torch.flags import CSV, EXPORT, ON_PYTORCH, from_csv
from debubble.planner.request import Fixed, PlanRequest, for_framework
from debubble.planner.search.evaluate import Evaluated, with_peaks
from debubble.planner.search.search_result import Found


def plan_data(plan: Evaluated, recommended: bool = False) -> dict[str, Any]:
    """Return a plan as plain data, in seconds and bytes."""
    candidate, fast = plan.candidate, plan.speed
    return {
        "framework": plan.request.fixed.framework,
        "also_runs_in": list(also_runs(plan)),
        "recommended": recommended,
        "degrees": asdict(candidate.degrees),
        "microbatch_size": candidate.microbatch_size,
        "microbatches": candidate.microbatches,
        "schedule": plan.schedule,
        "layers": list(candidate.layers),
        "recompute": candidate.recompute,
        "zero": candidate.zero,
        "step_time": plan.step_time,
        "step_time_range": list(plan.step_range),
        "step_time_error": plan.step_error,
        "efficiency": {"value": plan.efficiency, "origin": plan.efficiency_origin},
        "tokens_per_second": fast.tokens_per_second,
        "tflops_per_gpu": fast.flops_per_gpu["causal"] / 1e12,
        "mfu": fast.mfu,
        "bubble_ratio": plan.bubble_ratio,
        "causes": {name: seconds for name, seconds in plan.causes.items() if seconds},
        "memory": [
            {name: getattr(rank, name) for name in ("rank", "peak", *PARTS)}
            | {"at": rank.at._asdict()}
            for rank in plan.memory
        ],
        "fits": plan.fits,
        "verdict": plan.verdict,
        "memory_error": plan.memory_error,
        "retries": {"chance": plan.retries[0], "seconds": plan.retries[1]},
        "warnings": cautions(plan),
        "flags": {name: plan_flags(plan, name) for name in FRAMEWORKS},
        **({"lower_bound": plan.lower_bound} if plan.lower_bound else {}),
        **({"instead_of": candidate.schedule} if plan.optimized else {}),
    }


def plan_flags(plan: Evaluated, framework: str) -> str:
    """Return the text with which a framework runs a plan, and its memory there if that differs."""
    if not plan.optimized:
        text = flags(plan.case, framework)
        return text if runs_nothing(text) else _held_there(plan, framework) + text
    if find_framework(framework).takes_orders and not broken(plan.case, framework):
        lines = flags(from_csv(plan.case), framework).splitlines()
        kept = [f"# {CSV}: written with -o {CSV}" if EXPORT in one else one for one in lines]
        return _held_there(plan, framework) + "\n".join([*kept, ""])
    first = f"# {framework} has no such schedule; write it with -o {CSV} and run it on PyTorch with"
    return "\n".join([first, *ON_PYTORCH, ""])


def runs_nothing(text: str) -> bool:
    """Return whether flags are comments alone, because the framework does not run the plan."""
    return all(line.startswith("#") for line in text.splitlines())


def _held_there(plan: Evaluated, framework: str) -> str:
    """Return a comment on the fullest rank if the framework's memory differs from the plan's."""
    request, runtime = plan.request, find_framework(framework).runtime
    if runtime is request.training.runtime:
        return ""
    other = for_framework(request, framework)
    peaks = _peaks_there(replace(other, limit=math.inf, fixed=Fixed()), plan.candidate, plan.order)
    peak = max(peaks)
    line = (
        f"# as {runtime.title} keeps it, rank {peaks.index(peak)} is the fullest with "
        f"{gigabytes(peak)} of {gigabytes(other.limit)}"
    )
    if peak > other.limit:
        line += f", which is too much:\n# --framework {framework} looks for plans that fit there"
    return f"{line}\n"


@lru_cache(maxsize=64)
def _peaks_there(
    request: PlanRequest, candidate: Candidate, order: Schedule | None
) -> tuple[float, ...]:
    """Return the peaks of a plan; the same for all frameworks with one runtime."""
    return with_peaks(Evaluated(request, candidate, 0.0, (), order=order)).peaks


def data(found: Answer) -> dict[str, Any]:
    """Return the whole answer as plain data.

    Under ``buys`` is the best plan on more GPUs; `saves` are seconds per step.
    """
    request, larger, buys = found.request, found.larger, None
    if larger is not None:
        gpus = larger.candidate.degrees.gpus - request.cluster.gpus
        saves = found.searched.step_time - larger.step_time if found.searched else None
        buys = {"gpus": gpus, "saves": saves, "plan": plan_data(larger)}
    return {
        "model": {
            "name": request.model.name,
            "parameters": request.model.parameters,
            "active_parameters": request.model.active_parameters,
            "flops_per_token": flops_per_token(request.model, request.training.sequence),
        },
        "plans": [plan_data(plan, plan is found.recommended) for plan in found.plans],
        "near": [plan_data(plan) for plan in found.near],
        "buys": buys,
        "considered": found.considered,
        "simulated": found.simulated,
        "left_out": dict(found.left_out),
        "frameworks": [_search_data(one) for one in found.searches],
        "refused": dict(found.refused),
        "interrupted": found.interrupted,
    }


def _search_data(found: Found) -> dict[str, Any]:
    """Return the counts of the search for one framework, and the fastest step that it found."""
    return {
        "name": found.request.fixed.framework,
        "limit": found.request.limit,
        "step_time": min((plan.step_time for plan in found.plans), default=None),
        "considered": found.considered,
        "simulated": found.simulated,
        "left_out": dict(found.left_out),
    }
