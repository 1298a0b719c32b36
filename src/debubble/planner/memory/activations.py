"""Bytes of activations, per layer or stage, microbatch and GPU.

The bytes per token of a layer are in :mod:`debubble.planner.memory.layer_bytes`. Here they are
split over groups of ranks, left out where they are recomputed, and summed over a stage's layers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import ParameterError, did_you_mean
from debubble.planner.candidate import Candidate, Training, recomputed_layers
from debubble.planner.case import Case
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

FUSED_LOGIT_BYTES = 4
"""Bytes per logit while the head runs, in bf16 with gradients in bf16, where one kernel computes
the loss."""


class Activation(NamedTuple):
    """Bytes of one microbatch on one GPU."""

    stored: float
    """Activations after the forward, under the chosen recompute."""
    kept_for_weight: float
    """Tensors that stay from I to W: inputs of linear layers, and their outputs' gradients."""
    recompute_kept: float
    """A layer's input, which stays after a forward if the whole layer is recomputed."""
    recomputed: float
    """Recomputed activations on top of `stored` while a backward runs."""
    recomputed_for_input: float
    """Recomputed activations while a backward for the input alone runs, which frees less before."""
    boundary: float
    """Tensor that goes to the next stage, or its gradient."""


def recompute_modules(case: Case) -> tuple[str, ...]:
    """Return modules that ``"selective"`` computes again, none for other ways to recompute.

    Those that the candidate names; else those of the runtime, such as torchtitan's
    :data:`EVERY_SECOND`; else core attention where its scores are stored, and where flash attention
    stores none, norms, the upward projections of latent attention, and the experts' activation
    function: parts cheap to compute and large to keep (Megatron-Core, arXiv 2603.07685).
    """
    candidate, training, model = case.candidate, case.training, case.model
    if candidate.recompute != "selective":
        return ()
    if candidate.modules:
        for name in candidate.modules:
            if name not in RECOMPUTE_MODULES and candidate.modules != (EVERY_SECOND,):
                hint = did_you_mean(name, RECOMPUTE_MODULES)
                raise ParameterError(f"recompute of the module '{name}' is not known; {hint}")
        return candidate.modules
    if training.runtime.selective:
        return training.runtime.selective
    if not training.flash:
        return ("core_attn",)
    latent = any(isinstance(one, LatentAttention) for one in model.attentions)
    return ("layernorm", *["mla_up_proj"] * latent, *["moe_act"] * bool(model.experts))


def stage_activations(case: Case) -> tuple[Activation, ...]:
    """Return bytes summed over the layers of every stage, embedding and head included.

    The first stage stores the embedding's dropout mask, the last the inputs of final norm and head,
    that of multi-token prediction its inputs. Logits are apart: see :func:`logits_bytes`.
    `recomputed` is that of one layer, because layers come back one at a time, less what the
    backward of layers after it has freed by then; `boundary` is that of one layer, too.

    Of ``"full:N"``, layers after the first N and multi-token prediction are not recomputed, as
    with Megatron-LM's ``--recompute-method block``.
    """
    own, uneven = case.candidate, case.training.imbalance != 1.0
    modules = recompute_modules(case)
    seen = own.without_order(modules=modules, replicas=False, experts=uneven)
    return _stages(case.model, case.training, own.layers, own.mtp_at, seen)


@lru_cache(maxsize=16384)
def _stages(
    model: Model, training: Training, layers: tuple[int, ...], mtp_at: int, seen: Candidate
) -> tuple[Activation, ...]:
    most = recomputed_layers(seen.recompute)
    ends = np.cumsum((0, *layers))
    begin, end = ends[:-1], ends[1:]
    if most is None:
        again = sums = activation_sums(model, training, seen)
        middle = end
    else:
        again = activation_sums(model, training, seen.recomputing("full"))
        sums = activation_sums(model, training, seen.recomputing("none"))
        middle = np.minimum(begin + most, end)
    behind = sums.totals[:, end] - sums.totals[:, middle]
    behind[:, -1] += sums.head[:3]
    behind[:, mtp_at] += sums.mtp[:3]
    stored, kept, checkpoint = again.totals[:, middle] - again.totals[:, begin] + behind
    stored[0] += sums.embedding
    checkpoint[0] += sums.embedding
    pieces = zip(begin.tolist(), middle.tolist(), strict=True)
    recomputed = np.array([max(again.recomputed[a:b], default=0.0) for a, b in pieces])
    recomputed[mtp_at] = max(recomputed[mtp_at], sums.mtp.recomputed)
    freed, left, _ = behind if most is not None else np.zeros_like(behind)
    back = np.maximum(recomputed - freed, 0.0)
    back_for_input = np.maximum(recomputed - np.maximum(freed - left, 0.0), 0.0)
    boundary = np.full(len(layers), sums.boundary)
    rows = np.stack([stored, kept, checkpoint, back, back_for_input, boundary], axis=1)
    return tuple(Activation(*row) for row in rows.tolist())


