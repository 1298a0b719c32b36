"""Linear attention, state-space layers and short convolutions, by the keys that describe them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from debubble.planner.model.config_keys import Keys
from debubble.planner.model.mixers import Recurrence

DELTA_BLOCK = 128
"""Tokens per block of delta rules: kernels have 64, and about twice a pair's products."""


def gated_delta(keys: Keys, hidden: int) -> Recurrence:  # noqa: ARG001 (as the others)
    """Return a gated delta net (Qwen3-Next): queries, keys, values, a gate, decay and step."""
    key_heads, heads = keys.count("linear_num_key_heads"), keys.count("linear_num_value_heads")
    key_dim, value_dim = keys.count("linear_key_head_dim"), keys.count("linear_value_head_dim")
    mixed = 2 * key_heads * key_dim + heads * value_dim
    vectors = mixed * keys.count("linear_conv_kernel_dim", 4) + 2 * heads + value_dim
    outputs = heads * value_dim
    return Recurrence(
        heads, key_dim, value_dim, mixed + outputs + 2 * heads, outputs, block=DELTA_BLOCK,
        vectors=vectors,
    )  # fmt: skip


def _kimi_delta(keys: Keys, rank: int) -> Recurrence:
    heads, width = keys.count("linear_num_heads"), keys.count("linear_head_dim")
    whole = heads * width
    # Decay and gate come from the hidden size at once, or through `rank` numbers.
    narrow = rank and 2 * rank
    vectors = 3 * whole * keys.count("linear_conv_kernel_dim", 4) + whole + heads + width
    return Recurrence(
        heads, width, width, 3 * whole + heads + (narrow or 2 * whole), whole,
        inner=narrow * whole, block=DELTA_BLOCK, vectors=vectors,
    )  # fmt: skip


def kimi_delta(keys: Keys, hidden: int) -> Recurrence:  # noqa: ARG001 (as the others)
    """Return Kimi's delta attention, whose decay and gate have a low rank."""
    return _kimi_delta(keys, keys.count("linear_head_dim"))


def wide_kimi_delta(keys: Keys, hidden: int) -> Recurrence:  # noqa: ARG001 (as the others)
    """Return Ling's form of it, with decay and gate of full rank."""
    return _kimi_delta(keys, 0)


def mamba(keys: Keys, hidden: int) -> Recurrence:
    """Return Mamba's selective scan."""
    inner = keys.count("mamba_expand", keys.count("expand", 2)) * hidden
    if "state_size" in keys.values:
        inner = keys.count("intermediate_size", inner)
    states = keys.first(("mamba_d_state", "state_size"), 16)
    rank = keys.first(("mamba_dt_rank", "time_step_rank"), -(-hidden // 16))
    kernel = keys.first(("mamba_d_conv", "conv_kernel"), 4)
    conv_bias = keys.flag("mamba_conv_bias", keys.flag("use_conv_bias", True))
    bias = keys.flag("mamba_proj_bias", keys.flag("use_bias"))
    vectors = inner * (states + 2 + kernel + conv_bias) + bias * (2 * inner + hidden)
    if keys.values.get("model_type") == "jamba":
        vectors += rank + 2 * states
    return Recurrence(
        inner, states, 1, 2 * inner, inner, inner=inner * (2 * rank + 2 * states), block=0,
        vectors=vectors,
    )  # fmt: skip


def _mamba2(keys: Keys, hidden: int, *, normed: bool) -> Recurrence:
    dims = ("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
    inner = keys.count("mamba_expand", keys.count("expand", 2)) * hidden
    width = next((keys.count(key) for key in dims if isinstance(keys.values.get(key), int)), None)
    keys.ignore(*dims)
    names = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    if keys.values.get("model_type") == "mamba2":
        names = names[::-1]
    # Heads of a known width make up the inner width.
    heads = keys.first(names, inner // width if width and inner % width == 0 else None)
    width = width or inner // heads
    inner = keys.count("mamba_d_ssm", heads * width)
    groups = keys.first(("mamba_n_groups", "n_groups", "mamba_ngroups"), 1)
    states = keys.first(("mamba_d_state", "state_size", "ssm_state_size"), 128)
    kernel = keys.first(("mamba_d_conv", "conv_kernel"), 4)
    conv_bias = keys.flag("mamba_conv_bias", keys.flag("use_conv_bias", True))
    bias = keys.flag("use_bias", keys.flag("mamba_proj_bias"))
    block = keys.first(("mamba_chunk_size", "chunk_size"), 256)
    mixed = inner + 2 * groups * states
    inputs = inner + mixed + heads
    vectors = mixed * (kernel + conv_bias) + 3 * heads + inner * normed
    vectors += bias * inputs + keys.flag("projectors_bias", bias) * hidden
    return Recurrence(heads, states, width, inputs, inner, block=block, vectors=vectors)


def mamba2(keys: Keys, hidden: int) -> Recurrence:
    """Return Mamba-2's state-space duality."""
    keys.ignore("time_step_rank", "intermediate_size")
    return _mamba2(keys, hidden, normed=keys.flag("mamba_rms_norm", True))


def lightning(keys: Keys, hidden: int) -> Recurrence:
    """Return MiniMax's lightning attention: one projection for all, a norm and a gate."""
    heads = keys.count("num_attention_heads")
    width = keys.optional("head_dim") or hidden // heads
    whole = heads * width
    block = keys.count("block_size", 256)
    return Recurrence(heads, width, width, 4 * whole, whole, block=block, vectors=whole)


def short_convolution(keys: Keys, hidden: int) -> Recurrence:
    """Return LFM2's gated short convolution."""
    kernel, bias = keys.count("conv_L_cache", 3), keys.flag("conv_bias")
    vectors = hidden * kernel + 5 * hidden * bias
    return Recurrence(hidden, 0, 0, 3 * hidden, hidden, block=0, vectors=vectors)


def gated_linear(keys: Keys, hidden: int) -> Recurrence:
    """Return RecurrentGemma's gated linear recurrent unit."""
    width, heads = keys.count("lru_width", hidden), keys.count("num_attention_heads")
    vectors = width * (keys.count("conv1d_width", 4) + 1 + 1 + 2 + 2) + hidden
    return Recurrence(
        width, 1, 1, 2 * width, width, inner=2 * width * (width // heads), block=0, vectors=vectors
    )


def receptance(keys: Keys, hidden: int) -> Recurrence:
    """Return RWKV's time mixing, and the receptance of its channel mixing."""
    width = keys.count("attention_hidden_size", hidden)
    vectors = 2 * width + 5 * hidden
    return Recurrence(
        width, 1, 1, 3 * width, width, inner=hidden * hidden, block=0, vectors=vectors
    )


def matrix_memory(keys: Keys, hidden: int) -> Recurrence:
    """Return xLSTM's matrix memory."""
    heads = keys.count("num_heads")
    factors = (keys.take("qk_dim_factor") or 0.5, keys.take("v_dim_factor") or 1.0)
    key, value = (int(hidden * float(factor)) for factor in factors)
    keys.ignore("chunk_size", "max_inference_chunksize", "embedding_dim", "num_blocks")
    inputs = 2 * key + 2 * value + 2 * heads
    return Recurrence(heads, key // heads, value // heads, inputs, value, vectors=2 * heads + value)


RECURRENCES: Mapping[str, Callable[[Keys, int], Recurrence]] = {
    reader.__name__: reader
    for reader in (
        gated_delta, kimi_delta, wide_kimi_delta, mamba, mamba2, lightning, short_convolution,
        gated_linear, receptance, matrix_memory,
    )
}  # fmt: skip
"""Readers by the name that a family's row has."""
