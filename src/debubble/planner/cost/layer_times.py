"""Seconds of one decoder layer for one microbatch: F, I, W and R, by cause."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from debubble.planner.candidate import Candidate, Training
from debubble.planner.cost.layer_work import Times, module_times, tokens_of
from debubble.planner.cost.published_efficiencies import Factors
from debubble.planner.frameworks.torch.runtime import EVERY_SECOND
from debubble.planner.hardware.cluster import Cluster
from debubble.planner.hardware.kernel_times import memory_time
from debubble.planner.hardware.links import (
    all_gather,
    all_reduce,
    dispatch,
    group_of,
    reduce_scatter,
    send,
)
from debubble.planner.memory.activations import recompute_modules
from debubble.planner.memory.state import scatters
from debubble.planner.model.mixers import Attention, Recurrence
from debubble.planner.model.transformer import Layer, Model

EXPOSED = 0.5
"""Share of tensor-parallel communication that stays visible when it runs in pieces during products:
torchtitan's asynchronous tensor parallelism hides half of it on H100, at 8B as at 70B (step times
with and without it in its benchmarks of June 2025)."""


INTERFERENCE = 0.25
"""Share of a collective's time that concurrent work takes longer: Galvatron measures 1.1 to 1.3
times the time of work during a collective."""


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of one layer for one microbatch.

    Parameters
    ----------
    F, I, W
        Forward, and the two halves of the backward, communication that nothing hides included.
    R
        Recompute before the backward, 0 without; with ``"full:N"``, of a recomputed layer.
    parts
        These seconds by cause: ``compute``, and exposed communication of ``tp``, ``cp``, ``ep`` and
        ``dp`` (gathered weights, scattered gradients).
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
    """Return the times of one layer, which do not depend on a candidate's split and schedule."""
    frame = model.without_layers
    seen = candidate.without_order()
    if candidate.recompute == "selective":
        seen = replace(seen, modules=recompute_modules(model, training, candidate))
    return _layer_times(frame, layer, cluster, training, seen, factors)


@lru_cache(maxsize=65536)
def _layer_times(
    model: Model, layer: Layer, cluster: Cluster, training: Training, candidate: Candidate,
    factors: Factors,
) -> LayerTimes:  # fmt: skip
    gpu = cluster.gpu
    tp, experts = candidate.degrees.tp, layer.experts is not None
    slow = 1 / factors.efficiency(gpu, tp, training, experts=experts)
    times = module_times(model, layer, gpu, training, candidate)
    modules = {name: one * slow for name, one in times.items()}
    compute = sum(modules.values(), Times())
    parts = {
        "compute": compute,
        "tp": _tensor_parallel(model, layer, cluster, training, candidate),
        "cp": _context_parallel(layer, cluster, training, candidate, modules["core_attn"]),
        "ep": _expert_parallel(model, layer, cluster, training, candidate),
        "dp": _sharded(model, layer, cluster, training, candidate, compute),
    }
    total = sum(parts.values(), Times())
    again = 0.0
    if candidate.recompute == "selective":
        again = _selective(modules, parts["ep"], candidate.modules)
    elif candidate.recompute != "none":
        again = total.F
    return LayerTimes(total.F, total.I, total.W, again, tuple(parts.items()))


INSIDE = {"moe": ("moe", "moe_act", "shared_experts"), EVERY_SECOND: ("mlp", "layernorm")}
"""Modules that are computed again with another one; every second product, and all between them, is
about as much as the feed-forward part and the norms."""


def _selective(modules: dict[str, Times], experts: Times, chosen: tuple[str, ...]) -> float:
    """Return the seconds in which some modules run forward again; experts with communication."""
    names = {part for name in chosen for part in INSIDE.get(name, (name,))}
    again = sum(modules[name].F for name in sorted(names) if name in modules)
    return again + experts.F * ("moe" in chosen)


