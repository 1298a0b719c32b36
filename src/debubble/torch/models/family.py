"""Names of the parts of a decoder model of transformers: embeddings, layers, norm and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from debubble.core.errors import ParameterError

NAMES = ("layers", "h", "blocks")
"""Names of attributes with lists of layers."""

BY_HAND = "write its stages as modules, and give dt.Pipeline a list of them"
"""Advice on a model that is not cut."""

ON_EVERY_STAGE = "rotary"
"""Part of the name of modules that compute positions for all layers, and have no weights."""

COMPARED = frozenset(
    ("gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
)  # fmt: skip
"""Model types whose cuts the tests compare with whole models."""


@dataclass(frozen=True)
class Family:
    """Names of the parts of a model inside its body."""

    embeddings: tuple[str, ...]
    """Embeddings, which only the first stage has."""
    layers: str
    """The list of layers."""
    norm: str
    """Norm after the last layer."""
    head: str
    """Output layer, next to the body."""


def kind_of(model: Any) -> str:
    """Return the type of a model, as its config names it."""
    return str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))


def find_family(model: Any) -> Family:
    """Return the parts of a model; raise ParameterError where it is no row of such parts."""
    kind = kind_of(model)
    prefix = getattr(model, "base_model_prefix", None)
    body = getattr(model, prefix, None) if prefix else None
    if not isinstance(model, nn.Module) or not isinstance(body, nn.Module) or body is model:
        if prefix and _layers_of(model):
            raise ParameterError(
                f"{type(model).__name__} has no output layer; give the model for causal language "
                "modeling, AutoModelForCausalLM"
            )
        part = f"part '{prefix}' with its layers" if prefix else "parts as those of transformers"
        raise ParameterError(f"a model of type '{kind}' cannot be cut: it has no {part}")
    head = getattr(model, "get_output_embeddings", lambda: None)()
    heads = [name for name, part in model.named_children() if part is head]
    layers = _layers_of(body)
    if not heads or not layers:
        places = " or ".join(f"{prefix}.{name}" for name in NAMES)
        what = "output layer next to its body" if layers else f"list of layers at {places}"
        raise ParameterError(f"a model of type '{kind}' cannot be cut: it has no {what}; {BY_HAND}")
    children = [name for name, _ in body.named_children()]
    place = children.index(layers)
    before, after = (_own(children[:place]), _own(children[place + 1 :]))
    if not before or len(after) != 1:
        found = ", ".join(children)
        raise ParameterError(
            f"a model of type '{kind}' cannot be cut: its {prefix} has {found}; a cut needs "
            "embeddings, layers and one norm after them"
        )
    return Family(tuple(before), layers, after[0], heads[0])


def _layers_of(body: nn.Module) -> str:
    """Return the name of a body's list of layers, empty for none."""
    lists = [name for name in NAMES if isinstance(getattr(body, name, None), nn.ModuleList)]
    return lists[0] if lists else ""


def _own(names: Sequence[str]) -> list[str]:
    return [name for name in names if ON_EVERY_STAGE not in name]
