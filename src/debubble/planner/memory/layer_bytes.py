"""Bytes per token that one layer stores, module by module, and how groups of ranks split them.

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

Products in 8 or 4 bits store their inputs so (Transformer Engine keeps what it has cast for the
weight's gradient): those of QKV, of both matrices of the MLP, and of the projection after
attention, whose backward needs its output in 16 bits, too. PyTorch casts once more instead.

Linear attention, state-space layers and convolutions have all that is projected before and after
their convolution in place of Q, K and V, and their result; kernels keep one state per block.

A weight's gradient needs the layer's input and its output's gradient: both stay from I to W (Zero
Bubble, arXiv 2401.10241, table 1: 32sbh of a classic layer).
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add

from debubble.planner.candidate import Training
from debubble.planner.hardware.kernel_times import PRECISIONS
from debubble.planner.model.mixers import Attention, LatentAttention, Mixer, Recurrence
from debubble.planner.model.transformer import Experts, Layer, Model

RECOMPUTE_MODULES = (
    "core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts",
)  # fmt: skip
"""Modules that Megatron-LM's ``--recompute-modules`` can name."""

LOOSE_NORM = 6.0
"""Bytes per number that a norm of single operations stores: its input in fp32, and its result
before the weight."""


@dataclass(frozen=True)
class Parts:
    """Bytes per token of the parts of one layer, by how groups split them.

    `stream` is in the residual stream, `split` is over tensor-parallel ranks, `routed` is over them
    by tokens, and grows with the imbalance of experts; `whole` is on every rank.
    """

    stream: float = 0.0
    split: float = 0.0
    routed: float = 0.0
    whole: float = 0.0

    def __add__(self, other: Parts) -> Parts:
        return Parts(*map(add, vars(self).values(), vars(other).values()))


def input_bytes(training: Training) -> float:
    """Return the bytes of a number that is the stored input of a product."""
    if not training.runtime.narrow_inputs:
        return 2.0
    return {"fp8": 1.0, "fp4": 0.5}.get(PRECISIONS.get(training.precision, ""), 2.0)


def module_parts(model: Model, layer: Layer, training: Training, tp: int) -> dict[str, Parts]:
    """Return all that a layer stores per token, and the part that each module's recompute drops."""
    hidden, mlp, inputs = model.hidden, layer.mlp, input_bytes(training)
    found = dict.fromkeys(RECOMPUTE_MODULES, Parts())
    # The outputs of both norms are the inputs of linear layers.
    found["layernorm"] = _linear_inputs(model, training)
    all_parts = found["layernorm"]
    norm = 2.0 if training.fused_norms else LOOSE_NORM
    all_parts += Parts(stream=(norm * layer.norms + 2.0 * model.dropout) * hidden)
    each = 4.0 if training.flash else (5.0 if model.dropout else 2.0) * training.sequence
    for part in layer.mixers:
        query, both, output = _widths(part, tp)
        if isinstance(part, LatentAttention):
            narrow = 2 * (part.q_rank + part.kv_rank + part.rope_dim)
            all_parts += Parts(stream=2.0 * narrow)
            found["mla_up_proj"] += Parts(split=2.0 * (query + both))
        elif isinstance(part, Attention) and part.qk_norm:
            # Queries and keys before their norms.
            all_parts += Parts(split=2.0 * (query + both / 2))
        narrow_copy = inputs * output if inputs < 2 else 0
        # With a gate there are its output, and the result before it.
        gated = 4.0 * part.gate
        copies = 2.0 * training.runtime.attention_copies * output
        all_parts += Parts(split=2.0 * (query + both + output) + narrow_copy + gated + copies)
        if not isinstance(part, Recurrence):
            found["core_attn"] += Parts(split=each * part.heads)
    all_parts += found["core_attn"]
    # Outputs of the first matrices, and what the last one multiplies.
    gate = 4.0 if training.fused and not training.runtime.plain_gates else 6.0
    factor = inputs + (gate if mlp.gated else 2.0)
    if isinstance(mlp, Experts):
        found["moe_act"] = Parts(routed=2.0 * mlp.top_k * mlp.width)
        found["shared_experts"] = Parts(split=factor * mlp.shared_width)
        routed = mlp.top_k * (inputs * hidden + factor * mlp.width)
        own = 4.0 * mlp.count + (0.0 if training.fused else 2.0 * mlp.top_k * hidden)
        found["moe"] = found["shared_experts"] + Parts(stream=own, routed=routed)
        all_parts += found["moe"]
    else:
        found["mlp"] = Parts(split=factor * mlp.width)
        all_parts += found["mlp"]
    found["all"] = all_parts
    return found


