"""The answer to what was asked, as plain data, with the flags of every framework."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from debubble.planner.answer.more_gpus import with_gpus
from debubble.planner.answer.report import gigabytes
from debubble.planner.cost.flops import flops_per_token
from debubble.planner.frameworks.case import Case
from debubble.planner.frameworks.flags import flags
from debubble.planner.frameworks.table import FRAMEWORKS, find_framework
from debubble.planner.frameworks.torch.flags import CSV
from debubble.planner.memory.peaks import RankMemory, memory_of
from debubble.planner.model.shape_traps import shape_traps
from debubble.planner.search.evaluate import (
    Asked,
    Plan,
    efficiency,
    origin,
    relative_error,
    simulated,
    speed,
)
from debubble.planner.search.found import Found


def plan_data(asked: Asked, plan: Plan) -> dict[str, Any]:
    """A plan as plain data, in seconds and bytes."""
    candidate = plan.candidate
    fast = speed(asked, plan.step_time)
    return {
        "degrees": asdict(candidate.degrees),
        "microbatch_size": candidate.microbatch_size,
        "microbatches": candidate.microbatches,
        "schedule": plan.schedule,
        "layers": list(candidate.layers),
        "recompute": candidate.recompute,
        "zero": candidate.zero,
        "step_time": plan.step_time,
        "step_time_error": relative_error(asked, plan) * plan.step_time,
        "efficiency": {"value": efficiency(asked, plan), "origin": origin(asked, plan)},
        "tokens_per_second": fast.tokens_per_second,
        "tflops_per_gpu": fast.flops_per_gpu["causal"] / 1e12,
        "mfu": fast.mfu,
        "bubble_ratio": plan.bubble_ratio,
        "causes": {name: seconds for name, seconds in plan.causes.items() if seconds},
        "memory": [_memory_data(rank) for rank in plan.memory],
        "fits": plan.fits,
        "warnings": list(shape_traps(asked.model, candidate.degrees.tp)),
        "flags": {name: plan_flags(asked, plan, name) for name in FRAMEWORKS},
        **({"lower_bound": plan.lower_bound} if plan.lower_bound else {}),
        **({"instead_of": candidate.schedule} if plan.optimized else {}),
    }


def plan_flags(asked: Asked, plan: Plan, framework: str) -> str:
    """The text with which a framework runs a plan, and what it holds there if that is different."""
    if not plan.optimized:
        gpus = plan.candidate.degrees.gpus
        case = Case.of(asked.model, gpus, asked.training, plan.candidate)
        text = flags(case, framework)
        return text if runs_nothing(text) else _held_there(asked, plan, framework) + text
    return (
        f"# {framework} has no such order; write it with -o {CSV}, and run it on PyTorch with\n"
        f"# debubble.torch.Pipeline({CSV!r}, stages, loss_fn) in a training loop, or\n"
        f"# debubble.torch.titan.pipelining_fn({CSV!r}) in torchtitan\n"
    )


def runs_nothing(text: str) -> bool:
    """Whether flags are comments alone, because the framework does not run the plan."""
    return all(line.startswith("#") for line in text.splitlines())


def _held_there(asked: Asked, plan: Plan, framework: str) -> str:
    """A comment on the fullest rank where a framework keeps other things than were counted."""
    runtime = find_framework(framework).runtime
    if runtime == asked.training.runtime:
        return ""
    training = replace(asked.training, runtime=runtime)
    timeline = simulated(asked, plan.candidate, plan.order)
    ranks = memory_of(asked.model, asked.cluster.gpu, training, plan.candidate, timeline)
    fullest = max(ranks, key=lambda rank: rank.peak)
    line = (
        f"# as {runtime.title} keeps it, rank {fullest.rank} is the fullest with "
        f"{gigabytes(fullest.peak)} of {gigabytes(plan.limit)}"
    )
    if fullest.peak > plan.limit:
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


def data(asked: Asked, found: Found) -> dict[str, Any]:
    """The whole answer as plain data."""
    return {
        "model": model_data(asked),
        "plans": [plan_data(asked, plan) for plan in found.plans],
        "near": [plan_data(asked, plan) for plan in found.near],
        "buys": larger_data(asked, found),
        "considered": found.considered,
        "simulated": found.simulated,
        "left_out": dict(found.left_out),
        "interrupted": found.interrupted,
    }


def larger_data(asked: Asked, found: Found) -> dict[str, Any] | None:
    """What more GPUs bring, as plain data; `saves` are seconds per step."""
    plan = found.larger
    if plan is None:
        return None
    gpus = plan.candidate.degrees.gpus - asked.cluster.gpus
    saves = found.searched.step_time - plan.step_time if found.searched else None
    more = plan_data(with_gpus(asked, plan.candidate.degrees.gpus), plan)
    return {"gpus": gpus, "saves": saves, "plan": more}


def model_data(asked: Asked) -> dict[str, Any]:
    """The model as plain data."""
    model = asked.model
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "flops_per_token": flops_per_token(model, asked.training.sequence),
    }
