"""Bytes of activations, per layer, microbatch and GPU.

Per token and layer, 2 bytes for each stored number (Korthikanti et al., arXiv 2205.05198, sections
4.1 and 4.2, extended to flash attention, grouped queries, gated parts and experts)::

    input of the norms                  2 · 2h      residual stream
    input of QKV and of the first MLP   2 · 2h      residual stream
    dropout masks, where there are any  2 · 1h      residual stream
    Q, K, V and attention's output      2 · (2·a·d + 2·kv·d)
    scores, where they are stored       5·a·s with dropout, else 2·a·s
    flash attention's log-sum-exp       4·a
    MLP                                 gated 6f, plain 4f

Tensor parallelism splits all but the residual stream, and that, too, with sequence parallelism;
context parallelism splits all. With h = a·d and no dropout this is 12h + 4·kv·d + 6f + 4a.

Latent attention has queries and keys of full width and its narrow vectors before and after their
norms. A mixture of experts has, in place of the MLP, k routed copies of the token with 2h + 6f
each, the router's logits in fp32, and shared experts.

A weight's gradient needs the layer's input and its output's gradient: both stay from I to W (Zero
Bubble, arXiv 2401.10241, table 1: 32sbh of a classic layer).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import accumulate

from debubble.core.errors import ParameterError, did_you_mean
from debubble.planner.candidate import Candidate, Training
from debubble.planner.model import Attention, Experts, LatentAttention, Layer, Model
from debubble.planner.state import padded_vocabulary

LOGIT_BYTES = 12
"""Bytes per logit while the head runs: in bf16, in fp32, and gradients on the way back."""

RECOMPUTE_MODULES = (
    "core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts",
)  # fmt: skip
"""What Megatron-LM's ``--recompute-modules`` can name."""


@dataclass(frozen=True)
class Activation:
    """Bytes of one microbatch on one GPU.

    Parameters
    ----------
    stored
        What the forward leaves, under the recompute that was chosen.
    kept_for_weight
        What stays from I to W: inputs of linear layers, and their outputs' gradients.
    recompute_kept
        What a forward leaves where the whole layer is computed again: its input.
    recomputed
        What comes back on top of `stored` while the layer's backward runs.
    boundary
        What goes to the next stage, or comes back as its gradient.
    """

    stored: float
    kept_for_weight: float
    recompute_kept: float
    recomputed: float
    boundary: float


@dataclass(frozen=True)
class _Parts:
    """Bytes per token of the parts of one layer, by how groups split them.

    `stream` is in the residual stream, `split` is over tensor-parallel ranks, `routed` is over them
    by tokens, and grows with the imbalance of experts.
    """

    stream: float = 0.0
    split: float = 0.0
    routed: float = 0.0

    def __add__(self, other: _Parts) -> _Parts:
        return _Parts(
            self.stream + other.stream, self.split + other.split, self.routed + other.routed
        )

    def __sub__(self, other: _Parts) -> _Parts:
        return _Parts(
            self.stream - other.stream, self.split - other.split, self.routed - other.routed
        )


def recompute_modules(model: Model, training: Training, candidate: Candidate) -> tuple[str, ...]:
    """Modules that ``"selective"`` computes again.

    Those that the candidate names; else core attention where its scores are stored, and where
    flash attention stores none, norms, the upward projections of latent attention, and the
    experts' activation function: what is cheap to compute and large to keep (Megatron-Core,
    arXiv 2603.07685).
    """
    if candidate.recompute != "selective":
        return ()
    if candidate.modules:
        for name in candidate.modules:
            if name not in RECOMPUTE_MODULES:
                hint = did_you_mean(name, RECOMPUTE_MODULES)
                raise ParameterError(f"recompute of the module '{name}' is not known; {hint}")
        return candidate.modules
    return default_modules(model, training)


@lru_cache(maxsize=256)
def default_modules(model: Model, training: Training) -> tuple[str, ...]:
    """Modules that ``"selective"`` computes again where a candidate names none."""
    if not training.flash:
        return ("core_attn",)
    latent = any(isinstance(layer.attention, LatentAttention) for layer in model.layers)
    routed = any(layer.experts is not None for layer in model.layers)
    return ("layernorm", *["mla_up_proj"] * latent, *["moe_act"] * routed)


