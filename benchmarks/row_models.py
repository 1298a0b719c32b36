"""Models of published rows: the shape that columns say, and what a name says beyond them."""

from __future__ import annotations

from collections.abc import Mapping

from debubble.planner.model.mixers import Attention, LatentAttention
from debubble.planner.model.transformer import Experts, Layer, Mlp, Model

GATED = ("llama", "qwen", "mixtral", "mistral", "deepseek", "gpt oss", "gpt-oss", "gemma", "palm")
"""Families whose feed-forward parts are gated and whose norms have one number per channel."""
TIED = ("gpt-", "gpt3", "mpt", "opt", "mt-nlg", "bloom", "palm", "pythia")
"""Families whose head is the embedding's matrix; Nemotron, Llama, Qwen and DeepSeek have two."""
DROPOUT = ("gpt-", "gpt3", "mt-nlg", "bloom", "opt")
"""Families that are trained with dropout."""
HEAD_DIM = {"qwen3": 128, "gpt oss": 64, "gpt-oss": 64}
"""Width of a head where heads times width is not the hidden size."""


def _is(name: str, families: tuple[str, ...]) -> bool:
    return any(name.startswith(family) for family in families)


def row_model(name: str, numbers: Mapping[str, int | None]) -> Model:
    """The model of a row, or a ValueError with the column that is missing or the family.

    `name` is the row's, whose family says what columns do not: ``layers``, ``hidden``, ``heads``,
    ``kv_heads``, ``ffn``, ``vocab``, ``experts`` and ``topk``, None where one is empty.
    """
    family = name.lower()
    missing = [key for key in ("layers", "hidden", "heads", "ffn") if not numbers.get(key)]
    if missing:
        raise ValueError(f"{', '.join(missing)} not given")
    layers, hidden, heads = (int(numbers[key] or 0) for key in ("layers", "hidden", "heads"))
    ffn, experts = int(numbers["ffn"] or 0), numbers.get("experts")
    if "next" in family:
        raise ValueError("hybrid attention is not modeled")
    gated = _is(family, GATED)
    head_dim = next((d for key, d in HEAD_DIM.items() if family.startswith(key)), hidden // heads)
    attention: Attention | LatentAttention
    attention = Attention(heads, numbers.get("kv_heads") or heads, head_dim)
    dense = Layer(attention, Mlp(ffn, gated))
    stack = (dense,) * layers
    if family.startswith("deepseek"):
        attention = LatentAttention(heads, 1536, 512, 128, 64, 128)
        routed = Layer(attention, Experts(experts or 256, numbers.get("topk") or 8, ffn, True, ffn))
        stack = (Layer(attention, Mlp(9 * ffn)),) * 3 + (routed,) * (layers - 3)
    elif family.startswith("llama4"):
        shared = Experts(experts or 128, numbers.get("topk") or 1, ffn, True, ffn)
        pair = (Layer(attention, Mlp(2 * ffn)), Layer(attention, shared))
        stack = pair * (layers // 2)
    elif experts:
        mlp = Experts(experts, numbers.get("topk") or 2, ffn, gated)
        stack = (Layer(attention, mlp),) * layers
        if family.startswith(("gpt oss", "gpt-oss")):
            near = Layer(Attention(heads, attention.kv_heads, head_dim, window=128), mlp)
            stack = (near, Layer(attention, mlp)) * (layers // 2)
    return Model(
        name, hidden, stack, numbers.get("vocab") or VOCABULARY, tied=_is(family, TIED),
        norm="rms" if gated else "layer", dropout=_is(family, DROPOUT),
    )  # fmt: skip


VOCABULARY = 51200
"""Vocabulary where a row has none: GPT-2's, padded as Megatron pads it for 8 ranks."""