def _tensor_parallel(
    model: Model, layer: Layer, cluster: Cluster, training: Training, candidate: Candidate
) -> Times:
    """Return the times of the group's sums, two per layer and pass, or gathers and scatters.

    Weights that were kept in shards of the sequence are gathered once more for W, during I. Experts
    work on shards of the sequence: only attention and shared experts communicate.
    """
    gpu, degrees = cluster.gpu, candidate.degrees
    group = group_of(cluster, degrees, "tp")
    if group.size == 1:
        return Times()
    size = 2 * tokens_of(training, candidate) * model.hidden
    experts = layer.experts
    pairs = 2 if experts is None or experts.shared_width else 1
    if not training.sequence_parallel:
        visible = pairs * all_reduce(gpu, group, size)
        return Times(visible, visible)
    gather = all_gather(gpu, group, size)
    visible = 2 * pairs * gather * (EXPOSED if training.overlap_tp else 1.0)
    return Times(visible, visible + pairs * gather * INTERFERENCE)


def _context_parallel(
    layer: Layer, cluster: Cluster, training: Training, candidate: Candidate, core: Times
) -> Times:
    """Return the exposed time of keys and values on the ring, next to attention."""
    gpu, degrees, part = cluster.gpu, candidate.degrees, layer.attention
    group, tokens = group_of(cluster, degrees, "cp"), tokens_of(training, candidate)
    if group.size == 1:
        return Times()
    if isinstance(part, Recurrence):
        # The state alone goes from one rank to the next, before and after.
        state = 4 * part.heads * part.key_dim * part.value_dim / degrees.tp
        passed = (group.size - 1) * send(gpu, state, inside=group.nodes == 1)
        return Times(passed, passed)
    if isinstance(part, Attention):
        width = max(part.kv_heads // degrees.tp, 1) * (part.head_dim + part.value_dim)
    else:
        width = part.heads // degrees.tp * (part.head_dim + part.v_dim)
    step = send(gpu, 2 * tokens * width, inside=group.nodes == 1)
    hops = group.size - 1
    # Each step's output is joined with that before: read and written in fp32.
    joined = memory_time(gpu, 8 * tokens * part.heads * part.head_dim / degrees.tp)
    forward = hops * (max(step - core.F / group.size, 0.0) + joined)
    backward = hops * (max(2 * step - core.I / group.size, 0.0) + joined)
    return Times(forward, backward)


def _expert_parallel(
    model: Model, layer: Layer, cluster: Cluster, training: Training, candidate: Candidate
) -> Times:
    """Return the times in which tokens go to their experts and back; the busiest rank counts."""
    gpu, degrees, experts = cluster.gpu, candidate.degrees, layer.experts
    group = group_of(cluster, degrees, "ep")
    if experts is None or group.size == 1:
        return Times()
    tokens = tokens_of(training, candidate) / degrees.tp * training.imbalance
    both = 2 * dispatch(gpu, group, tokens, 2 * model.hidden, experts.top_k)
    return Times(both, both)


def _sharded(
    model: Model, layer: Layer, cluster: Cluster, training: Training, candidate: Candidate,
    compute: Times,
) -> Times:  # fmt: skip
    """Return the exposed time of weights and gradients that replicas split, per microbatch.

    With weights in shards (ZeRO-3), each layer is gathered before both passes, its gradients
    scattered; with only gradients in shards (ZeRO-2), that alone. This runs during the neighboring
    layer's work, which it slows down; what takes longer than that work is exposed.
    """
    degrees = candidate.degrees
    group = group_of(cluster, degrees, "shards")
    if not scatters(training, candidate) or group.size == 1:
        return Times()
    experts = model.expert_parameters(layer)
    own = (model.layer_parameters(layer) - experts) / degrees.tp + experts / degrees.ep
    if candidate.zero == 2:
        scatter = reduce_scatter(cluster.gpu, group, training.gradient_bytes * own)
        exposed = max(scatter - compute.I - compute.W, 0.0)
        return Times(W=INTERFERENCE * scatter + exposed)
    gather = all_gather(cluster.gpu, group, 2 * own)
    beside = INTERFERENCE * gather
    return Times(
        beside + max(gather - compute.F, 0.0),
        2 * beside + max(2 * gather - compute.I - compute.W, 0.0),
    )
