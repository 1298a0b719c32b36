"""Models of Hugging Face's transformers with random weights, from a ``config.json``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from debubble.core.errors import DebubbleError, FormatError, ParameterError
from debubble.interchange.schedule_json import parse_json
from debubble.interchange.text import read_text
from debubble.torch.models.split import FAMILIES, split

MAX_BYTES = 1 << 20
TOKENS = 1024
"""Default length of a sequence in tokens, where the model takes so many."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
          "float64": torch.float64}  # fmt: skip


class ConfiguredModel(NamedTuple):
    """Stages of a model, its loss, and one microbatch."""

    stages: list[nn.Module]
    loss: Callable[[Any, Any], Tensor]
    x: Tensor
    y: Tensor
    name: str


def from_config(
    path: str, stages: int, *, rows: int = 1, tokens: int | None = None, dtype: str | None = None
) -> ConfiguredModel:
    """Make the model of a ``config.json``, cut into stages, with random weights and random tokens.

    A microbatch has `rows` sequences of `tokens`, by default at most :data:`TOKENS`; weights have
    the config's type by default, or float32. Raises FormatError for a file that is no such config,
    ParameterError for sizes or types, and DebubbleError without transformers.
    """
    config = _config(path)
    most = int(getattr(config, "max_position_embeddings", TOKENS))
    tokens = min(TOKENS, most) if tokens is None else tokens
    if not 1 <= tokens <= most:
        raise ParameterError(f"tokens is {tokens}; the model takes 1 to {most:,}")
    if dtype is not None and dtype not in DTYPES:
        raise ParameterError(f"dtype is '{dtype}'; use {', '.join(DTYPES)}")
    kind = DTYPES[dtype] if dtype else getattr(config, "dtype", None) or torch.float32
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, dtype=kind)
    x = torch.randint(config.vocab_size, (rows, tokens))

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = model.loss_function(logits, labels, config.vocab_size)
        return value

    count = sum(p.numel() for p in model.parameters())
    name = f"{config.model_type}, {count:,} parameters, {rows} x {tokens} tokens, {kind}"
    return ConfiguredModel(split(model, stages), loss, x, x, name.replace("torch.", ""))


def _config(path: str) -> Any:
    data = parse_json(read_text(path, MAX_BYTES), path)
    kind = data.get("model_type") if isinstance(data, dict) else None
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise FormatError(f"{path}: model_type is {kind!r}; models that can be cut are {known}")
    if importlib.util.find_spec("transformers") is None:
        raise DebubbleError("a config.json needs transformers; pip install transformers")
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(**data)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{path}: not a config of {kind}: {error}") from None
