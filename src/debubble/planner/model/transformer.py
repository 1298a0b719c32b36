"""A transformer as the planner knows it: its layers, their shapes and exact parameter counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class Attention:
    """Attention with queries in `heads`, keys and values in `kv_heads`.

    `head_dim` times `heads` need not be the hidden size. `qk_norm` is the normalization of queries
    and keys (Qwen3), `bias` that of the input projections, `out_bias` of the output's, `sinks` one
    learned number per head (GPT-OSS), `window` the number of tokens a query sees, None for all.
    """

    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: bool = False
    bias: bool = False
    out_bias: bool = False
    sinks: bool = False
    window: int | None = None

    def parameters(self, hidden: int) -> int:
        """Return number of parameters, norms before the layer's parts left out."""
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        extra = width * self.bias + self.heads * self.sinks
        return self.matmul_parameters(hidden) + self.whole_parameters(hidden) + extra

    def whole_parameters(self, hidden: int) -> int:
        """Return parameters that tensor parallelism does not split: norms, the output's bias."""
        return 2 * self.head_dim * self.qk_norm + hidden * self.out_bias

    def kv_parameters(self, hidden: int) -> int:
        """Return parameters of the projections to keys and values."""
        return 2 * self.kv_heads * self.head_dim * (hidden + self.bias)

    def matmul_parameters(self, hidden: int) -> int:
        """Return weights that every token is multiplied with."""
        query, both = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        return hidden * (query + both) + query * hidden

    @property
    def score_width(self) -> int:
        """Numbers multiplied per pair of tokens: keys' and values' widths over all heads."""
        return self.heads * 2 * self.head_dim


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): keys and values from one narrow latent vector.

    `q_rank` and `kv_rank` are the widths of the latent vectors (`q_rank` 0: queries are projected
    at once), `nope_dim` and `rope_dim` a head's width without and with rotation, `v_dim` a value's.
    """

    heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    @property
    def kv_heads(self) -> int:
        """As many heads as queries have, once the latent vector is projected up."""
        return self.heads

    @property
    def head_dim(self) -> int:
        """Width of a query and a key."""
        return self.nope_dim + self.rope_dim

    def parameters(self, hidden: int) -> int:
        """Return number of parameters, the norms of the latent vectors included."""
        return self.matmul_parameters(hidden) + self.q_rank + self.kv_rank

    def whole_parameters(self, hidden: int) -> int:
        """Return parameters that tensor parallelism does not split: projections down, and norms."""
        narrow = self.q_rank + self.kv_rank
        return hidden * (narrow + self.rope_dim) + narrow

    def kv_parameters(self, hidden: int) -> int:  # noqa: ARG002 (as of other attention)
        """Return parameters of the projections up to keys and values."""
        return self.kv_rank * self.heads * (self.nope_dim + self.v_dim)

    def matmul_parameters(self, hidden: int) -> int:
        """Return weights that every token is multiplied with."""
        query = self.heads * self.head_dim
        down = hidden * (self.q_rank + self.kv_rank + self.rope_dim)
        up = (self.q_rank or hidden) * query
        up += self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        return down + up + self.heads * self.v_dim * hidden

    @property
    def score_width(self) -> int:
        """Numbers multiplied per pair of tokens: keys' and values' widths over all heads."""
        return self.heads * (self.head_dim + self.v_dim)


@dataclass(frozen=True)
class Mlp:
    """A dense feed-forward part: two matrices, or three where it is `gated`."""

    width: int
    gated: bool = True
    bias: bool = False

    def parameters(self, hidden: int) -> int:
        """Return number of parameters."""
        matrices = 3 if self.gated else 2
        biases = ((matrices - 1) * self.width + hidden) * self.bias
        return matrices * hidden * self.width + biases

    def matmul_parameters(self, hidden: int) -> int:
        """Return weights that every token is multiplied with."""
        return (3 if self.gated else 2) * hidden * self.width


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: each token goes to `top_k` of `count` experts of one `width`.

    `shared_width` is the summed width of the experts that every token meets, `shared_gate` whether
    a learned gate weighs them; `router_bias` is one number per expert (DeepSeek-V3, GPT-OSS),
    `bias` those of the experts' matrices.
    """

    count: int
    top_k: int
    width: int
    gated: bool = True
    shared_width: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    bias: bool = False

    @property
    def matrices(self) -> int:
        """Matrices of one expert."""
        return 3 if self.gated else 2

    def expert_parameters(self, hidden: int) -> int:
        """Return parameters of one routed expert."""
        biases = ((self.matrices - 1) * self.width + hidden) * self.bias
        return self.matrices * hidden * self.width + biases

    def common_parameters(self, hidden: int) -> int:
        """Return parameters that every token meets: router, shared experts and their gate."""
        shared = self.matrices * hidden * self.shared_width + hidden * self.shared_gate
        return hidden * self.count + self.count * self.router_bias + shared

    def parameters(self, hidden: int) -> int:
        """Return number of parameters."""
        return self.count * self.expert_parameters(hidden) + self.common_parameters(hidden)

    def matmul_parameters(self, hidden: int) -> int:
        """Return weights that one token is multiplied with, router included."""
        wide = self.top_k * self.width + self.shared_width
        return self.matrices * hidden * wide + hidden * self.count


