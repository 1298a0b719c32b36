"""Mixers of tokens: attention, latent attention and recurrences, their shapes and parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TokenMixer:
    """Shapes that all mixers of tokens share.

    Parameters
    ----------
    window
        Tokens before it that a query sees, None for all.
    chunk
        Tokens of the blocks within which queries see each other (Llama 4), None for one block.
    sinks
        True if every head has a learned number in its softmax (GPT-OSS).
    gate
        Outputs of a projection that gates the result.
    vectors
        Parameters that are no matrices and not named elsewhere: wide norms, decays, convolutions.
    index_heads, index_dim, index_top_k
        Sparse attention (DeepSeek-V3.2): heads and width of the indexer that chooses so many tokens
        for a query; without heads, those that an earlier layer chose.
    """

    window: int | None = None
    chunk: int | None = None
    sinks: bool = False
    gate: int = 0
    vectors: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_top_k: int = 0

    @property
    def reach(self) -> int | None:
        """Most tokens that a query attends to, None for all."""
        return min(filter(None, (self.window, self.index_top_k)), default=None)

    def attended(self, sequence: int) -> float:
        """Return tokens that a query attends to on average under a causal mask.

        With a window of w tokens they are ``w − w² / 2s``, the band of the mask's triangle.
        """
        reach = self.reach
        if self.chunk and self.chunk < (reach or sequence):
            return self.chunk / 2
        if reach is None or reach >= sequence:
            return sequence / 2
        return reach - reach**2 / (2 * sequence)

    @property
    def score_width(self) -> int:
        """Numbers multiplied per pair of tokens: keys' and values' widths over all heads."""
        return 0

    def whole_parameters(self, hidden: int) -> int:  # noqa: ARG002 (as of attention)
        """Return parameters that tensor parallelism does not split: norms, the output's bias."""
        return 0

    def kv_parameters(self, hidden: int) -> int:  # noqa: ARG002 (as of attention)
        """Return parameters of the projections to keys and values, whose heads may be copied."""
        return 0

    def core_flops(self, sequence: int) -> float:
        """Return forward FLOPs per token of what multiplies no weights, under a causal mask."""
        return 2 * self.attended(sequence) * self.score_width + self.extra_flops(sequence)

    def extra_flops(self, sequence: int) -> float:
        """Return those forward FLOPs per token that are not of scores and values: the indexer's."""
        return float(sequence * self.index_heads * self.index_dim)

    def index_parameters(self, hidden: int, rank: int) -> int:
        """Return parameters of the indexer, whose queries come from `rank` numbers."""
        width = self.index_heads * self.index_dim
        if not width:
            return 0
        return width * rank + hidden * (self.index_dim + self.index_heads) + 2 * self.index_dim


