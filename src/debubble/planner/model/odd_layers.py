"""Layers and ends of models whose shapes no row of a table says."""

from __future__ import annotations

from dataclasses import replace

from debubble.planner.model.config_keys import Keys
from debubble.planner.model.mixers import Attention, Mixer
from debubble.planner.model.transformer import Experts, Layer, Mlp, Model


def falcon(keys: Keys, hidden: int, _index: int, layer: Layer) -> Layer:  # noqa: ARG001
    """Return a layer with one head of keys, or several, and one norm or two."""
    new, heads = keys.flag("new_decoder_architecture"), layer.attention.heads
    one = keys.flag("multi_query", True) and not new
    kv_heads = 1 if one else keys.count("num_kv_heads", heads)
    keys.ignore("num_kv_heads")
    norms = keys.count("num_ln_in_parallel_attn", 2 if new else 1)
    norms = norms if new or keys.flag("parallel_attn", True) else 2
    assert isinstance(layer.attention, Attention)
    return replace(layer, attention=replace(layer.attention, kv_heads=kv_heads), norms=norms)


def axk1(keys: Keys, hidden: int, _index: int, layer: Layer) -> Layer:  # noqa: ARG001
    """Return a layer with a norm behind its experts."""
    return replace(layer, norms=3) if layer.experts else layer


def doge(keys: Keys, hidden: int, _kind: str, part: Mixer) -> Mixer:  # noqa: ARG001
    """Return attention with a learned step of every head of values."""
    assert isinstance(part, Attention)
    extra = part.kv_heads * (1 + part.kv_heads * part.head_dim + part.bias)
    return replace(part, vectors=part.vectors + extra)


def gemma4_mixer(keys: Keys, hidden: int, kind: str, part: Mixer) -> Mixer:  # noqa: ARG001
    """Return attention whose full layers have wider heads, and keys for values."""
    assert isinstance(part, Attention)
    if kind == "full_attention":
        wide = keys.optional("global_head_dim")
        part = replace(part, head_dim=wide or part.head_dim)
        if keys.flag("attention_k_eq_v"):
            kv_heads = keys.optional("num_global_key_value_heads") or part.kv_heads
            part = replace(part, projected=1, kv_heads=kv_heads)
    keys.ignore("global_head_dim", "num_global_key_value_heads", "attention_k_eq_v")
    return part


def _reusing(keys: Keys, index: int, layer: Layer) -> Layer:
    """Return a layer without keys and values if it takes those of an earlier one."""
    shared = keys.count("num_kv_shared_layers", 0, least=0)
    if not shared or index < keys.count("num_hidden_layers") - shared:
        return layer
    assert isinstance(layer.attention, Attention)
    return replace(layer, attention=replace(layer.attention, projected=0))


def gemma4(keys: Keys, hidden: int, index: int, layer: Layer) -> Layer:
    """Return a layer with inputs of its own, experts next to the dense part, and shared keys."""
    narrow = keys.count("hidden_size_per_layer_input", 0, least=0)
    own = replace(layer, vectors=2 * narrow * hidden + hidden * bool(narrow))
    layer, wide = _reusing(keys, index, own), keys.flag("use_double_wide_mlp")
    if wide and layer is not own and isinstance(layer.mlp, Mlp):
        layer = replace(layer, mlp=replace(layer.mlp, width=2 * layer.mlp.width))
    if not keys.flag("enable_moe_block"):
        return layer
    experts = Experts(
        keys.count("num_experts"), keys.count("top_k_experts"), keys.count("moe_intermediate_size"),
        shared_width=layer.mlp.width, vectors=hidden, router_bias=True,
    )  # fmt: skip
    return replace(layer, mlp=experts, norms=7)


