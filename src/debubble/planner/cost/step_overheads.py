"""Overheads of a step outside its pipeline: gradient sums, optimizer, new weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from debubble.core.placement import Placement
from debubble.planner.candidate import Candidate, Training
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.gpus import Gpu
from debubble.planner.hardware.kernel_times import memory_time
from debubble.planner.hardware.links import END_NETWORK, NETWORK, all_gather, all_reduce, group_of
from debubble.planner.memory.state import StageParameters, scatters, stage_parameters
from debubble.planner.model.transformer import Model

GRADIENT_BYTES = 20
"""Bytes of an optimizer step per parameter for its fp32 gradient: read for the norm, read and
written to clip it, read by Adam, and set to zero."""
WEIGHT_BYTES = 14
"""Bytes of an optimizer step per parameter for weights: the fp32 weight is read and written, then
read again and written in 16 bits."""
SCALED_BYTES = 14
"""Bytes per parameter that fp16 adds: gradients are copied to fp32, checked and divided by the
loss's scale."""


@dataclass(frozen=True)
class StepEnds:
    """Seconds of every rank that nothing hides."""

    gradients: tuple[float, ...]
    """Seconds from the end of a rank's last action until the replicas' gradients are summed."""
    optimizer: tuple[float, ...]
    weights: tuple[float, ...]
    """Seconds to gather the new weights, before the next step's first forward."""


def step_ends(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate,
    backward: tuple[float, ...], placement: Placement,
) -> StepEnds:  # fmt: skip
    """Return the overheads of a step on every rank.

    Gradients that are reduced during other work show the time beyond the backward of the
    rank's last stage, and at least one layer's; those that every microbatch scatters, one layer's.
    Without overlap everything shows.

    `backward` are the seconds of one microbatch's backward on every stage, during which gradients
    are reduced.
    """
    degrees, gpu = candidate.degrees, cluster.gpu
    if not training.overlap_dp:
        gpu = replace(gpu, nic=gpu.nic * END_NETWORK / NETWORK)
    shards, experts = group_of(cluster, degrees, "shards"), group_of(cluster, degrees, "expert_dp")
    split, scattered = candidate.zero >= 1, scatters(training, candidate)
    reduce = all_gather if split else all_reduce

    @cache
    def shared(part: StageParameters) -> tuple[float, float]:
        """Return seconds to reduce gradients and to gather weights; most stages are like others."""
        return (
            reduce(gpu, shards, training.gradient_bytes * part.dense)
            + reduce(gpu, experts, training.gradient_bytes * part.experts),
            all_gather(gpu, shards, 2 * part.dense) + all_gather(gpu, experts, 2 * part.experts),
        )

    gradients, optimizer, weights = [], [], []
    for rank in range(degrees.pp):
        here = [stage for row in placement.table for stage, home in enumerate(row) if home == rank]
        own = [stage_parameters(model, training, candidate, stage) for stage in here]
        reduced, gathered = zip(*map(shared, own), strict=True)
        # The stage that comes first in the model ends the step and begins the next.
        last = min(range(len(here)), key=here.__getitem__)
        layers = max(candidate.layers[here[last]], 1)
        beside = backward[here[last]]
        if scattered:
            gradients.append(reduced[last] / layers)
        elif training.overlap_dp:
            gradients.append(max(reduced[last] - beside, reduced[last] / layers))
        else:
            gradients.append(sum(reduced))
        if candidate.zero >= 3:
            weights.append(gathered[last] / layers)
        elif training.overlap_dp:
            weights.append(max(gathered[last] - beside / 2, gathered[last] / layers) * split)
        else:
            weights.append(sum(gathered) * split)
        optimizer.append(_optimizer(gpu, training, own, (shards.size, experts.size), split=split))
    return StepEnds(tuple(gradients), tuple(optimizer), tuple(weights))


def _optimizer(
    gpu: Gpu, training: Training, own: list[StageParameters], shards: tuple[int, int],
    *, split: bool,
) -> float:  # fmt: skip
    """Return seconds in which the optimizer reads and writes this rank's share of all states."""
    dense, routed = sum(part.dense for part in own), sum(part.experts for part in own)
    share = dense / shards[0] + routed / shards[1] if split else dense + routed
    moved = WEIGHT_BYTES + 4 * training.moment_bytes + GRADIENT_BYTES
    moved += SCALED_BYTES * (training.precision == "fp16")
    return memory_time(gpu, moved * share)