@dataclass(frozen=True)
class Attention(TokenMixer):
    """Attention with queries in `heads`, keys and values in `kv_heads`.

    `head_dim` times `heads` need not be the hidden size, and values may have another width, `v_dim`
    (0: the same). `qk_norm` is the normalization of queries and keys (Qwen3), `bias` that of the
    input projections, `out_bias` of the output's. `projected` is 2 where keys and values have
    weights, 1 where values are the keys, 0 where both are an earlier layer's (Gemma 4).
    """

    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: bool = False
    bias: bool = False
    out_bias: bool = False
    v_dim: int = 0
    projected: int = 2

    @property
    def value_dim(self) -> int:
        """Width of a value."""
        return self.v_dim or self.head_dim

    @property
    def _kv_width(self) -> int:
        """Outputs of the projections to keys and values."""
        widths = (self.head_dim, self.value_dim)
        return self.kv_heads * sum(widths[: self.projected])

    def parameters(self, hidden: int) -> int:
        """Return number of parameters, norms before the layer's parts left out."""
        width = self.heads * self.head_dim + self._kv_width
        extra = width * self.bias + self.heads * self.sinks
        return self.matmul_parameters(hidden) + self._vectors(hidden) + extra

    def whole_parameters(self, hidden: int) -> int:
        """Return parameters that tensor parallelism does not split: norms, the output's bias."""
        return self._vectors(hidden) + self.index_parameters(hidden, hidden)

    def _vectors(self, hidden: int) -> int:
        norms = 2 if self.projected else 1
        return norms * self.head_dim * self.qk_norm + hidden * self.out_bias + self.vectors

    def kv_parameters(self, hidden: int) -> int:
        """Return parameters of the projections to keys and values."""
        return self._kv_width * (hidden + self.bias)

    def matmul_parameters(self, hidden: int) -> int:
        """Return weights that every token is multiplied with."""
        width = self.heads * self.head_dim + self._kv_width + self.gate
        down = self.heads * self.value_dim * hidden
        return hidden * width + down + self.index_parameters(hidden, hidden)

    def products(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """Return outputs and inputs of every matrix on one rank of a tensor-parallel group."""
        heads, kv_heads = -(-self.heads // tp), max(self.kv_heads // tp, 1)
        width = heads * self.head_dim + kv_heads * (self._kv_width // self.kv_heads)
        return [(width + -(-self.gate // tp), hidden), (hidden, heads * self.value_dim)]

    @property
    def score_width(self) -> int:
        """Numbers multiplied per pair of tokens: keys' and values' widths over all heads."""
        return self.heads * (self.head_dim + self.value_dim)


@dataclass(frozen=True)
class LatentAttention(TokenMixer):
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

    @property
    def value_dim(self) -> int:
        """Width of a value."""
        return self.v_dim

    def parameters(self, hidden: int) -> int:
        """Return number of parameters, the norms of the latent vectors included."""
        extra = self.q_rank + self.kv_rank + self.vectors + self.heads * self.sinks
        return self.matmul_parameters(hidden) + extra

    def whole_parameters(self, hidden: int) -> int:
        """Return parameters that tensor parallelism does not split: projections down, and norms."""
        narrow = self.q_rank + self.kv_rank
        whole = hidden * (narrow + self.rope_dim) + narrow + self.vectors
        return whole + self.index_parameters(hidden, self.q_rank or hidden)

    def kv_parameters(self, hidden: int) -> int:  # noqa: ARG002 (as of other attention)
        """Return parameters of the projections up to keys and values."""
        return self.kv_rank * self.heads * (self.nope_dim + self.v_dim)

    def matmul_parameters(self, hidden: int) -> int:
        """Return weights that every token is multiplied with."""
        query = self.heads * self.head_dim
        down = hidden * (self.q_rank + self.kv_rank + self.rope_dim + self.gate)
        up = (self.q_rank or hidden) * query
        up += self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        up += self.index_parameters(hidden, self.q_rank or hidden)
        return down + up + self.heads * self.v_dim * hidden

    def products(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """Return outputs and inputs of the matrices down to latent vectors, and of the output's."""
        down = self.q_rank + self.kv_rank + self.rope_dim + -(-self.gate // tp)
        return [(down, hidden), (hidden, -(-self.heads // tp) * self.v_dim)]

    @property
    def score_width(self) -> int:
        """Numbers multiplied per pair of tokens: keys' and values' widths over all heads."""
        return self.heads * (self.head_dim + self.v_dim)


@dataclass(frozen=True)
class Recurrence(TokenMixer):
    """Linear attention, a state-space layer or a short convolution: a state in place of all pairs.

    Parameters
    ----------
    heads, key_dim, value_dim
        The state: so many matrices of so many rows and columns; 0 rows for a convolution alone.
    inputs, outputs
        Outputs of all projections from the hidden size, and inputs of the one back to it.
    inner
        Weights that tokens are multiplied with in between, such as those of step sizes.
    block
        Tokens that are handled like attention before the state is updated; 0 for one by one.
    """

    heads: int
    key_dim: int
    value_dim: int
    inputs: int
    outputs: int
    inner: int = 0
    block: int = 64

    @property
    def kv_heads(self) -> int:
        """Heads of the state."""
        return self.heads

    @property
    def head_dim(self) -> int:
        """Rows of the state."""
        return self.key_dim

    def parameters(self, hidden: int) -> int:
        """Return number of parameters, norms before the layer's parts left out."""
        return self.matmul_parameters(hidden) + self.vectors

    def matmul_parameters(self, hidden: int) -> int:
        """Return weights that every token is multiplied with."""
        return hidden * (self.inputs + self.outputs) + self.inner

    def products(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """Return outputs and inputs of every matrix on one rank of a tensor-parallel group."""
        outputs = -(-self.outputs // tp)
        between = [(-(-self.inner // max(self.outputs, 1)), outputs)]
        return [(-(-self.inputs // tp), hidden), *between, (hidden, outputs)]

    def extra_flops(self, sequence: int) -> float:
        """Return forward FLOPs per token: the state is updated and read, and pairs in a block."""
        pairs = min(self.block, sequence) * (self.key_dim + self.value_dim) * bool(self.key_dim)
        return float(self.heads * (4 * self.key_dim * self.value_dim + pairs))


Mixer = Attention | LatentAttention | Recurrence

NO_MIXER = Recurrence(0, 0, 0, 0, 0)
"""In place of attention, for layers that have none."""
