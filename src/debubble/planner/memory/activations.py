"""Bytes of activations, per layer or stage, microbatch and GPU.

The bytes per token of a layer are in :mod:`debubble.planner.memory.layer_bytes`. Here they are
split over groups of ranks, left out where they are recomputed, and summed over a stage's layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from debubble.core.errors import ParameterError, did_you_mean
from debubble.planner.candidate import Candidate, Training, recomputed_layers
from debubble.planner.frameworks.torch.runtime import EVERY_SECOND
from debubble.planner.memory.layer_bytes import (
    RECOMPUTE_MODULES,
    Parts,
    every_second_product,
    kept_parts,
    module_parts,
)
from debubble.planner.memory.state import padded_vocabulary
from debubble.planner.model.mixers import LatentAttention
from debubble.planner.model.transformer import Layer, Model

LOGIT_BYTES, FUSED_LOGIT_BYTES = 12, 4
"""Bytes per logit while the head runs: in bf16, in fp32, and gradients on the way back; or in bf16
with gradients in bf16, where one kernel computes the loss."""


@dataclass(frozen=True)
class Activation:
    """Bytes of one microbatch on one GPU.

    Parameters
    ----------
    stored
        Activations after the forward, under the chosen recompute.
    kept_for_weight
        Tensors that stay from I to W: inputs of linear layers, and their outputs' gradients.
    recompute_kept
        A layer's input, which stays after a forward if the whole layer is recomputed.
    recomputed
        Recomputed activations on top of `stored` while a backward runs.
    recomputed_for_input
        Recomputed activations while a backward for the input alone runs, which frees less before.
    boundary
        Tensor that goes to the next stage, or its gradient.
    """

    stored: float
    kept_for_weight: float
    recompute_kept: float
    recomputed: float
    recomputed_for_input: float
    boundary: float


def recompute_modules(model: Model, training: Training, candidate: Candidate) -> tuple[str, ...]:
    """Return modules that ``"selective"`` computes again.

    Those that the candidate names; else core attention where its scores are stored, and where
    flash attention stores none, norms, the upward projections of latent attention, and the
    experts' activation function: parts cheap to compute and large to keep (Megatron-Core,
    arXiv 2603.07685). With PyTorch's runtime torchtitan's :data:`EVERY_SECOND`.
    """
    if candidate.recompute != "selective":
        return ()
    if candidate.modules == (EVERY_SECOND,):
        return candidate.modules
    if candidate.modules:
        for name in candidate.modules:
            if name not in RECOMPUTE_MODULES:
                hint = did_you_mean(name, RECOMPUTE_MODULES)
                raise ParameterError(f"recompute of the module '{name}' is not known; {hint}")
        return candidate.modules
    return default_modules(model, training)


class _Key(NamedTuple):
    """The fields of a candidate that activations depend on."""

    tp: int
    cp: int
    ep: int
    size: int
    recompute: str
    modules: tuple[str, ...]


@lru_cache(maxsize=256)
def default_modules(model: Model, training: Training) -> tuple[str, ...]:
    """Return modules that ``"selective"`` computes again where a candidate names none."""
    if training.runtime.selective:
        return training.runtime.selective
    if not training.flash:
        return ("core_attn",)
    latent = any(isinstance(layer.attention, LatentAttention) for layer in model.layers)
    return ("layernorm", *["mla_up_proj"] * latent, *["moe_act"] * bool(model.experts))


def stage_activation(
    model: Model, training: Training, candidate: Candidate, stage: int
) -> Activation:
    """Return bytes summed over the layers of one stage, embedding and head included.

    The first stage stores the embedding's dropout mask, the last the inputs of final norm, head
    and multi-token prediction. Logits are apart: see :func:`logits_bytes`. `recomputed` is that of
    one layer, because layers come back one at a time, less what the backward of layers after it
    has freed by then; `boundary` is that of one layer, too.

    Of ``"full:N"``, layers after the first N and multi-token prediction are not recomputed, as
    with Megatron-LM's ``--recompute-method block``.
    """
    return stage_activations(model, training, candidate)[stage]


def stage_activations(
    model: Model, training: Training, candidate: Candidate
) -> tuple[Activation, ...]:
    """Return the activation of every stage; cached for candidates with the same layers."""
    return _stages(model, training, candidate.layers, _key(model, training, candidate))


@lru_cache(maxsize=16384)
def _stages(
    model: Model, training: Training, layers: tuple[int, ...], key: _Key
) -> tuple[Activation, ...]:
    most = recomputed_layers(key.recompute)
    again = sums = _sums(model, training, key)
    if most is not None:
        again = _sums(model, training, key._replace(recompute="full"))
        sums = _sums(model, training, key._replace(recompute="none"))
    found, begin = [], 0
    for stage, count in enumerate(layers):
        end = begin + count
        middle = end if most is None else begin + min(most, count)
        first = [row[middle] - row[begin] for row in again.totals]
        behind = [row[end] - row[middle] for row in sums.totals]
        recomputed = max(again.recomputed[begin:middle], default=0.0)
        begin = end
        if stage == len(layers) - 1:
            head = sums.head
            behind = [behind[0] + head.stored, behind[1] + head.kept_for_weight,
                      behind[2] + head.recompute_kept]  # fmt: skip
            recomputed = max(recomputed, head.recomputed)
        freed, left = (behind[0], behind[1]) if most is not None else (0.0, 0.0)
        stored, kept, checkpoint = map(sum, zip(first, behind, strict=True))
        if stage == 0:
            stored += sums.embedding
            checkpoint += sums.embedding
        back = max(recomputed - freed, 0.0)
        back_for_input = max(recomputed - max(freed - left, 0.0), 0.0)
        found.append(Activation(stored, kept, checkpoint, back, back_for_input, sums.boundary))
    return tuple(found)


def logits_bytes(model: Model, training: Training, candidate: Candidate) -> float:
    """Return bytes of one microbatch's logits on one GPU, from forward to backward of the head.

    4 of the 12 bytes per logit are its fp32 value; the others its bf16 value, the loss's
    temporaries and gradients. With a fused loss they are the bf16 value and its gradient. Every
    layer of multi-token prediction has logits of its own.
    """
    degrees = candidate.degrees
    tokens = training.sequence * candidate.microbatch_size / degrees.cp
    vocabulary = padded_vocabulary(model, training, degrees.tp) / degrees.tp
    each = FUSED_LOGIT_BYTES if training.fused_loss else LOGIT_BYTES
    return each * tokens * vocabulary * (1 + model.mtp)


def _key(model: Model, training: Training, candidate: Candidate) -> _Key:
    degrees, size = candidate.degrees, candidate.microbatch_size
    modules = recompute_modules(model, training, candidate)
    return _Key(degrees.tp, degrees.cp, degrees.ep, size, candidate.recompute, modules)


@dataclass(frozen=True)
class _Sums:
    """Bytes of the first n layers, for every n, and of the ends."""

    totals: tuple[tuple[float, ...], ...]
    """Stored, kept for W, and kept where whole layers are computed again."""
    recomputed: tuple[float, ...]
    """Of every layer."""
    embedding: float
    head: Activation
    boundary: float


@lru_cache(maxsize=4096)
def _sums(model: Model, training: Training, key: _Key) -> _Sums:
    each = [_activation(model, layer, training, key) for layer in model.layers]
    rows = zip(
        *((one.stored, one.kept_for_weight, one.recompute_kept) for one in each), strict=True
    )
    totals = tuple(tuple(accumulate(row, initial=0.0)) for row in rows)
    tokens = training.sequence * key.size / key.cp
    stream = tokens / (key.tp if training.sequence_parallel else 1)
    inputs = 4 * stream * model.hidden  # of the final norm and of the head
    head = Activation(inputs, inputs, inputs, 0.0, 0.0, 0.0)
    if model.mtp:
        # Inputs of three norms, of the projection, and of the head's second pass.
        one, more = each[-1], 12 * stream * model.hidden
        stays = (one.stored, one.kept_for_weight, one.recompute_kept)
        stored, kept, checkpoint = (inputs + model.mtp * (size + more) for size in stays)
        head = Activation(stored, kept, checkpoint, one.recomputed, one.recomputed, 0.0)
    embedding = stream * model.hidden * model.dropout
    return _Sums(totals, tuple(one.recomputed for one in each), embedding, head, each[0].boundary)


@lru_cache(maxsize=65536)
def _activation(model: Model, layer: Layer, training: Training, key: _Key) -> Activation:
    tokens = training.sequence * key.size / key.cp
    on_stream = key.tp if training.sequence_parallel else 1
    busiest = training.imbalance if key.ep > 1 else 1.0

    def bytes_of(parts: Parts) -> float:
        split = parts.split / key.tp + parts.routed * busiest / on_stream
        return tokens * (parts.stream / on_stream + split + parts.whole)

    drops = module_parts(model, layer, training, key.tp)
    whole = bytes_of(drops["all"])
    checkpoint = bytes_of(Parts(stream=2.0 * model.hidden))
    kept = bytes_of(kept_parts(model, layer, training, key.tp))
    stored = whole
    if key.recompute == "full":
        stored = checkpoint
    elif key.modules == (EVERY_SECOND,):
        stored = bytes_of(every_second_product(model, layer, key.tp))
    elif key.recompute == "selective":
        names = set(key.modules)
        if "moe" in names:
            names -= {"moe_act", "shared_experts"}
        stored -= sum(bytes_of(drops[name]) for name in names)
    return Activation(stored, kept, checkpoint, whole - stored, whole - stored, checkpoint)
