"""The answer to a planning request, as plain data, with the flags of every framework."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from debubble.planner.answer.report import gigabytes
from debubble.planner.cost.flops import flops_per_token
from debubble.planner.frameworks.table import FRAMEWORKS, find_framework, flags
from debubble.planner.frameworks.torch.flags import CSV, ON_PYTORCH
from debubble.planner.memory.peaks import RankMemory, memory_of
from debubble.planner.model.shape_traps import shape_traps
from debubble.planner.request import PlanRequest
from debubble.planner.search.evaluate import Evaluated
from debubble.planner.search.search_result import Found


def plan_data(plan: Evaluated) -> dict[str, Any]:
    """Return a plan as plain data, in seconds and bytes."""
    candidate, fast = plan.candidate, plan.speed
    return {
        "degrees": asdict(candidate.degrees),
        "microbatch_size": candidate.microbatch_size,
        "microbatches": candidate.microbatches,
        "schedule": plan.schedule,
        "layers": list(candidate.layers),
        "recompute": candidate.recompute,
        "zero": candidate.zero,
        "step_time": plan.step_time,
        "step_time_error": plan.step_error * plan.step_time,
        "efficiency": {"value": plan.efficiency, "origin": plan.efficiency_origin},
        "tokens_per_second": fast.tokens_per_second,
        "tflops_per_gpu": fast.flops_per_gpu["causal"] / 1e12,
        "mfu": fast.mfu,
        "bubble_ratio": plan.bubble_ratio,
        "causes": {name: seconds for name, seconds in plan.causes.items() if seconds},
        "memory": [_memory_data(rank) for rank in plan.memory],
        "fits": plan.fits,
        "warnings": list(shape_traps(plan.request.model, candidate.degrees.tp)),
        "flags": {name: plan_flags(plan, name) for name in FRAMEWORKS},
        **({"lower_bound": plan.lower_bound} if plan.lower_bound else {}),
        **({"instead_of": candidate.schedule} if plan.optimized else {}),
    }


def plan_flags(plan: Evaluated, framework: str) -> str:
    """Return the text with which a framework runs a plan, and its memory there if that differs."""
    if not plan.optimized:
        text = flags(plan.case, framework)
        return text if runs_nothing(text) else _held_there(plan, framework) + text
    first = f"# {framework} has no such order; write it with -o {CSV}, and run it on PyTorch with"
    return "\n".join([first, *ON_PYTORCH, ""])


def runs_nothing(text: str) -> bool:
    """Return whether flags are comments alone, because the framework does not run the plan."""
    return all(line.startswith("#") for line in text.splitlines())


def _held_there(plan: Evaluated, framework: str) -> str:
    """Return a comment on the fullest rank if the framework's memory differs from the plan's."""
    request, runtime = plan.request, find_framework(framework).runtime
    if runtime.name == request.training.runtime.name:
        return ""
    case = replace(plan.case, training=replace(request.training, runtime=runtime))
    ranks = memory_of(case, plan.simulate())
    fullest = max(ranks, key=lambda rank: rank.peak)
    line = (
        f"# as {runtime.title} keeps it, rank {fullest.rank} is the fullest with "
        f"{gigabytes(fullest.peak)} of {gigabytes(request.limit)}"
    )
    if fullest.peak > request.limit:
        line += f", which is too much:\n# --framework {framework} looks for plans that fit there"
    return f"{line}\n"


def _memory_data(rank: RankMemory) -> dict[str, Any]:
    parts = ("weights", "gradients", "optimizer", "activations", "buffers", "logits", "margin")
    return {
        "rank": rank.rank,
        "peak": rank.peak,
        **{name: getattr(rank, name) for name in parts},
        "at": {"action": rank.at.action, "time": rank.at.time},
    }


def data(found: Found) -> dict[str, Any]:
    """Return the whole answer as plain data."""
    return {
        "model": model_data(found.request),
        "plans": [plan_data(plan) for plan in found.plans],
        "near": [plan_data(plan) for plan in found.near],
        "buys": larger_data(found),
        "considered": found.considered,
        "simulated": found.simulated,
        "left_out": dict(found.left_out),
        "interrupted": found.interrupted,
    }


def larger_data(found: Found) -> dict[str, Any] | None:
    """Return the best plan on more GPUs as plain data; `saves` are seconds per step."""
    plan = found.larger
    if plan is None:
        return None
    gpus = plan.candidate.degrees.gpus - found.request.cluster.gpus
    saves = found.searched.step_time - plan.step_time if found.searched else None
    return {"gpus": gpus, "saves": saves, "plan": plan_data(plan)}


def model_data(request: PlanRequest) -> dict[str, Any]:
    """Return the model as plain data."""
    model = request.model
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "flops_per_token": flops_per_token(model, request.training.sequence),
    }
