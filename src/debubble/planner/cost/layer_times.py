"""Seconds of one decoder layer for one microbatch: F, I, W and R, by cause."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from debubble.planner.case import Case
from debubble.planner.cost.layer_work import Times, module_times
from debubble.planner.frameworks.torch.runtime import EVERY_SECOND
from debubble.planner.hardware.kernel_times import memory_time
from debubble.planner.hardware.links import all_gather, all_reduce, dispatch, reduce_scatter, send
from debubble.planner.memory.activations import recompute_modules
from debubble.planner.model.mixers import Attention, Recurrence
from debubble.planner.model.transformer import Layer

EXPOSED = 0.5
"""Share of tensor-parallel communication that stays visible when it runs in pieces during products:
torchtitan's asynchronous tensor parallelism hides half of it on H100, at 8B as at 70B (step times
with and without it in its benchmarks of June 2025)."""


INTERFERENCE = 0.25
"""Share of a collective's time that concurrent work takes longer: Galvatron measures 1.1 to 1.3
times the time of work during a collective."""


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of one layer for one microbatch, communication that nothing hides included."""

    F: float
    I: float
    W: float
    R: float
    """Recompute before the backward, 0 without; with ``"full:N"``, of a recomputed layer."""
    parts: tuple[tuple[str, Times], ...] = ()
    """F, I and W by cause: ``compute``, and exposed communication of ``tp``, ``cp``, ``ep`` and
    ``dp`` (gathered weights, scattered gradients)."""

    @property
    def with_recompute(self) -> Times:
        """F, I with recompute, and W."""
        return Times(self.F, self.I + self.R, self.W)


def layer_times(case: Case, layer: Layer) -> LayerTimes:
    """Return the times of one layer, which do not depend on a candidate's split and schedule."""
    seen = case.candidate.without_order(
        modules=recompute_modules(case), experts=layer.experts is not None
    )
    return _layer_times(
        Case(case.model.without_layers, case.cluster, case.training, seen, case.factors), layer
    )


@lru_cache(maxsize=65536)
def _layer_times(case: Case, layer: Layer) -> LayerTimes:
    candidate = case.candidate
    plain = replace(case, candidate=candidate.without_order("none", (), replicas=False))
    modules, parts = _plain_times(plain, layer)
    parts = parts | {"dp": _sharded(case, layer, parts["compute"])}
    total = sum(parts.values(), Times())
    slack = _host(case, layer, total)
    parts["host"] = slack
    total += slack
    again = 0.0
    if candidate.recompute == "selective":
        names = {part for name in candidate.modules for part in INSIDE.get(name, (name,))}
        again = sum(modules[name].F for name in sorted(names) if name in modules)
        again += parts["ep"].F * ("moe" in candidate.modules)
    elif candidate.recompute != "none":
        again = total.F
    return LayerTimes(total.F, total.I, total.W, again, tuple(parts.items()))


@lru_cache(maxsize=65536)
def _plain_times(case: Case, layer: Layer) -> tuple[dict[str, Times], dict[str, Times]]:
    """Return the times by module and by cause, whatever is computed again or split by replicas."""
    slow = 1 / case.efficiency(experts=layer.experts is not None)
    modules = {name: one * slow for name, one in module_times(case, layer).items()}
    return modules, {
        "compute": sum(modules.values(), Times()),
        "tp": _tensor_parallel(case, layer),
        "cp": _context_parallel(case, layer, modules["core_attn"]),
        "ep": _expert_parallel(case, layer),
    }


INSIDE = {"moe": ("moe", "moe_act", "shared_experts"), EVERY_SECOND: ("mlp", "layernorm")}
"""Modules that are computed again with another one; every second product, and all between them, is
about as much as the feed-forward part and the norms."""


KERNELS = (25, 73)
"""Kernels of a layer's forward and backward that the host starts one by one: PyTorch's profile of a
Llama layer (``benchmarks/gpu_layers_h100.jsonl``)."""


def _host(case: Case, layer: Layer, work: Times) -> Times:
    """Return the seconds in which the GPU waits for the host to start a layer's kernels."""
    runtime, group = case.training.runtime, case.group("tp")
    if layer.experts is not None and runtime.expert_launch:
        third = runtime.expert_launch / 3
        return Times(max(third - work.F, 0.0), max(2 * third - work.I - work.W, 0.0))
    if not runtime.launch:
        return Times()
    collectives = _sums(layer) * (1 + case.training.sequence_parallel) * (group.size > 1)
    started = collectives * group.nodes * runtime.collective_launch
    forward, backward = (runtime.launch * count + started for count in KERNELS)
    return Times(max(forward - work.F, 0.0), max(backward - work.I - work.W, 0.0))