@dataclass(frozen=True)
class Layer:
    """One decoder layer: attention, feed-forward part, and a norm before each."""

    attention: Attention | LatentAttention
    mlp: Mlp | Experts

    @property
    def experts(self) -> Experts | None:
        """The experts of a layer that has some."""
        return self.mlp if isinstance(self.mlp, Experts) else None


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    Parameters
    ----------
    name
        Name for display.
    hidden
        Width of the residual stream.
    layers
        The decoder layers in order; they may differ.
    vocabulary
        Number of tokens, not padded.
    tied
        True if embedding and head are one matrix.
    norm
        ``"rms"`` (one number per channel) or ``"layer"`` (two).
    positions
        Learned position vectors, 0 for none.
    mtp
        Layers of multi-token prediction after the last one; each has a projection of twice the
        hidden size and three norms of its own and shares embedding and head.
    dropout
        True if dropout masks are stored.
    """

    name: str
    hidden: int
    layers: tuple[Layer, ...]
    vocabulary: int
    tied: bool = False
    norm: str = "rms"
    positions: int = 0
    mtp: int = 0
    dropout: bool = False

    @cached_property
    def without_layers(self) -> Model:
        """The model without layers and name, for looking up results of one layer."""
        return replace(self, name="", layers=())

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.hidden, self.layers, self.vocabulary, self.tied, self.mtp))

    def __hash__(self) -> int:
        # Computed once: caches of times and bytes look it up for every plan.
        return self._hash

    @cached_property
    def attentions(self) -> tuple[Attention | LatentAttention, ...]:
        """The kinds of attention that its layers have."""
        return tuple(dict.fromkeys(layer.attention for layer in self.layers))

    @cached_property
    def experts(self) -> int:
        """Experts of a layer that has some, 0 without."""
        return max(layer.experts.count if layer.experts else 0 for layer in self.layers)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm."""
        return self.hidden * (2 if self.norm == "layer" else 1)

    def layer_parameters(self, layer: Layer) -> int:
        """Return parameters of one layer with its two norms."""
        parts = layer.attention.parameters(self.hidden) + layer.mlp.parameters(self.hidden)
        return parts + 2 * self.norm_parameters

    def expert_parameters(self, layer: Layer) -> int:
        """Return parameters of a layer's routed experts; 0 without."""
        experts = layer.experts
        return 0 if experts is None else experts.count * experts.expert_parameters(self.hidden)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding and of learned positions."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the head alone, also where it is the embedding's matrix."""
        return self.vocabulary * self.hidden

    @cached_property
    def parameters(self) -> int:
        """Number of parameters without those of multi-token prediction."""
        ends = self.embedding_parameters + self.norm_parameters
        ends += 0 if self.tied else self.head_parameters
        return ends + sum(self.layer_parameters(layer) for layer in self.layers)

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token meets, without those of multi-token prediction."""
        found = (layer.experts for layer in self.layers if layer.experts is not None)
        idle = sum((one.count - one.top_k) * one.expert_parameters(self.hidden) for one in found)
        return self.parameters - idle
