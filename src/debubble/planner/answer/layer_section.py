"""The section ``layers`` of a plan's cost file: costs of every layer, for any cut into stages.

Times and activations are those of the plan's degrees, microbatch size and recompute. What a rank
holds all the time is weights, gradients and optimizer states of its layers, and then what the
plan's ranks hold otherwise: buffers, gathered weights, fragmentation and the margin. Cut as in the
plan, layers give the costs of the plan's stages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.planner.candidate import recomputed_layers
from debubble.planner.case import Case
from debubble.planner.cost.stage_costs import stage_times
from debubble.planner.memory.activations import stage_activations
from debubble.planner.memory.peaks import FRAGMENTATION, memory_costs
from debubble.planner.memory.state import bytes_per_parameter, stage_parameters
from debubble.planner.search.evaluate import Evaluated

ENDS = {"embedding": 0, "head": -1, "mtp": -2}
"""Ends of the model, each with its stage where every layer is a stage of its own."""


def layer_section(plan: Evaluated) -> dict[str, Any]:
    """Return the section ``layers`` for a finished plan, in seconds and bytes."""
    case, own = plan.case, plan.candidate
    some = recomputed_layers(own.recompute) is not None
    cases = [_alone(case, kind) for kind in (("none", "full") if some else (own.recompute,))]
    costs, *others = map(_costs, cases)
    for again in others:
        for begin, kept in zip(own.first_layers, own.first_kept, strict=False):
            for name, values in costs.items():
                values[1 + begin : 1 + kept] = again[name][1 + begin : 1 + kept]
    activations = (one for alone in cases for one in stage_activations(alone)[1:-2])
    if any(one.kept_for_weight > one.stored for one in activations):
        # Recomputed layers, and those of latent attention, keep more than they store, which is no
        # share: each keeps the share that its stage keeps.
        shares = np.array(memory_costs(case)["kept_for_weight"])
        stages = [0, *np.repeat(np.arange(len(shares)), own.layers), own.mtp_at, -1]
        costs["kept_for_weight"] = shares[stages]
    costs["static"][-1] += (1 + FRAGMENTATION) * plan.memory[case.placement.table[0][-1]].logits
    found: dict[str, Any] = {"cut": list(own.layers), "ranks": list(case.placement.table[0])}
    if case.model.mtp and own.mtp_at != case.degrees.stages - 1:
        found["mtp_stage"] = own.mtp_at
    found |= {name: values[1:-2].tolist() for name, values in costs.items()}
    for end, stage in ENDS.items():
        if end != "mtp" or case.model.mtp:
            found[end] = {name: float(values[stage]) for name, values in costs.items()}
    return found


def _alone(case: Case, recompute: str) -> Case:
    """Return a case with every layer, and every end of the model, on a stage of its own."""
    count = len(case.model.layers)
    candidate = replace(
        case.candidate, degrees=replace(case.degrees, pp=count + 3, chunks=1),
        layers=(0, *[1] * count, 0, 0), mtp_stage=count + 1, recompute=recompute,
    )  # fmt: skip
    return replace(case, candidate=candidate)


def _costs(case: Case) -> dict[str, NDArray[np.float64]]:
    """Return times, activations with shares of them, and lasting bytes of every stage."""
    zero, d, memory = case.candidate.zero, case.degrees, memory_costs(case)
    found = dict(zip("FIW", stage_times(case), strict=True))
    names = ("activation", "kept_for_weight", "recompute_kept")
    found |= {name: np.array(memory[name]) for name in names}
    each = [
        sum(bytes_per_parameter(case.training, zero, replicas))
        for replicas in (d.dp * d.cp, d.expert_dp)
    ]
    return found | {"static": (stage_parameters(case) * each).sum(axis=1)}
