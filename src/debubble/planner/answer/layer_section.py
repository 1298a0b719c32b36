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
from debubble.planner.cost.stage_costs import layer_sums
from debubble.planner.memory.activations import Activation, layer_activations
from debubble.planner.memory.peaks import FRAGMENTATION, memory_costs
from debubble.planner.memory.state import bytes_per_parameter, stage_parameters
from debubble.planner.search.evaluate import Evaluated

Floats = NDArray[np.float64]

PASSES = ("F", "I", "W")


def layer_section(plan: Evaluated) -> dict[str, Any]:
    """Return the section ``layers`` for a finished plan, in seconds and bytes."""
    case, own = plan.case, plan.candidate
    times = _times(case)
    activations = layer_activations(case)
    held = _held(case)
    held["head"] += (1 + FRAGMENTATION) * plan.memory[case.placement.table[0][-1]].logits
    layers = [_memory(case, one) for one in activations.layers]
    found: dict[str, Any] = {"cut": list(own.layers), "ranks": list(case.placement.table[0])}
    if case.model.mtp and own.mtp_at != case.degrees.stages - 1:
        found["mtp_stage"] = own.mtp_at
    found |= {name: row.tolist() for name, row in zip(PASSES, times["layers"], strict=True)}
    found |= {name: [one[name] for one in layers] for name in layers[0]}
    found["static"] = held["layers"].tolist()
    ends = {"embedding": activations.embedding, "head": activations.head}
    if case.model.mtp:
        ends["mtp"] = activations.mtp
    for name, one in ends.items():
        passes = dict(zip(PASSES, times[name].tolist(), strict=True))
        found[name] = passes | _memory(case, one) | {"static": float(held[name])}
    if any(one.kept_for_weight > one.stored for one in activations.layers):
        _share_alike(case, found)
    return found


def _share_alike(case: Case, found: dict[str, Any]) -> None:
    """Give layers the share that their stage keeps for W.

    Recomputed layers, and those of latent attention, keep more than they store: no share.
    """
    name, own = "kept_for_weight", case.candidate
    stages = memory_costs(case)[name]
    found[name] = [share for share, count in zip(stages, own.layers, strict=True)
                   for _ in range(count)]  # fmt: skip
    for part, stage in (("embedding", 0), ("head", -1), ("mtp", own.mtp_at)):
        if part in found:
            found[part][name] = stages[stage]


def _times(case: Case) -> dict[str, Floats]:
    """Return F, I and W of every layer in rows, and of embedding, head and multi-token prediction.

    Layers are recomputed as in the case's own cut.
    """
    own = case.candidate
    some = recomputed_layers(own.recompute) is not None
    sums = layer_sums(case, "none" if some else None)
    layers = np.diff(sums.layers)
    if some:
        again = np.diff(layer_sums(case, "full").layers)
        layers = np.where(_recomputed(case), again, layers)
    found = {
        "layers": layers, "embedding": sums.embedding, "head": sums.head, "mtp": sums.mtp,
    }  # fmt: skip
    if not case.whole_backwards:
        return found
    return {name: _whole(times) for name, times in found.items()}


def _whole(times: Floats) -> Floats:
    """Return F, all of the backward, and nothing."""
    return np.stack([times[0], times[1] + times[2], np.zeros_like(times[2])])


def _recomputed(case: Case) -> NDArray[np.bool_]:
    """Return whether ``"full:N"`` recomputes each layer, by the case's own cut."""
    found = np.zeros(len(case.model.layers), dtype=bool)
    for begin, kept in zip(case.candidate.first_layers, case.candidate.first_kept, strict=False):
        found[begin:kept] = True
    return found


def _memory(case: Case, one: Activation) -> dict[str, float]:
    """Return what a layer or an end of the model stores, and shares of it, as stages have them."""
    kept = 0.0 if case.whole_backwards else one.kept_for_weight
    shares = {"kept_for_weight": kept, "recompute_kept": one.recompute_kept}
    return {"activation": one.stored} | {
        name: min(part / one.stored, 1.0) if one.stored else 0.0 for name, part in shares.items()
    }


def _held(case: Case) -> dict[str, Any]:
    """Return bytes of weights, gradients and optimizer states of layers and of the model's ends."""
    own, d, count = case.candidate, case.degrees, len(case.model.layers)
    # Each on a stage of its own.
    alone = replace(
        own, degrees=replace(d, pp=count + 3, chunks=1), layers=(0, *[1] * count, 0, 0),
        mtp_stage=count + 1,
    )  # fmt: skip
    dense, experts = (
        sum(bytes_per_parameter(case.training, own.zero, replicas))
        for replicas in (d.dp * d.cp, d.expert_dp)
    )
    parameters = stage_parameters(replace(case, candidate=alone))
    each = np.array([dense * one.dense + experts * one.experts for one in parameters])
    return {"embedding": each[0], "layers": each[1:-2], "mtp": each[-2], "head": each[-1]}