def logits_bytes(case: Case) -> float:
    """Return bytes of one microbatch's logits on one GPU, from forward to backward of the head.

    4 of the bytes per logit are its fp32 value; the others its bf16 value, the loss's
    temporaries and gradients. With a fused loss they are the bf16 value and its gradient. Every
    layer of multi-token prediction has logits of its own.
    """
    training, tp = case.training, case.degrees.tp
    tokens = training.sequence * case.candidate.microbatch_size / case.degrees.cp
    split = 1 if training.runtime.whole_logits else tp
    vocabulary = padded_vocabulary(case.model, training, tp) / split
    each = FUSED_LOGIT_BYTES if training.fused_loss else training.runtime.logit_bytes
    return each * tokens * vocabulary * (1 + case.model.mtp)


class ActivationSums(NamedTuple):
    """Bytes of the first n layers, for every n, and of the ends."""

    totals: NDArray[np.float64]
    """Stored, kept for W, and kept where whole layers are computed again, in rows."""
    recomputed: tuple[float, ...]
    """Of every layer."""
    embedding: float
    head: Activation
    mtp: Activation
    boundary: float


@lru_cache(maxsize=4096)
def activation_sums(model: Model, training: Training, seen: Candidate) -> ActivationSums:
    """Return bytes of the first layers and of the ends; all layers recompute alike."""
    degrees = seen.degrees
    kinds, numbers = model.kinds
    some = [layer_activation(model, layer, training, seen) for layer in kinds]
    each = [some[number] for number in numbers.tolist()]
    sums = np.cumsum(np.array([one[:3] for one in some])[numbers], axis=0)
    totals = np.vstack([np.zeros(3), sums]).T
    tokens = training.sequence * seen.microbatch_size / degrees.cp
    stream = tokens / (degrees.tp if training.sequence_parallel else 1)
    # Inputs of the final norm, and of the head for every prediction.
    inputs = (4 + 2 * model.mtp) * stream * model.hidden
    head = Activation(inputs, inputs, inputs, 0.0, 0.0, 0.0)
    mtp = Activation(*[0.0] * 6)
    if model.mtp:
        # Inputs of three norms and of the projection.
        one, more = each[-1], 10 * stream * model.hidden
        stored, kept, checkpoint = (model.mtp * (size + more) for size in one[:3])
        mtp = Activation(stored, kept, checkpoint, one.recomputed, one.recomputed, 0.0)
    embedding = stream * model.hidden * model.dropout
    return ActivationSums(
        totals, tuple(one.recomputed for one in each), embedding, head, mtp, each[0].boundary
    )


@lru_cache(maxsize=65536)
def layer_activation(model: Model, layer: Layer, training: Training, seen: Candidate) -> Activation:
    """Return bytes of one layer; of the candidate degrees, size, recompute and modules count."""
    tp, recompute = seen.degrees.tp, seen.recompute
    tokens = training.sequence * seen.microbatch_size / seen.degrees.cp
    on_stream = tp if training.sequence_parallel else 1
    busiest = training.imbalance if seen.degrees.ep > 1 else 1.0

    def bytes_of(parts: Parts) -> float:
        split = parts.split / tp + parts.routed * busiest / on_stream
        return tokens * (parts.stream / on_stream + split + parts.whole)

    drops = module_parts(model, layer, training, tp)
    whole = bytes_of(drops["all"])
    checkpoint = bytes_of(Parts(stream=2.0 * model.hidden))
    kept = bytes_of(kept_parts(model, layer, training, tp))
    stored = whole
    if recompute == "full":
        stored = checkpoint
    elif seen.modules == (EVERY_SECOND,):
        stored = bytes_of(every_second_product(model, layer, tp))
    elif recompute == "selective":
        names = set(seen.modules)
        if "moe" in names:
            names -= {"moe_act", "shared_experts"}
        stored -= sum(bytes_of(drops[name]) for name in names)
    return Activation(stored, kept, checkpoint, whole - stored, whole - stored, checkpoint)
