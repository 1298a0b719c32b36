"""What a step does beside its pipeline: gradients over replicas, optimizer, weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from debubble.planner.candidate import Candidate, Training
from debubble.planner.cluster import Cluster
from debubble.planner.efficiency import memory_time
from debubble.planner.gpus import Gpu
from debubble.planner.links import END_NETWORK, NETWORK, all_gather, all_reduce, group_of
from debubble.planner.model import Model

WEIGHT_BYTES = 10
"""Bytes of an optimizer step per parameter, beside gradient and moments: the fp32 weight read and
written, the 16-bit one written."""


@dataclass(frozen=True)
class StepEnds:
    """Seconds of every rank that nothing hides.

    Parameters
    ----------
    gradients
        From the end of a rank's last action until its gradients are summed over the replicas.
    optimizer
        The optimizer step.
    weights
        Gathering the new weights, before the next step's first forward.
    """

    gradients: tuple[float, ...]
    optimizer: tuple[float, ...]
    weights: tuple[float, ...]


def step_ends(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate,
    backward: tuple[float, ...],
) -> StepEnds:  # fmt: skip
    """The ends of a step on every rank.

    Gradients that are reduced beside other work show what takes longer than the backward of the
    rank's last stage, and at least one layer's. Without overlap everything shows.

    Parameters
    ----------
    model, cluster, training, candidate
        What runs.
    backward
        Seconds of one microbatch's backward on every stage, beside which gradients are reduced.
    """
    degrees, gpu = candidate.degrees, cluster.gpu
    if not training.overlap_dp:
        gpu = replace(gpu, nic=gpu.nic * END_NETWORK / NETWORK)
    shards, experts = group_of(cluster, degrees, "shards"), group_of(cluster, degrees, "expert_dp")
    split = candidate.zero >= 1
    reduce = all_gather if split else all_reduce
    gradients, optimizer, weights = [], [], []
    for rank in range(degrees.pp):
        own = [
            stage_parameters(model, candidate, stage)
            for stage in range(rank, degrees.stages, degrees.pp)
        ]
        reduced = [
            reduce(gpu, shards, training.gradient_bytes * dense)
            + reduce(gpu, experts, training.gradient_bytes * routed)
            for dense, routed in own
        ]
        gathered = [
            all_gather(gpu, shards, 2 * dense) + all_gather(gpu, experts, 2 * routed)
            for dense, routed in own
        ]
        if candidate.zero >= 3:
            layers = max(len(model.layers) // degrees.pp, 1)
            gradients.append(reduced[0] / layers)
            weights.append(gathered[0] / layers)
        elif training.overlap_dp:
            layers = max(candidate.layers[rank], 1)
            gradients.append(max(reduced[0] - backward[rank], reduced[0] / layers))
            weights.append(max(gathered[0] - backward[rank] / 2, gathered[0] / layers) * split)
        else:
            gradients.append(sum(reduced))
            weights.append(sum(gathered) * split)
        optimizer.append(_optimizer(gpu, training, own, (shards.size, experts.size), split=split))
    return StepEnds(tuple(gradients), tuple(optimizer), tuple(weights))


def _optimizer(
    gpu: Gpu, training: Training, own: list[tuple[float, float]], shards: tuple[int, int],
    *, split: bool,
) -> float:  # fmt: skip
    """Seconds in which the optimizer reads and writes this rank's share of all states."""
    dense, routed = sum(part[0] for part in own), sum(part[1] for part in own)
    share = dense / shards[0] + routed / shards[1] if split else dense + routed
    moved = WEIGHT_BYTES + 4 * training.moment_bytes + training.gradient_bytes
    return memory_time(gpu, moved * share)


def stage_parameters(model: Model, candidate: Candidate, stage: int) -> tuple[float, float]:
    """Parameters of one stage on one GPU: those that every replica has, and experts'."""
    degrees, starts = candidate.degrees, candidate.first_layers
    dense = routed = 0.0
    for layer in model.layers[starts[stage] : starts[stage + 1]]:
        own = model.expert_parameters(layer)
        dense, routed = dense + model.layer_parameters(layer) - own, routed + own
    if stage == 0:
        dense += model.embedding_parameters
    if stage == degrees.stages - 1:
        dense += model.head_parameters if not model.tied or degrees.stages > 1 else 0
    return dense / degrees.tp, routed / degrees.ep
