"""Costs of every stage from the times and bytes of its layers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs
from debubble.planner.candidate import Candidate, Training, recomputed_layers, whole_backwards
from debubble.planner.cost.layer_times import EXPOSED, LayerTimes, layer_times
from debubble.planner.cost.layer_work import Product, Times, product_times, tokens_of
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.kernel_times import LAUNCH, memory_time
from debubble.planner.hardware.links import all_gather, all_reduce, group_of, send
from debubble.planner.memory.state import padded_vocabulary
from debubble.planner.model.transformer import Model

Floats = NDArray[np.float64]


def stage_costs(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate, factors: Factors,
    **memory: Any,
) -> Costs:  # fmt: skip
    """Return costs in seconds and bytes of one microbatch on every stage.

    Recompute is part of I and of B; so is W where the runtime then keeps backwards whole. The
    embedding is in the first stage's numbers, head and multi-token prediction in the last one's.
    `memory` has costs in bytes.
    """
    times = times_by_stage(model, cluster, training, candidate, factors)
    p2p = transfer(model, cluster, training, candidate)
    if not training.overlap_p2p:
        # A rank sends and receives at once after every pass, and waits for both.
        times[:2] += p2p if isinstance(p2p, float) else max(map(max, p2p))
        p2p = 0.0
    F, I, W = map(tuple, times.tolist())
    return Costs(**{"memory_unit": "bytes", **memory}, F=F, I=I, W=W, p2p=p2p, time_unit="s")


def stage_times(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate, factors: Factors
) -> list[Times]:
    """Return F, I with recompute, and W of every stage."""
    times = times_by_stage(model, cluster, training, candidate, factors)
    return [Times(*stage) for stage in times.T.tolist()]


def times_by_stage(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate, factors: Factors
) -> Floats:
    """Return F, I with recompute, and W of every stage in rows; shape ``(3, stages)``."""
    if recomputed_layers(candidate.recompute) is None:
        one = candidate.without_order()
        sums, first, last = layer_sums(model, cluster, training, one, factors)
        ends = sums[:, candidate.first_layers]
        found = ends[:, 1:] - ends[:, :-1]
    else:
        one = candidate.without_order("full")
        again, _, _ = layer_sums(model, cluster, training, one, factors)
        one = candidate.without_order("none")
        sums, first, last = layer_sums(model, cluster, training, one, factors)
        begin, end = candidate.first_layers[:-1], candidate.first_layers[1:]
        kept = candidate.first_kept
        found = again[:, kept] - again[:, begin] + (sums[:, end] - sums[:, kept])
    found[:, 0] += first
    found[:, -1] += last
    if whole_backwards(training, candidate):
        found[1] += found[2]
        found[2] = 0.0
    return found


@lru_cache(maxsize=16384)
def layer_sums(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate, factors: Factors
) -> tuple[Floats, Floats, Floats]:
    """Return F, I and W of the first n layers in rows, for every n; of the embedding; of the head.

    All layers recompute alike: not ``"full:N"``, where that depends on the stage.
    """
    assert recomputed_layers(candidate.recompute) is None
    one = {}
    for layer in dict.fromkeys(model.layers):
        found = layer_times(model, layer, cluster, training, candidate, factors)
        one[layer] = _with_recompute(found)
    each = [Times(), *(one[layer] for layer in model.layers)]
    first = embedding_times(model, cluster, training, candidate)
    last = head_times(model, cluster, training, candidate, factors)
    rows = np.array([(times.F, times.I, times.W) for times in (*each, first, last)]).T
    sums = np.cumsum(rows[:, :-2], axis=1)
    return sums, rows[:, -2], rows[:, -1]


def _with_recompute(times: LayerTimes) -> Times:
    return Times(times.F, times.I + times.R, times.W)


LOGITS_FORWARD, LOGITS_BACKWARD = 20, 10
"""Bytes moved per logit by the loss in fp32, partly fused: cast, maximum, exponent, sum; and its
gradient."""


def embedding_times(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate
) -> Times:
    """Return the times of look-up, its sum over the group, and the scattered gradient."""
    gpu, tokens = cluster.gpu, tokens_of(training, candidate)
    size = 2 * tokens * model.hidden
    group = group_of(cluster, candidate.degrees, "tp")
    gather = all_gather if training.sequence_parallel else all_reduce
    shared = gather(gpu, group, size)
    return Times(
        memory_time(gpu, 2 * size) + shared + LAUNCH, shared, memory_time(gpu, 5 * size) + LAUNCH
    )


def head_times(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate, factors: Factors
) -> Times:
    """Return the times of last norm, head and loss, and of multi-token prediction."""
    gpu, degrees = cluster.gpu, candidate.degrees
    tokens = tokens_of(training, candidate)
    experts = model.layers[-1].experts is not None
    slow = 1 / factors.efficiency(gpu, degrees.tp, training, experts=experts)
    vocabulary = padded_vocabulary(model, training, degrees.tp) // degrees.tp
    logits = tokens * vocabulary
    head = product_times(gpu, training, Product(tokens, vocabulary, model.hidden), wide=True)
    head += Times(
        memory_time(gpu, LOGITS_FORWARD * logits), memory_time(gpu, LOGITS_BACKWARD * logits)
    )
    head = head * slow
    group = group_of(cluster, degrees, "tp")
    if group.size > 1:
        shared = all_gather(gpu, group, 2 * tokens * model.hidden)
        shared *= EXPOSED if training.overlap_tp else 1.0
        head += Times(shared, shared)
    if not model.mtp:
        return head
    layer = layer_times(model, model.layers[-1], cluster, training, candidate, factors)
    joined = product_times(gpu, training, Product(tokens, model.hidden, 2 * model.hidden))
    return head + (_with_recompute(layer) + joined * slow + head) * model.mtp


def transfer(
    model: Model, cluster: Cluster, training: Training, candidate: Candidate
) -> float | tuple[tuple[float, ...], ...]:
    """Return seconds between neighboring ranks; a matrix where only some share a node."""
    degrees, gpu = candidate.degrees, cluster.gpu
    if degrees.pp == 1:
        return 0.0
    size = 2 * tokens_of(training, candidate) * model.hidden / degrees.tp
    inside, between = send(gpu, size, inside=True), send(gpu, size, inside=False)
    node, stride = gpu.node, degrees.gpus // degrees.pp
    if stride * degrees.pp <= node:
        return inside
    if stride >= node:
        return between
    nodes = [rank * stride // node for rank in range(degrees.pp)]
    return tuple(tuple(inside if a == b else between for b in nodes) for a in nodes)
