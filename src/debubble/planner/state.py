"""Bytes of weights, gradients and optimizer states, per stage and GPU.

Per parameter, as Megatron-LM documents it for its distributed optimizer, with D replicas:

=====================  =======  ==========  ==========
bf16, fp32 gradients   weights  gradients   optimizer
=====================  =======  ==========  ==========
nothing split          2        4           12
split (ZeRO-1)         2        4           12 / D
split (ZeRO-2)         2        4 / D       12 / D
split (ZeRO-3)         2 / D    4 / D       12 / D
=====================  =======  ==========  ==========

The optimizer's are an fp32 copy of the weights and Adam's two moments; gradients in bf16 take 2,
moments in bf16 2 each. fp16 has fp16 gradients and one more fp32 copy of them with the optimizer:
20 bytes, or 4 + 16 / D. What replicates weights is data parallelism and context parallelism
together; experts have replicas of their own. With weights split (ZeRO-3; Rajbhandari et al., arXiv
1910.02054), two layers at a time are gathered.

DeepSpeed's bf16 optimizer adds bf16 gradients up in a whole fp32 copy: 8 + 12 / D.

PyTorch's FSDP2, as torchtitan uses it, keeps everything in fp32, 16 / D, and gathers bf16 weights.
In a pipeline these stay gathered during the step, and unsplit gradients add up in fp32 until the
stage's last microbatch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from debubble.planner.candidate import Candidate, Training
from debubble.planner.model import Experts, Layer, Model

VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads a vocabulary to a multiple of this, times the tensor-parallel degree."""

GATHERED_LAYERS = 2
"""Layers whose weights are there at a time where replicas split them: one, and the next."""


@dataclass(frozen=True)
class State:
    """Bytes on one GPU that stay from step to step.

    `gathered` is what replicas gather of weights that are split between them, and `summed` what
    is not yet split of gradients; both are there during a step only, and parts of the others.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float = 0.0
    summed: float = 0.0

    @property
    def total(self) -> float:
        """All of it, during a step."""
        return self.weights + self.gradients + self.optimizer

    @property
    def between_steps(self) -> float:
        """All that is there between two steps."""
        return self.total - self.gathered - self.summed

    def __add__(self, other: State) -> State:
        return State(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
            self.gathered + other.gathered,
            self.summed + other.summed,
        )


@dataclass(frozen=True)
class StageParameters:
    """Parameters of one stage on one GPU.

    `dense` are those that all replicas share, `experts` those of its routed experts.
    """

    dense: float
    experts: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.experts


def padded_vocabulary(model: Model, training: Training, tp: int) -> int:
    """Size of the vocabulary as embedding and head have it.

    Megatron-LM pads it to a multiple of 128 times `tp`; others to a multiple of `tp` at most.
    """
    multiple = tp * (VOCABULARY_MULTIPLE if training.runtime == "megatron" else 1)
    return math.ceil(model.vocabulary / multiple) * multiple


@lru_cache(maxsize=65536)
def layer_parameters(model: Model, layer: Layer, tp: int, ep: int) -> tuple[float, float]:
    """Parameters of one layer on one GPU: those of routed experts apart, second.

    Tensor parallelism splits projections, dense parts and shared experts; norms, the router and
    the narrow projections of latent attention are on every GPU. Keys and values of fewer heads
    than `tp` are there more than once. Experts are whole and split over `ep`.
    """
    hidden, mlp = model.hidden, layer.mlp
    whole = 2 * model.norm_parameters + layer.attention.whole_parameters(hidden)
    split: float = layer.attention.parameters(hidden) - layer.attention.whole_parameters(hidden)
    copies = max(tp / layer.attention.kv_heads, 1) - 1
    split += copies * layer.attention.kv_parameters(hidden)
    if not isinstance(mlp, Experts):
        out_bias = hidden * mlp.bias
        return (split + mlp.parameters(hidden) - out_bias) / tp + whole + out_bias, 0.0
    shared = mlp.matrices * hidden * mlp.shared_width
    whole += mlp.common_parameters(hidden) - shared
    return (split + shared) / tp + whole, model.expert_parameters(layer) / ep


@lru_cache(maxsize=1024)
def _sums(model: Model, tp: int, ep: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Parameters of the first n layers on one GPU, for every n: those of experts apart."""
    each = [layer_parameters(model, layer, tp, ep) for layer in model.layers]
    dense, experts = zip(*each, strict=True)
    return tuple(accumulate(dense, initial=0.0)), tuple(accumulate(experts, initial=0.0))