def every_second_product(model: Model, layer: Layer, tp: int) -> Parts:
    """Return the layer's input, attention's output, and every second output of a matrix, per token.

    Queries, values, the gate and the last matrix are the first, third, … of a gated layer. Experts'
    matrices are multiplied in groups, which count as none; what is sent to experts and comes back
    stays.
    """
    mlp, hidden = layer.mlp, model.hidden
    found = Parts(stream=2.0 * hidden)
    for part in layer.mixers:
        query, both, output = _widths(part, tp)
        found += Parts(split=4.0 * part.heads)
        if isinstance(part, LatentAttention):
            narrow = part.q_rank + part.kv_rank + part.rope_dim
            found += Parts(2.0 * (narrow + hidden), 2.0 * output)
        else:
            found += Parts(split=2.0 * (query + both / 2 + output))
    if isinstance(mlp, Experts):
        return found + Parts(split=2.0 * mlp.shared_width, routed=4.0 * mlp.top_k * hidden)
    return found + Parts(2.0 * hidden * mlp.gated, 2.0 * mlp.width)


def kept_parts(model: Model, layer: Layer, training: Training, tp: int) -> Parts:
    """Return inputs of a layer's linear layers and gradients of their outputs, per token."""
    hidden, mlp = model.hidden, layer.mlp
    # With gradients of what both branches add to the residual stream.
    found = _linear_inputs(model, training) + Parts(stream=4.0 * hidden)
    for part in layer.mixers:
        query, both, output = _widths(part, tp)
        if isinstance(part, LatentAttention):
            narrow = 2 * (part.q_rank + part.kv_rank) + part.rope_dim
            both = part.heads * (part.nope_dim + part.v_dim)
            found += Parts(stream=2.0 * narrow)
        found += Parts(split=2.0 * (query + both + output + part.gate))
    width = (3 if mlp.gated else 2) * 2.0
    if not isinstance(mlp, Experts):
        return found + Parts(split=width * mlp.width)
    routed = mlp.top_k * (4.0 * hidden + width * mlp.width)
    return found + Parts(split=width * mlp.shared_width, routed=routed)


def _linear_inputs(model: Model, training: Training) -> Parts:
    """Return inputs of QKV and of the first matrix of a layer, per token.

    Megatron-LM stores them split over the sequence and gathers them once more in the backward;
    PyTorch's tensor parallelism stores what was gathered.
    """
    size = 2 * input_bytes(training) * model.hidden
    return Parts(whole=size) if training.runtime.gathered_inputs else Parts(stream=size)


def _widths(part: Mixer, tp: int) -> tuple[float, float, float]:
    """Return widths of queries, of keys and values together, and of the result, over all ranks.

    Fewer heads of keys than `tp` are there more than once. Of linear attention and the like they
    are all projections, the same after a convolution and activation, and the result.
    """
    if isinstance(part, Recurrence):
        return float(part.inputs), float(part.inputs), float(part.outputs)
    query, output = float(part.heads * part.head_dim), float(part.heads * part.value_dim)
    if isinstance(part, LatentAttention):
        return query, query + output, output
    return query, float(max(part.kv_heads, tp) * (part.head_dim + part.value_dim)), output
