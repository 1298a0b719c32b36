"""FLOPs of a transformer's parts: forward, backward for the input and for the weights apart.

A multiplication and an addition are two FLOPs. A linear layer's I and W each cost as much as its F.
Core attention (queries times keys, scores times values) multiplies no weights: it has no W, and its
I is twice its F, or 2.5 times where flash attention computes the scores once more (Zero Bubble,
arXiv 2401.10241, table 1; FlashAttention, arXiv 2205.14135). The embedding's lookup costs none.

How much of the attention a count contains is a convention. ``"full"`` counts all pairs of tokens
(torchtitan, Korthikanti et al., Megatron-LM up to core 0.11), ``"causal"`` the half that a causal
mask leaves (Megatron-LM from core 0.12 on, Megatron-Bridge). As there, routers and norms are not
counted. Linear attention and state-space layers have no pairs: their core is the state's update and
reading, and the attention within the blocks in which kernels handle tokens; both conventions count
it alike.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from debubble.planner.model.transformer import Experts, Layer, Model


class LayerFlops(NamedTuple):
    """Forward FLOPs per token."""

    linear: float
    """FLOPs of weights that every token meets: projections, dense parts, shared experts."""
    experts: float
    """FLOPs of the routed experts that one token goes to."""
    core: float
    """FLOPs of core attention, the causal half."""

    @property
    def F(self) -> float:
        """Forward FLOPs; those of I and W together are twice as many."""
        return self.linear + self.experts + self.core


@lru_cache(maxsize=4096)
def layer_flops(model: Model, layer: Layer, sequence: int) -> LayerFlops:
    """Return forward FLOPs per token of one layer at a sequence length."""
    mlp, hidden = layer.mlp, model.hidden
    dense, routed = sum(part.matmul_parameters(hidden) for part in layer.mixers), 0
    if isinstance(mlp, Experts):
        dense += mlp.matrices * hidden * mlp.shared_width + 2 * hidden * mlp.latent
        routed = mlp.matrices * (mlp.latent or hidden) * mlp.top_k * mlp.width
    else:
        dense += mlp.matmul_parameters(hidden)
    core = sum(part.core_flops(sequence) for part in layer.mixers)
    return LayerFlops(2.0 * dense, 2.0 * routed, core)


def head_flops(model: Model) -> float:
    """Return FLOPs per token of the head's F, of its I and of its W: two per weight, no padding."""
    return 2.0 * model.hidden * model.vocabulary


def mtp_flops(model: Model, sequence: int) -> LayerFlops:
    """Return forward FLOPs per token of multi-token prediction.

    Each of its layers is one more decoder layer, a projection of twice the hidden size to it, and
    one more pass of the head (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    linear, experts, core = layer_flops(model, model.layers[-1], sequence)
    linear += 4.0 * model.hidden**2 + head_flops(model)
    return LayerFlops(model.mtp * linear, model.mtp * experts, model.mtp * core)


def flops_per_token(model: Model, sequence: int) -> dict[str, float]:
    """Return FLOPs per token of forward and backward, under both conventions.

    Returns
    -------
    dict
        ``"full"`` and ``"causal"``, see the module; multi-token prediction included.
    """
    parts = [layer_flops(model, layer, sequence) for layer in model.layers]
    parts.append(mtp_flops(model, sequence))
    causal = 3 * (head_flops(model) + sum(part.F for part in parts))
    return {"full": causal + 3 * sum(part.core for part in parts), "causal": causal}