def _sums(layer: Layer) -> int:
    """Return the sums over the tensor-parallel group in one pass: of attention and dense parts.

    Experts work on shards of the sequence: only attention and shared experts communicate.
    """
    return 2 if layer.experts is None or layer.experts.shared_width else 1


def _tensor_parallel(case: Case, layer: Layer) -> Times:
    """Return the times of the group's sums, or of gathers and scatters.

    Inputs that were kept in shards of the sequence are gathered once more for W, during I.
    """
    group = case.group("tp")
    if group.size == 1:
        return Times()
    size = 2 * case.tokens * case.model.hidden
    pairs = _sums(layer)
    runtime = case.training.runtime
    wait = runtime.collective[group.nodes > 1]
    if not case.training.sequence_parallel:
        visible = pairs * (all_reduce(case.gpu, group, size) + wait)
        return Times(visible, visible)
    gather = all_gather(case.gpu, group, size)
    shown = EXPOSED if case.hides_tensors else 1.0
    visible = 2 * pairs * (gather * shown + wait)
    again = not runtime.gathered_inputs
    return Times(visible, visible + pairs * gather * INTERFERENCE * again)


def _context_parallel(case: Case, layer: Layer, core: Times) -> Times:
    """Return the exposed time of keys and values on the ring, next to attention."""
    part, tp, tokens, group = layer.attention, case.degrees.tp, case.tokens, case.group("cp")
    if group.size == 1:
        return Times()
    if isinstance(part, Recurrence):
        # The state alone goes from one rank to the next, before and after.
        state = 4 * part.heads * part.key_dim * part.value_dim / tp
        passed = (group.size - 1) * send(case.gpu, state, inside=group.nodes == 1)
        return Times(passed, passed)
    if isinstance(part, Attention):
        width = max(part.kv_heads // tp, 1) * (part.head_dim + part.value_dim)
    else:
        width = part.heads // tp * (part.head_dim + part.v_dim)
    step = send(case.gpu, 2 * tokens * width, inside=group.nodes == 1)
    hops = group.size - 1
    # Each step's output is joined with that before: read and written in fp32.
    joined = memory_time(case.gpu, 8 * tokens * part.heads * part.head_dim / tp)
    forward = hops * (max(step - core.F / group.size, 0.0) + joined)
    backward = hops * (max(2 * step - core.I / group.size, 0.0) + joined)
    return Times(forward, backward)


def _expert_parallel(case: Case, layer: Layer) -> Times:
    """Return the times in which tokens go to their experts and back; the busiest rank counts."""
    group = case.group("ep")
    if layer.experts is None or group.size == 1:
        return Times()
    tokens = case.tokens / case.degrees.tp * case.training.imbalance
    width, copies = 2 * case.model.hidden, layer.experts.top_k
    apart = case.training.runtime.sends_copies
    both = 2 * dispatch(case.gpu, group, tokens, width, copies, apart=apart)
    return Times(both, both)


def _sharded(case: Case, layer: Layer, compute: Times) -> Times:
    """Return the exposed time of weights and gradients that replicas split, per microbatch.

    With weights in shards (ZeRO-3), each layer is gathered before both passes, its gradients
    scattered; with only gradients in shards (ZeRO-2), that alone. This runs during the neighboring
    layer's work, which it slows down; what takes longer than that work is exposed.
    """
    group, degrees = case.group("shards"), case.degrees
    if not case.scatters or group.size == 1:
        return Times()
    experts = case.model.expert_parameters(layer)
    own = (case.model.layer_parameters(layer) - experts) / degrees.tp + experts / degrees.ep
    if case.candidate.zero == 2:
        scatter = reduce_scatter(case.gpu, group, case.training.gradient_bytes * own)
        exposed = max(scatter - compute.I - compute.W, 0.0)
        return Times(W=INTERFERENCE * scatter + exposed)
    gather = all_gather(case.gpu, group, 2 * own)
    beside = INTERFERENCE * gather
    return Times(
        beside + max(gather - compute.F, 0.0),
        2 * beside + max(2 * gather - compute.I - compute.W, 0.0),
    )