def gemma3n(keys: Keys, hidden: int, index: int, layer: Layer) -> Layer:
    """Return a layer with alternating updates, a low-rank branch, and inputs of its own."""
    narrow, rank = keys.count("hidden_size_per_layer_input"), keys.count("laurel_rank")
    streams = keys.count("altup_num_inputs")
    extra = 2 * narrow * hidden + 2 * rank * hidden + streams * hidden + streams**2 * (streams + 1)
    return replace(_reusing(keys, index, layer), norms=8, vectors=extra)


def per_layer_inputs(keys: Keys, model: Model) -> Model:
    """Return a model with a second embedding, of numbers for every layer."""
    narrow = keys.count("hidden_size_per_layer_input", 0, least=0) * len(model.layers)
    if not narrow:
        return model
    width = keys.count("vocab_size_per_layer_input", model.vocabulary) + model.hidden
    extra = width * narrow + narrow // len(model.layers)
    extra += 2 * (keys.count("altup_num_inputs", 1) - 1) * model.hidden**2
    return replace(model, first_extra=extra)


def lfm2_width(keys: Keys, width: int) -> int:
    """Return the width of a feed-forward part, rounded."""
    if not keys.flag("block_auto_adjust_ff_dim", True):
        return width
    factor, multiple = keys.take("block_ffn_dim_multiplier"), keys.count("block_multiple_of", 256)
    width = int(2 * width / 3)
    if isinstance(factor, int | float):
        width = int(factor * width)
        width = multiple * -(-width // multiple)
    return width


def xlstm_width(keys: Keys, width: int) -> int:  # noqa: ARG001 (there is no key of the width)
    """Return the width of a feed-forward part by its factor."""
    factor, multiple = keys.take("ffn_proj_factor"), keys.count("ffn_round_up_to_multiple_of", 64)
    wide = int(keys.count("hidden_size") * (factor if isinstance(factor, int | float) else 2.667))
    return multiple * -(-wide // multiple)


def opt(keys: Keys, model: Model) -> Model:
    """Return a model with two more positions, and a narrower embedding."""
    narrow = keys.count("word_embed_proj_dim", model.hidden)
    extra = 2 * model.hidden
    if narrow != model.hidden:
        extra += model.vocabulary * (narrow - model.hidden) + 2 * narrow * model.hidden
    # An untied head has the embedding's width, too.
    last = 0 if model.tied else model.vocabulary * (narrow - model.hidden)
    last -= 0 if keys.flag("do_layer_norm_before", True) else 2 * model.hidden
    return replace(model, first_extra=extra, last_extra=last)


def rotated_norm(keys: Keys, hidden: int, kind: str, part: Mixer) -> Mixer:  # noqa: ARG001
    """Return latent attention with a norm of the rotated key."""
    return replace(part, vectors=part.vectors + keys.count("qk_rope_head_dim"))


def doge_layer(keys: Keys, hidden: int, index: int, layer: Layer) -> Layer:  # noqa: ARG001
    """Return a layer with learned weights of the residual stream."""
    return replace(layer, vectors=2 * hidden)


def mimo(keys: Keys, hidden: int, kind: str, part: Mixer) -> Mixer:  # noqa: ARG001
    """Return sliding attention with sinks and twice the keys."""
    if kind == "full_attention" or not isinstance(part, Attention):
        return part
    return replace(part, kv_heads=2 * part.kv_heads, sinks=True)


def modernbert(keys: Keys, hidden: int, index: int, layer: Layer) -> Layer:  # noqa: ARG001
    """Return a layer; the first one has the embedding's norm in place of its own."""
    return layer if index else replace(layer, norms=1)


def modernbert_ends(keys: Keys, model: Model) -> Model:
    """Return a model with a norm behind the embedding, a product before the head, and a bias."""
    last = model.hidden**2 + model.hidden + model.vocabulary * keys.on("+decoder_bias")
    return replace(model, first_extra=model.hidden, last_extra=last)


def half(keys: Keys, width: int) -> int:  # noqa: ARG001
    """Return the width of a gated part whose file has that of gate and values together."""
    return width // 2
