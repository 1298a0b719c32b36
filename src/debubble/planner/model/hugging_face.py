"""Hugging Face's ``config.json`` as a model, family by family.

Sizes that every file of a family has must be there; other defaults are those of the family's class
in ``transformers``. Keys of unknown meaning are refused where their names speak of shapes, because
a count without them would be wrong; :data:`debubble.planner.model.config_keys.HARMLESS` lists those
that are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from debubble.core.errors import FormatError, did_you_mean
from debubble.planner.model.config_keys import MOST_LAYERS, Keys
from debubble.planner.model.transformer import (
    Attention,
    Experts,
    LatentAttention,
    Layer,
    Mlp,
    Model,
)

FULL, SLIDING = "full_attention", "sliding_attention"


def hugging_face_model(config: Mapping[str, Any], name: str) -> Model:
    """Return the model that a ``config.json`` describes.

    An unknown family is refused; so is a key that is missing, has a value it cannot have,
    contradicts another, or is unknown and could change a shape.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise FormatError(
            f"{name} has the model_type {family!r}; {did_you_mean(family, tuple(FAMILIES))}"
        )
    keys = Keys(config, name)
    model = FAMILIES[family](keys)
    keys.refuse_unknown_shapes(family)
    return model


def check_attention(name: str, attention: Attention | LatentAttention) -> None:
    """Refuse keys and values whose heads queries cannot share."""
    if attention.heads % attention.kv_heads:
        raise FormatError(
            f"{name} has {attention.heads} attention heads, no multiple of {attention.kv_heads} "
            "key-value heads; as many queries share every key"
        )


def check_experts(name: str, experts: Experts) -> None:
    """Refuse more experts per token than there are."""
    if experts.top_k > experts.count:
        raise FormatError(
            f"{name} sends a token to {experts.top_k} of {experts.count} experts; "
            f"{experts.count} is the most"
        )


def _sizes(keys: Keys) -> tuple[int, int]:
    """Return hidden size and number of layers."""
    return keys.count("hidden_size"), keys.count("num_hidden_layers", most=MOST_LAYERS)


