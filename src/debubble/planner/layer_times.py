"""Seconds of one decoder layer for one microbatch: F, I, W and R, by what they are spent on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from debubble.planner.calibrate import Factors
from debubble.planner.candidate import Candidate, Training
from debubble.planner.cluster import Cluster
from debubble.planner.efficiency import memory_time
from debubble.planner.gpus import Gpu
from debubble.planner.layer_work import (
    Times,
    attention_products,
    core_times,
    elementwise_times,
    mlp_products,
    product_times,
    tokens_of,
)
from debubble.planner.links import all_gather, all_reduce, dispatch, group_of, send
from debubble.planner.model import Attention, Layer, Model

EXPOSED = 0.5
"""Share of tensor-parallel communication that stays visible when it runs in pieces beside products:
torchtitan's asynchronous tensor parallelism hides half of it on H100, at 8B as at 70B (step times
with and without it in its benchmarks of June 2025)."""


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of one layer for one microbatch.

    Parameters
    ----------
    F, I, W
        Forward, and the two halves of the backward, communication that nothing hides included.
    R
        What recompute adds before the backward, 0 without.
    parts
        The same by cause: ``compute``, and communication that is exposed of ``tp``, ``cp``, ``ep``
        and ``dp`` (gathered weights).
    """

    F: float
    I: float
    W: float
    R: float
    parts: tuple[tuple[str, Times], ...] = ()


def layer_times(
    model: Model, layer: Layer, cluster: Cluster, training: Training, candidate: Candidate,
    factors: Factors,
) -> LayerTimes:  # fmt: skip
    """Times of one layer under a candidate, of whose split and schedule they do not depend."""
    frame, seen = model.without_layers, candidate.without_order
    return _layer_times(frame, layer, cluster, training, seen, factors)


@lru_cache(maxsize=65536)
def _layer_times(
    model: Model, layer: Layer, cluster: Cluster, training: Training, candidate: Candidate,
    factors: Factors,
) -> LayerTimes:  # fmt: skip
    gpu = cluster.gpu
    slow = 1 / factors.efficiency(
        gpu, candidate.degrees.tp, training, experts=layer.experts is not None
    )
    core = core_times(layer, gpu, training, candidate) * slow
    compute = _compute(model, layer, gpu, training, candidate) * slow + core
    parts = {
        "compute": compute,
        "tp": _tensor_parallel(model, layer, cluster, training, candidate),
        "cp": _context_parallel(layer, cluster, training, candidate, core),
        "ep": _expert_parallel(model, layer, cluster, training, candidate),
        "dp": _gathered_weights(model, layer, cluster, candidate, compute),
    }
    total = sum(parts.values(), Times())
    again = {"none": 0.0, "selective": 0.0 if training.flash else core.F, "full": total.F}
    return LayerTimes(total.F, total.I, total.W, again[candidate.recompute], tuple(parts.items()))


def _compute(
    model: Model, layer: Layer, gpu: Gpu, training: Training, candidate: Candidate
) -> Times:
    """Everything but the core of attention; the busiest experts' load decides."""
    tokens, tp = tokens_of(training, candidate), candidate.degrees.tp
    total = elementwise_times(model, layer, gpu, training, candidate)
    for product in attention_products(model, layer, tokens, tp):
        total += product_times(gpu, training, product)
    for product in mlp_products(model, layer.mlp, tokens, candidate):
        busiest = training.imbalance if product.count > 1 else 1.0
        total += product_times(gpu, training, product) * busiest
    return total


def _tensor_parallel(
    model: Model, layer: Layer, cluster: Cluster, training: Training, candidate: Candidate
) -> Times:
    """Two sums over the group per layer and pass, or gathers and scatters in their place.

    Weights that were kept in shards of the sequence are gathered once more for W, beside I. Experts
    work on shards of the sequence: only attention and shared experts communicate.
    """
    gpu, degrees = cluster.gpu, candidate.degrees
    group = group_of(cluster, degrees, "tp")
    if group.size == 1:
        return Times()
    size = 2 * tokens_of(training, candidate) * model.hidden
    experts = layer.experts
    pairs = 2 if experts is None or experts.shared_width else 1
    if training.sequence_parallel:
        one = 2 * all_gather(gpu, group, size)
    else:
        one = all_reduce(gpu, group, size)
    visible = pairs * one * (EXPOSED if training.overlap_tp else 1.0)
    return Times(visible, visible)


def _context_parallel(
    layer: Layer, cluster: Cluster, training: Training, candidate: Candidate, core: Times
) -> Times:
    """Keys and values go round the ring beside attention; what a step takes longer is exposed."""
    gpu, degrees, part = cluster.gpu, candidate.degrees, layer.attention
    group = group_of(cluster, degrees, "cp")
    if group.size == 1:
        return Times()
    if isinstance(part, Attention):
        width = 2 * max(part.kv_heads // degrees.tp, 1) * part.head_dim
    else:
        width = part.heads // degrees.tp * (part.head_dim + part.v_dim)
    step = send(
        gpu, 2 * tokens_of(training, candidate) * width, inside=group.nodes == 1
    )  # fmt: skip
    hops = group.size - 1
    # Each step's output is joined with that before: read and written in fp32.
    joined = memory_time(
        gpu, 8 * tokens_of(training, candidate) * part.heads * part.head_dim / degrees.tp
    )
    forward = hops * (max(step - core.F / group.size, 0.0) + joined)
    backward = hops * (max(2 * step - core.I / group.size, 0.0) + joined)
    return Times(forward, backward)


def _expert_parallel(
    model: Model, layer: Layer, cluster: Cluster, training: Training, candidate: Candidate
) -> Times:
    """Tokens go to their experts and back, forward and backward; the busiest rank gets most."""
    gpu, degrees, experts = cluster.gpu, candidate.degrees, layer.experts
    group = group_of(cluster, degrees, "ep")
    if experts is None or group.size == 1:
        return Times()
    tokens = tokens_of(training, candidate) / degrees.tp * training.imbalance
    both = 2 * dispatch(gpu, group, tokens, 2 * model.hidden, experts.top_k)
    return Times(both, both)


def _gathered_weights(
    model: Model, layer: Layer, cluster: Cluster, candidate: Candidate, compute: Times
) -> Times:
    """With weights in shards, each layer is gathered before both passes, its gradients scattered.

    This runs beside the neighbouring layer's work; what takes longer than that is exposed.
    """
    degrees = candidate.degrees
    group = group_of(cluster, degrees, "shards")
    if candidate.zero < 3 or group.size == 1:
        return Times()
    experts = model.expert_parameters(layer)
    own = (model.layer_parameters(layer) - experts) / degrees.tp + experts / degrees.ep
    gather = all_gather(cluster.gpu, group, 2 * own)
    return Times(
        max(gather - compute.F, 0.0), max(2 * gather - compute.I - compute.W, 0.0)
    )  # fmt: skip