def stage_parameters(
    model: Model, training: Training, candidate: Candidate, stage: int
) -> StageParameters:
    """Parameters of one stage on one GPU, embedding and head included.

    The first stage has the embedding; the last the final norm, the head and multi-token
    prediction. A head that is the embedding's matrix, and multi-token prediction, need a copy of
    the embedding where the last stage is not the first, too.
    """
    degrees = candidate.degrees
    first, last = stage == 0, stage == degrees.stages - 1
    vocabulary = padded_vocabulary(model, training, degrees.tp) * model.hidden / degrees.tp
    begin, end = candidate.first_layers[stage], candidate.first_layers[stage + 1]
    dense, experts = (some[end] - some[begin] for some in _sums(model, degrees.tp, degrees.ep))
    if first:
        dense += vocabulary + model.positions * model.hidden
    if last:
        dense += model.norm_parameters
        if model.mtp:
            own, routed = layer_parameters(model, model.layers[-1], degrees.tp, degrees.ep)
            own += 2 * model.hidden**2 / degrees.tp + 3 * model.norm_parameters
            dense, experts = dense + model.mtp * own, experts + model.mtp * routed
        copies = (not model.tied) + (not first and bool(model.tied or model.mtp))
        dense += copies * vocabulary
    return StageParameters(dense, experts)


def stage_state(model: Model, training: Training, candidate: Candidate, stage: int) -> State:
    """Bytes of one stage's weights, gradients and optimizer states on one GPU."""
    found = stage_parameters(model, training, candidate, stage)
    degrees = candidate.degrees
    dense = _bytes(found.dense, degrees.dp * degrees.cp, training, candidate)
    experts = _bytes(found.experts, degrees.expert_dp, training, candidate)
    state = dense + experts
    gathers = candidate.zero >= (2 if training.runtime == "torch" else 3)
    if not gathers:
        return state
    stays = training.runtime == "torch" and degrees.pp > 1
    gathered = 2 * (found.total if stays else _two_layers(model, candidate, stage))
    summed = 4 * found.total if stays else 0.0
    return state + State(gathered, summed, 0.0, gathered, summed)


def head_state(model: Model, training: Training, candidate: Candidate, share: float) -> State:
    """Bytes of a share of the head, as :func:`stage_state` counts it on the last stage."""
    tp, replicas = candidate.degrees.tp, candidate.degrees.dp * candidate.degrees.cp
    count = padded_vocabulary(model, training, tp) * model.hidden / tp
    return _bytes(share * count, replicas, training, candidate)


def _two_layers(model: Model, candidate: Candidate, stage: int) -> float:
    """Parameters of the most that is gathered at a time: twice the largest layer's."""
    degrees = candidate.degrees
    some = model.layers[candidate.first_layers[stage] : candidate.first_layers[stage + 1]]
    sizes = [sum(layer_parameters(model, layer, degrees.tp, degrees.ep)) for layer in set(some)]
    return min(GATHERED_LAYERS, len(some)) * max(sizes, default=0.0)


def _bytes(count: float, replicas: int, training: Training, candidate: Candidate) -> State:
    weights, gradients, optimizer = bytes_per_parameter(training, candidate.zero, replicas)
    return State(count * weights, count * gradients, count * optimizer)


def bytes_per_parameter(training: Training, zero: int, replicas: int) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer states per parameter."""
    moments = 2 * training.moment_bytes
    if training.runtime == "torch":
        # FSDP2 splits all three or none.
        share = 1 / replicas if zero >= 2 else 1.0
        return 4 * share, 4 * share, 8 * share
    weights, gradients = 2.0, float(training.gradient_bytes)
    optimizer = float(training.master_bytes + moments)
    if training.precision == "fp16":
        gradients, optimizer = 2.0, optimizer + 4.0
    elif training.runtime == "deepspeed":
        gradients += 2.0
    return (
        weights / (replicas if zero >= 3 else 1),
        gradients / (replicas if zero >= 2 else 1),
        optimizer / (replicas if zero >= 1 else 1),
    )