def layer_activation(
    model: Model, layer: Layer, training: Training, candidate: Candidate
) -> Activation:
    """Bytes that one layer stores of one microbatch on one GPU."""
    return _activation(model, layer, training, *_key(model, training, candidate))


def stage_activation(
    model: Model, training: Training, candidate: Candidate, stage: int
) -> Activation:
    """The same summed over the layers of one stage, embedding and head included.

    The first stage stores the embedding's dropout mask, the last the inputs of final norm, head
    and multi-token prediction. Logits are apart: see :func:`logits_bytes`. `recomputed` is that of
    one layer, because layers come back one at a time; `boundary` is that of one layer, too.
    """
    key = _key(model, training, candidate)
    sums = _sums(model, training, *key)
    begin, end = candidate.first_layers[stage], candidate.first_layers[stage + 1]
    stored, kept, checkpoint = (row[end] - row[begin] for row in sums.totals)
    recomputed = max(sums.recomputed[begin:end], default=0.0)
    if stage == 0:
        stored += sums.embedding
        checkpoint += sums.embedding
    if stage == candidate.degrees.stages - 1:
        stored += sums.head.stored
        kept += sums.head.kept_for_weight
        checkpoint += sums.head.recompute_kept
        recomputed = max(recomputed, sums.head.recomputed)
    return Activation(stored, kept, checkpoint, recomputed, sums.boundary)


def logits_bytes(model: Model, training: Training, candidate: Candidate) -> float:
    """Bytes of one microbatch's logits on one GPU, from the last stage's forward to its backward.

    4 of the 12 bytes per logit are its fp32 value; the others its bf16 value, the loss's
    temporaries and gradients. Every layer of multi-token prediction has logits of its own.
    """
    degrees = candidate.degrees
    tokens = training.sequence * candidate.microbatch_size / degrees.cp
    vocabulary = padded_vocabulary(model, training, degrees.tp) / degrees.tp
    return LOGIT_BYTES * tokens * vocabulary * (1 + model.mtp)


_Key = tuple[int, int, int, int, str, tuple[str, ...]]


def _key(model: Model, training: Training, candidate: Candidate) -> _Key:
    """All of a candidate that activations depend on."""
    degrees = candidate.degrees
    modules = recompute_modules(model, training, candidate)
    return (
        degrees.tp, degrees.cp, degrees.ep, candidate.microbatch_size, candidate.recompute, modules
    )  # fmt: skip


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
def _sums(
    model: Model,
    training: Training,
    tp: int,
    cp: int,
    ep: int,
    size: int,
    recompute: str,
    modules: tuple[str, ...],
) -> _Sums:
    key = (tp, cp, ep, size, recompute, modules)
    each = [_activation(model, layer, training, *key) for layer in model.layers]
    rows = zip(*(astuple(one)[:3] for one in each), strict=True)
    totals = tuple(tuple(accumulate(row, initial=0.0)) for row in rows)
    tokens = training.sequence * size / cp
    stream = tokens / (tp if training.sequence_parallel else 1)
    inputs = 4 * stream * model.hidden  # of the final norm and of the head
    head = Activation(inputs, inputs, inputs, 0.0, 0.0)
    if model.mtp:
        # Inputs of three norms, of the projection, and of the head's second pass.
        one, more = each[-1], 12 * stream * model.hidden
        head = Activation(
            inputs + model.mtp * (one.stored + more),
            inputs + model.mtp * (one.kept_for_weight + more),
            inputs + model.mtp * (one.recompute_kept + more),
            one.recomputed,
            0.0,
        )
    embedding = stream * model.hidden * model.dropout
    return _Sums(totals, tuple(one.recomputed for one in each), embedding, head, each[0].boundary)


@lru_cache(maxsize=65536)
def _activation(
    model: Model,
    layer: Layer,
    training: Training,
    tp: int,
    cp: int,
    ep: int,
    size: int,
    recompute: str,
    modules: tuple[str, ...],
) -> Activation:
    tokens = training.sequence * size / cp
    on_stream = tp if training.sequence_parallel else 1
    busiest = training.imbalance if ep > 1 else 1.0

    def bytes_of(parts: _Parts) -> float:
        split = parts.split / tp + parts.routed * busiest / on_stream
        return tokens * (parts.stream / on_stream + split)

    drops = _module_parts(model, layer, training, tp)
    whole = bytes_of(drops["all"])
    checkpoint = bytes_of(_Parts(stream=2.0 * model.hidden))
    kept = bytes_of(_kept_parts(model, layer, tp))
    stored = whole
    if recompute == "full":
        stored = checkpoint
    elif recompute == "selective":
        names = set(modules)
        if "moe" in names:
            names -= {"moe_act", "shared_experts"}
        stored -= sum(bytes_of(drops[name]) for name in names)
    return Activation(stored, kept, checkpoint, whole - stored, checkpoint)