def _attention(
    keys: Keys, hidden: int, head_dim: int | None = None, *, bias: bool | None = None,
    all_heads: bool = False, **more: bool,
) -> Attention:  # fmt: skip
    """Return attention by the keys that most families share.

    `head_dim` is the family's default; `bias` that of queries, keys and values where the family
    fixes it, else ``attention_bias`` decides, for the output, too. With `all_heads` every query
    has a key of its own unless given.
    """
    heads = keys.count("num_attention_heads")
    width = keys.optional("head_dim") or head_dim
    if width is None and hidden % heads:
        raise FormatError(
            f"{keys.name} has hidden_size {hidden}, no multiple of num_attention_heads {heads}; "
            "give head_dim"
        )
    if bias is None:
        bias = keys.flag("attention_bias")
        more["out_bias"] = bias
    kv_heads = keys.count("num_key_value_heads", heads if all_heads else None)
    found = Attention(heads, kv_heads, width or hidden // heads, bias=bias, **more)
    check_attention(keys.name, found)
    return found


def _windows(keys: Keys, layers: int, kinds: Sequence[str], window: int | None) -> list[int | None]:
    """Return the sliding window of every layer; `kinds` counts where ``layer_types`` is missing."""
    said = keys.words("layer_types", (FULL, SLIDING), layers)
    if said is not None and SLIDING in said and window is None:
        raise FormatError(
            f"{keys.name} has '{SLIDING}' in layer_types and no sliding_window; give the number of "
            "tokens that a query sees"
        )
    return [window if kind == SLIDING else None for kind in said or kinds]


def _window_of_all(keys: Keys, layers: int, default: int | None) -> list[int | None]:
    """Return the sliding windows of families whose layers all have one."""
    window = keys.optional("sliding_window")
    if "sliding_window" not in keys.values:
        window = default
    return _windows(keys, layers, [SLIDING if window else FULL] * layers, window)


def _window_from_some_layer_on(keys: Keys, layers: int) -> list[int | None]:
    """Return sliding windows of Qwen's families."""
    used = keys.flag("use_sliding_window")
    first = keys.count("max_window_layers", 28, least=0)
    window = keys.count("sliding_window", 4096) if used else None
    keys.ignore("sliding_window")
    kinds = [SLIDING if used and layer >= first else FULL for layer in range(layers)]
    return _windows(keys, layers, kinds, window)


def _model(
    keys: Keys, hidden: int, attention: Attention | LatentAttention,
    parts: Sequence[Mlp | Experts], windows: Sequence[int | None] = (), mtp: int = 0,
) -> Model:  # fmt: skip
    """Return a model with RMS norms; layers of one shape are one object."""
    for part in parts:
        if isinstance(part, Experts):
            check_experts(keys.name, part)
    found: dict[tuple[int | None, Mlp | Experts], Layer] = {}
    layers = []
    for window, part in zip(windows or [None] * len(parts), parts, strict=True):
        own = replace(attention, window=window) if isinstance(attention, Attention) else attention
        layers.append(found.setdefault((window, part), Layer(own, part)))
    vocabulary = keys.count("vocab_size")
    tied = keys.flag("tie_word_embeddings")
    return Model(keys.name, hidden, tuple(layers), vocabulary, tied=tied, mtp=mtp)


def _llama(keys: Keys) -> Model:
    hidden, layers = _sizes(keys)
    attention = _attention(keys, hidden, all_heads=True)
    mlp = Mlp(keys.count("intermediate_size"), bias=keys.flag("mlp_bias"))
    return _model(keys, hidden, attention, [mlp] * layers)


def _mistral(keys: Keys) -> Model:
    hidden, layers = _sizes(keys)
    attention = _attention(keys, hidden, bias=False)
    windows = _window_of_all(keys, layers, 4096)
    mlp = Mlp(keys.count("intermediate_size"))
    return _model(keys, hidden, attention, [mlp] * layers, windows)


def _mixtral(keys: Keys) -> Model:
    hidden, layers = _sizes(keys)
    attention = _attention(keys, hidden, bias=False)
    windows = _window_of_all(keys, layers, None)
    experts = _experts(keys, keys.count("num_local_experts"), "intermediate_size")
    return _model(keys, hidden, attention, [experts] * layers, windows)


def _experts(keys: Keys, count: int, width: str) -> Experts:
    """Return experts by their number and the key of their width."""
    return Experts(count, keys.count("num_experts_per_tok"), keys.count(width))


def _qwen(keys: Keys, head_dim: int | None = None, **attention: bool) -> Model:
    hidden, layers = _sizes(keys)
    found = _attention(keys, hidden, head_dim, **attention)
    mlp = Mlp(keys.count("intermediate_size"))
    return _model(keys, hidden, found, [mlp] * layers, _window_from_some_layer_on(keys, layers))


def _qwen_experts(keys: Keys, layers: int, experts: Experts) -> list[Mlp | Experts]:
    """Return experts in every ``decoder_sparse_step``-th layer, but not in ``mlp_only_layers``."""
    step = keys.count("decoder_sparse_step", 1)
    dense = keys.indices("mlp_only_layers", layers)
    mlp = Mlp(keys.count("intermediate_size"))
    sparse = [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]
    return [experts if one else mlp for one in sparse]


def _qwen_moe(keys: Keys, *, third: bool) -> Model:
    """Return Qwen2's mixture of experts, or Qwen3's with norms of queries, no shared experts."""
    hidden, layers = _sizes(keys)
    bias = None if third else keys.flag("qkv_bias", True)
    attention = _attention(keys, hidden, bias=bias, qk_norm=third)
    count = keys.either("num_experts", "num_local_experts")
    experts = _experts(keys, count, "moe_intermediate_size")
    if not third:
        shared = keys.count("shared_expert_intermediate_size")
        experts = replace(experts, shared_width=shared, shared_gate=True)
    parts = _qwen_experts(keys, layers, experts)
    return _model(keys, hidden, attention, parts, _window_from_some_layer_on(keys, layers))


def _deepseek(keys: Keys, *, router_bias: bool) -> Model:
    hidden, layers = _sizes(keys)
    if keys.flag("attention_bias"):
        raise FormatError(f"{keys.name} has attention_bias true; only false is known for DeepSeek")
    attention = LatentAttention(
        keys.count("num_attention_heads"),
        keys.count("q_lora_rank", 0, least=0),
        keys.count("kv_lora_rank"),
        keys.count("qk_nope_head_dim"),
        keys.count("qk_rope_head_dim"),
        keys.count("v_head_dim"),
    )
    keys.ignore("head_dim", "qk_head_dim", "num_key_value_heads")
    mlp = Mlp(keys.count("intermediate_size"))
    parts: list[Mlp | Experts] = [mlp] * layers
    routed = keys.optional("n_routed_experts")
    if routed is not None:
        width = keys.count("moe_intermediate_size")
        experts = Experts(
            routed,
            keys.count("num_experts_per_tok"),
            width,
            shared_width=width * keys.count("n_shared_experts", 0, least=0),
            router_bias=router_bias,
        )
        dense = keys.count("first_k_dense_replace", 0, least=0, most=layers)
        step = keys.count("moe_layer_freq", 1)
        sparse = [layer >= dense and layer % step == 0 for layer in range(layers)]
        parts = [experts if one else mlp for one in sparse]
    mtp = keys.count("num_nextn_predict_layers", 0, least=0, most=MOST_LAYERS)
    return _model(keys, hidden, attention, parts, mtp=mtp)


def _gpt_oss(keys: Keys) -> Model:
    hidden, layers = _sizes(keys)
    bias = keys.flag("attention_bias", True)
    attention = _attention(keys, hidden, 64, bias=bias, out_bias=bias, sinks=True)
    alternating = [FULL if layer % 2 else SLIDING for layer in range(layers)]
    window = keys.count("sliding_window", 128)
    windows = _windows(keys, layers, alternating, window)
    experts = Experts(
        keys.count("num_local_experts"),
        keys.either("num_experts_per_tok", "experts_per_token"),
        keys.count("intermediate_size"),
        router_bias=True,
        bias=True,
    )
    return _model(keys, hidden, attention, [experts] * layers, windows)


def _gpt2(keys: Keys) -> Model:
    hidden, layers = keys.count("n_embd"), keys.count("n_layer", most=MOST_LAYERS)
    heads = keys.count("n_head")
    if hidden % heads:
        raise FormatError(f"{keys.name} has n_embd {hidden}, no multiple of n_head {heads}")
    attention = Attention(heads, heads, hidden // heads, bias=True, out_bias=True)
    mlp = Mlp(keys.count("n_inner", 4 * hidden), gated=False, bias=True)
    dropout = [keys.positive(key, 0.1) for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop")]
    return Model(
        keys.name,
        hidden,
        (Layer(attention, mlp),) * layers,
        keys.count("vocab_size"),
        tied=keys.flag("tie_word_embeddings", True),
        norm="layer",
        positions=keys.count("n_positions", 1024),
        dropout=any(dropout),
    )


FAMILIES: Mapping[str, Callable[[Keys], Model]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": partial(_qwen, bias=True),
    "qwen2_moe": partial(_qwen_moe, third=False),
    "qwen3": partial(_qwen, head_dim=128, qk_norm=True),
    "qwen3_moe": partial(_qwen_moe, third=True),
    "deepseek_v2": partial(_deepseek, router_bias=False),
    "deepseek_v3": partial(_deepseek, router_bias=True),
    "gpt_oss": _gpt_oss,
}
"""Readers by ``model_type``."""
