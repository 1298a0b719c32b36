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
moments in bf16 2 each, in fp8 1. With the optimizer offloaded, none of that is on the GPU. fp16 has
fp16 gradients and one more fp32 copy of them with the optimizer: 20 bytes, or 4 + 16 / D. Weights
are replicated by data parallelism and context parallelism together; experts have replicas of their
own. With weights split (ZeRO-3; Rajbhandari et al., arXiv 1910.02054), two layers at a time are
gathered.

Products in 8 or 4 bits multiply weights that Transformer Engine casts once per step and keeps, in
both directions: fp8 takes 1 byte where one copy serves both (Blackwell), else 2; mxfp8 2 with a
scale for every 32 numbers, nvfp4 1/2 each with one for every 16. They come on top of the 2 bytes,
or in their place where parameters are gathered narrow (Megatron-LM's ``--fp8-param-gather``).

DeepSpeed's bf16 optimizer adds bf16 gradients up in a whole fp32 copy: 8 + 12 / D.

Gradients that are split (ZeRO-2 and 3) are scattered after the backward of every microbatch, layer
by layer: one layer's whole gradients are there while the next one's come. Only without that
communication would they add up whole, and take as much as with ZeRO-1 (pytorch#126166 describes
this for FSDP2, which offers both).

PyTorch's FSDP2, as torchtitan uses it, keeps everything in fp32, 16 / D, and gathers bf16 weights;
it splits all three or none, so that ZeRO-1 is ZeRO-2 there. In a pipeline weights stay gathered
during the step, and unsplit gradients add up in fp32 until the stage's last microbatch.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.planner.candidate import Degrees, Training
from debubble.planner.case import Case
from debubble.planner.hardware.gpus import Gpu
from debubble.planner.model.transformer import Experts, Layer, Model

GATHERED_LAYERS = 2
"""Layers whose weights, or gradients, are there at a time where replicas split them: one, and the
next."""


class TrainingState(NamedTuple):
    """Bytes on one GPU, with what replicas gather, or have not split yet, during a step."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All bytes."""
        return self.weights + self.gradients + self.optimizer


def padded_vocabulary(model: Model, training: Training, tp: int) -> int:
    """Return the padded size of the vocabulary in embedding and head.

    Megatron-LM pads it to a multiple of 128 times `tp`; others to a multiple of `tp` at most.
    """
    multiple = tp * training.runtime.vocabulary_multiple
    return math.ceil(model.vocabulary / multiple) * multiple


@lru_cache(maxsize=65536)
def layer_parameters(model: Model, layer: Layer, tp: int, ep: int) -> tuple[float, float]:
    """Return parameters of one layer on one GPU: those of routed experts apart, second.

    Tensor parallelism splits projections, dense parts and shared experts; norms, the router and
    the narrow projections of latent attention are on every GPU. Keys and values of fewer heads
    than `tp` are there more than once. Experts are whole and split over `ep`.
    """
    hidden, mlp = model.hidden, layer.mlp
    whole = layer.norms * model.norm_parameters + layer.vectors
    split = 0.0
    for part in layer.mixers:
        own = part.whole_parameters(hidden)
        copies = max(tp / part.kv_heads, 1) - 1
        whole += own
        split += part.parameters(hidden) - own + copies * part.kv_parameters(hidden)
    if not isinstance(mlp, Experts):
        out_bias = hidden * mlp.bias + mlp.vectors
        return (split + mlp.parameters(hidden) - out_bias) / tp + whole + out_bias, 0.0
    shared = mlp.matrices * hidden * mlp.shared_width
    whole += mlp.common_parameters(hidden) - shared
    return (split + shared) / tp + whole, model.expert_parameters(layer) / ep


@lru_cache(maxsize=1024)
def _sums(model: Model, tp: int, ep: int) -> NDArray[np.float64]:
    """Return parameters of the first n layers on one GPU, for every n: those of experts apart."""
    kinds, numbers = model.kinds
    each = np.array([layer_parameters(model, layer, tp, ep) for layer in kinds])
    return np.vstack([np.zeros(2), np.cumsum(each[numbers], axis=0)])


def stage_parameters(case: Case) -> NDArray[np.float64]:
    """Return parameters of every stage on one GPU, embedding and head included.

    The first column has those that all replicas share, the second those of routed experts; shape
    ``(stages, 2)``. The first stage has the embedding; the last the final norm and the head. A head
    that is the embedding's matrix, and multi-token prediction, need a copy of the embedding where
    their stage is not the first, too; one where both are on one stage.
    """
    own = case.candidate
    return _parameters(case.model, case.training, case.degrees, own.layers, own.mtp_at)


@lru_cache(maxsize=16384)
def _parameters(
    model: Model, training: Training, degrees: Degrees, layers: tuple[int, ...], mtp_at: int
) -> NDArray[np.float64]:
    found: NDArray[np.float64]
    (found,) = parameters_of(model, training, degrees, np.array([layers]), mtp_at)
    found.setflags(write=False)
    return found


def parameters_of(
    model: Model, training: Training, degrees: Degrees, cuts: NDArray[np.int64], mtp_at: int
) -> NDArray[np.float64]:
    """Return parameters of every stage of several cuts, those of routed experts apart.

    `cuts` are layers of every stage, shape ``(cuts, stages)``; the result has shape
    ``(cuts, stages, 2)``.
    """
    ends = np.zeros((len(cuts), cuts.shape[1] + 1), dtype=np.int64)
    np.cumsum(cuts, axis=1, out=ends[:, 1:])
    found = np.diff(_sums(model, degrees.tp, degrees.ep)[ends], axis=1)
    vocabulary = padded_vocabulary(model, training, degrees.tp) * model.hidden / degrees.tp
    found[:, 0, 0] += vocabulary + model.positions * model.hidden + model.first_extra
    found[:, -1, 0] += model.norm_parameters + model.last_extra
    if model.mtp:
        own, routed = layer_parameters(model, model.layers[-1], degrees.tp, degrees.ep)
        own += 2 * model.hidden**2 / degrees.tp + 3 * model.norm_parameters
        found[:, mtp_at] += model.mtp * own, model.mtp * routed
    last = cuts.shape[1] - 1
    for stage in {*[last] * model.tied, *[mtp_at] * bool(model.mtp)} - {0}:
        found[:, stage, 0] += vocabulary
    found[:, -1, 0] += (not model.tied) * vocabulary
    return found


def stage_states(case: Case, *, lasting: bool = False) -> tuple[TrainingState, ...]:
    """Return bytes of every stage's weights, gradients and optimizer states on one GPU.

    If only what is `lasting` counts, without the layers that replicas gather or scatter at a time.
    """
    candidate = case.candidate
    cast = cast_bytes(case.training, case.gpu)
    return _states(
        case.model, case.training, case.degrees, candidate.layers, candidate.zero, cast,
        candidate.mtp_at, lasting,
    )  # fmt: skip


@lru_cache(maxsize=16384)
def _states(
    model: Model,
    training: Training,
    degrees: Degrees,
    layers: tuple[int, ...],
    zero: int,
    cast: float,
    mtp_at: int,
    lasting: bool,
) -> tuple[TrainingState, ...]:
    runtime = training.runtime
    in_layers = np.diff(_sums(model, degrees.tp, degrees.ep)[np.cumsum((0, *layers))], axis=0)
    narrow = training.narrow_weights and runtime.narrow_inputs and zero >= 1
    # Split weights are cast as they are gathered.
    added = cast - 2.0 * narrow if zero < 3 else 0.0
    gathers = degrees.dp * degrees.cp > 1 and zero >= (1 if runtime.fsdp else 3)
    stays = runtime.fsdp and degrees.pp > 1
    # What is scattered from buckets is in the margin.
    scatters = zero >= 2 and not (runtime.fsdp or runtime.bucket)
    scattered = gradient_bytes(training) * scatters
    dense, routed = _parameters(model, training, degrees, layers, mtp_at).T
    common = np.array(bytes_per_parameter(training, zero, degrees.dp * degrees.cp))
    apart = np.array(bytes_per_parameter(training, zero, degrees.expert_dp))
    # Weights, gradients and optimizer states in rows.
    found = np.outer(common, dense) + np.outer(apart, routed)
    if gathers or scattered:
        each = 1.0 if runtime.fsdp and training.narrow_weights else 2.0 * (not narrow) + cast
        two = _two_layers(model, degrees.tp, degrees.ep, layers) * (not lasting)
        total = dense + routed
        found[0] += each * (total if stays else two) * gathers
        found[1] += 4 * total if stays else scattered * two
    if added:
        found[0] += added * in_layers.sum(axis=1)
    return tuple(TrainingState(*stage) for stage in found.T.tolist())


def _two_layers(model: Model, tp: int, ep: int, layers: tuple[int, ...]) -> NDArray[np.float64]:
    """Return parameters of twice the largest layer of every stage: the most gathered at a time."""
    kinds, numbers = model.kinds
    sizes = np.array([sum(layer_parameters(model, one, tp, ep)) for one in kinds])[numbers].tolist()
    ends = list(accumulate(layers, initial=0))
    return np.array([
        min(GATHERED_LAYERS, own) * max(sizes[end - own : end], default=0.0)
        for own, end in zip(layers, ends[1:], strict=True)
    ])  # fmt: skip


def cast_bytes(training: Training, gpu: Gpu) -> float:
    """Return bytes per parameter of layers for weights that are cast for products and kept."""
    if not training.runtime.narrow_inputs:
        return 0.0
    if training.precision == "fp8":
        return 1.0 if gpu.fp4 else 2.0
    return {"mxfp8": 2 * (1 + 1 / 32), "nvfp4": 2 * (1 / 2 + 1 / 16)}.get(training.precision, 0.0)


def gathered_bytes(training: Training) -> float:
    """Return bytes per parameter of weights on their way to replicas."""
    if not training.narrow_weights:
        return 2.0
    return 0.5 + 1 / 16 if training.precision == "nvfp4" else 1.0


def gradient_bytes(training: Training) -> float:
    """Return bytes per parameter of the buffer in which gradients add up."""
    if training.precision == "fp16":
        return 2.0
    return float(training.runtime.gradient_bytes or training.gradient_bytes)


def bytes_per_parameter(training: Training, zero: int, replicas: int) -> tuple[float, float, float]:
    """Return bytes of weights, gradients and optimizer states per parameter."""
    moments = 2 * training.moment_bytes
    if training.runtime.fsdp:
        # FSDP2 splits all three or none.
        share = 1 / replicas if zero >= 1 else 1.0
        return 4 * share, 4 * share, 8 * share
    weights, gradients = 2.0, gradient_bytes(training)
    optimizer = float(training.master_bytes + moments)
    if training.offload_optimizer:
        optimizer = 0.0
    elif training.precision == "fp16":
        optimizer += 4.0
    if training.runtime.bucket and training.precision != "fp16":
        gradients += 2.0
    return (
        weights / (replicas if zero >= 3 else 1),
        gradients / (replicas if zero >= 2 else 1),
        optimizer / (replicas if zero >= 1 else 1),
    )
