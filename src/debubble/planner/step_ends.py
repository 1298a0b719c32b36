"""What a step does beside its pipeline: gradients over replicas, optimizer, weights."""

from __future__ import annotations

from dataclasses import dataclass

from debubble.planner.candidate import Candidate, Training
from debubble.planner.cluster import Cluster
from debubble.planner.efficiency import memory_time
from debubble.planner.links import Group, all_gather, all_reduce, group_of
from debubble.planner.model import Model

STEP_BYTES = 22
"""Bytes that Adam reads and writes per parameter beside its gradient: moments and fp32 weight read
and written, and the 16-bit weight written: 8 + 8 + 4 + 2; with `moment_bytes` 4."""


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

    Parameters
    ----------
    backward
        Seconds of one microbatch's backward on every stage, beside which gradients are reduced.
    """
    degrees, gpu = candidate.degrees, cluster.gpu
    shards, experts = group_of(cluster, degrees, "shards"), group_of(cluster, degrees, "expert_dp")
    gradients, optimizer, weights = [], [], []
    for rank in range(degrees.pp):
        own = [stage_parameters(model, candidate, stage) for stage in stages_of(candidate, rank)]
        hidden = [backward[stage] for stage in stages_of(candidate, rank)]
        dense, routed = (sum(part[i] for part in own) for i in (0, 1))
        split = candidate.zero >= 1
        share = dense / (shards.size if split else 1) + routed / (experts.size if split else 1)
        moved = 2 + 16 + 4 * training.moment_bytes - 16 + 8 + training.gradient_bytes
        optimizer.append(memory_time(gpu, moved * share))
        reduce = [
            _reduced(gpu, shards, training, candidate, part[0])
            + _reduced(gpu, experts, training, candidate, part[1])
            for part in own
        ]
        gather = [
            all_gather(gpu, shards, 2 * part[0]) + all_gather(gpu, experts, 2 * part[1])
            for part in own
        ]
        if candidate.zero >= 3:
            gradients.append(reduce[0] / max(len(model.layers), 1))
            weights.append(gather[0] / max(len(model.layers), 1))
        elif training.overlap_dp:
            gradients.append(_exposed(reduce, hidden, candidate, rank))
            weights.append(_exposed(gather, hidden, candidate, rank) if split else 0.0)
        else:
            gradients.append(sum(reduce))
            weights.append(sum(gather) if split else 0.0)
    return StepEnds(tuple(gradients), tuple(optimizer), tuple(weights))


def stages_of(candidate: Candidate, rank: int) -> range:
    """Stages of one rank, one after the other round the ranks."""
    return range(rank, candidate.degrees.stages, candidate.degrees.pp)


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


def _reduced(
    gpu, group: Group, training: Training, candidate: Candidate, parameters: float
) -> float:
    reduce = all_gather if candidate.zero >= 1 else all_reduce
    return reduce(gpu, group, training.gradient_bytes * parameters)


def _exposed(times: list[float], hidden: list[float], candidate: Candidate, rank: int) -> float:
    """What stays visible of the transfers of a rank's stages, the last of which ends the step.

    All but the last stage's run beside other stages' work; of the last one's, each layer's runs
    beside the next layer's.
    """
    layers = max(candidate.layers[rank], 1)
    return max(times[0] - hidden[0], times[0] / layers)
