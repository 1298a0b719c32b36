"""Parts and groups of a ``config.json``: the part that is text, and groups of keys as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from debubble.core.errors import FormatError
from debubble.interchange.text import shown
from debubble.planner.model.config_keys import ALIASES

FULL, LINEAR = "full_attention", "linear_attention"
"""Kinds of layers."""

TOWERS = (
    "vision_config", "audio_config", "vision_tower", "image_config", "speech_config",
    "audio_encoder_config", "depth_decoder_config", "vq_config", "talker_config",
    "code2wav_config", "token2wav_config",
)  # fmt: skip
TEXT = ("thinker_config", "text_config", "llm_config")
"""Keys of the part of a model that reads and writes text."""


def text_part(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the keys of a model's text part, and the names of all others; empty without any."""
    whole, parts, tied = config, [], "tie_word_embeddings"
    while inner := [config[key] for key in TEXT if isinstance(config.get(key), Mapping)]:
        parts += [key for key in TOWERS if config.get(key)]
        config = {**inner[0], **({tied: config[tied]} if tied in config else {})}
    if config is whole:
        return config, ""
    return config, ", ".join(dict.fromkeys(parts)) or "all else"


def as_yaml(config: Mapping[str, Any]) -> str:
    """Return our YAML with the sizes that a file has, and usual ones where it has none."""

    def size(name: str, default: int) -> int:
        found = (config.get(key) for key in (*ALIASES.get(name, ()), name))
        return next((one for one in found if type(one) is int and one > 0), default)

    hidden, heads = size("hidden", 4096), size("heads", 32)
    attention = (
        f"{{heads: {heads}, kv_heads: {size('kv heads', heads)}, "
        f"head_dim: {size('head width', max(hidden // heads, 1))}}}"
    )
    part = f"mlp: {{width: {size('width', 4 * hidden)}}}"
    if count := size("experts", 0):
        width = size("moe_intermediate_size", size("width", 4 * hidden))
        part = f"experts: {{count: {count}, top_k: {size('top k', 1)}, width: {width}}}"
    return (
        f"{{hidden: {hidden}, vocabulary: {size('vocab_size', 128256)}, attention: {attention}, "
        f"{part}, layers: {size('layers', 32)}}}"
    )


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with those of MPT's and DBRX's groups among them."""
    found = dict(config)
    for group in ("attn_config", "ffn_config"):
        if isinstance(inner := found.pop(group, None), Mapping):
            found = {**inner, **found}
    if isinstance(inner := found.get("linear_attn_config"), Mapping):
        found = {**_linear_attention(inner, found.get("num_hidden_layers")), **found}
        del found["linear_attn_config"]
    return found


LINEAR_KEYS = {
    "head_dim": "linear_head_dim", "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}  # fmt: skip
"""Keys of Kimi Linear's group for linear attention, with the same outside of it."""


def _linear_attention(group: Mapping[str, Any], layers: Any) -> dict[str, Any]:
    """Return the keys of Kimi Linear's group; its lists of layers count from 1."""
    found = {LINEAR_KEYS.get(key, key): value for key, value in group.items()}
    full, linear = (found.pop(key, None) for key in ("full_attn_layers", "kda_layers"))
    both = [*full, *linear] if isinstance(full, list) and isinstance(linear, list) else []
    if both:
        if sorted(both, key=str) != sorted(range(1, (layers or 0) + 1), key=str):
            raise FormatError(
                f"linear_attn_config names layers {shown(both)}; full_attn_layers and kda_layers "
                f"have each of 1 to {layers} once"
            )
        found["layer_types"] = [FULL if at in full else LINEAR for at in range(1, layers + 1)]
    return found