def _module_parts(model: Model, layer: Layer, training: Training, tp: int) -> dict[str, _Parts]:
    """All that a layer stores per token, and what each module's recompute drops of it."""
    hidden, attention, mlp = model.hidden, layer.attention, layer.mlp
    stream = (4.0 + 4.0 + 2.0 * model.dropout) * hidden
    found = dict.fromkeys(RECOMPUTE_MODULES, _Parts())
    # The outputs of both norms are the inputs of linear layers.
    found["layernorm"] = _Parts(stream=4.0 * hidden)
    query, both = _widths(attention, tp)
    all_parts = _Parts(stream=stream)
    if isinstance(attention, LatentAttention):
        output = float(attention.heads * attention.v_dim)
        narrow = 2 * (attention.q_rank + attention.kv_rank + attention.rope_dim)
        all_parts += _Parts(stream=2.0 * narrow)
        found["mla_up_proj"] = _Parts(split=2.0 * (query + both))
    else:
        output = query
        if attention.qk_norm:
            # Queries and keys before their norms.
            all_parts += _Parts(split=2.0 * (query + both / 2))
    all_parts += _Parts(split=2.0 * (query + both + output))
    if training.flash:
        scores = 4.0 * attention.heads
    else:
        scores = (5.0 if model.dropout else 2.0) * attention.heads * training.sequence
    found["core_attn"] = _Parts(split=scores)
    all_parts += found["core_attn"]
    # Outputs of the first matrices, and what the last one multiplies.
    factor = (6.0 if training.fused else 8.0) if mlp.gated else 4.0
    if isinstance(mlp, Experts):
        found["moe_act"] = _Parts(routed=2.0 * mlp.top_k * mlp.width)
        found["shared_experts"] = _Parts(split=factor * mlp.shared_width)
        routed = mlp.top_k * (2.0 * hidden + factor * mlp.width)
        own = 4.0 * mlp.count + (0.0 if training.fused else 2.0 * mlp.top_k * hidden)
        found["moe"] = found["shared_experts"] + _Parts(stream=own, routed=routed)
        all_parts += found["moe"]
    else:
        found["mlp"] = _Parts(split=factor * mlp.width)
        all_parts += found["mlp"]
    found["all"] = all_parts
    return found


def _kept_parts(model: Model, layer: Layer, tp: int) -> _Parts:
    """Inputs of a layer's linear layers and gradients of their outputs, per token."""
    hidden, attention, mlp = model.hidden, layer.attention, layer.mlp
    query, both = _widths(attention, tp)
    # Inputs of QKV and of the first matrix, gradients of both residual branches.
    found = _Parts(stream=2.0 * 4 * hidden)
    if isinstance(attention, LatentAttention):
        narrow = 2 * (attention.q_rank + attention.kv_rank) + attention.rope_dim
        up = attention.heads * (attention.nope_dim + attention.v_dim)
        found += _Parts(stream=2.0 * narrow, split=2.0 * (query + up))
        found += _Parts(split=2.0 * attention.heads * attention.v_dim)
    else:
        found += _Parts(split=2.0 * (query + both + query))
    if isinstance(mlp, Experts):
        width = (3 if mlp.gated else 2) * 2.0
        found += _Parts(split=width * mlp.shared_width)
        found += _Parts(routed=mlp.top_k * (4.0 * hidden + width * mlp.width))
    else:
        found += _Parts(split=(3 if mlp.gated else 2) * 2.0 * mlp.width)
    return found


def _widths(attention: Attention | LatentAttention, tp: int) -> tuple[float, float]:
    """Width of queries, and of keys and values together, over all ranks.

    Fewer heads of keys than `tp` are there more than once.
    """
    query = float(attention.heads * attention.head_dim)
    if isinstance(attention, LatentAttention):
        return query, query + attention.heads * attention.v_dim
    return query, 2.0 * max(attention.kv_heads, tp) * attention.head_dim
