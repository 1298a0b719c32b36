"""Models by name or from files: our YAML, or the ``config.json`` of Hugging Face.

Our YAML::

    name: my model
    hidden: 4096
    vocabulary: 128256
    tied: false                   # one matrix for embedding and head
    norm: rms                     # or layer
    positions: 0                  # learned ones
    mtp: 0                        # layers of multi-token prediction
    dropout: false
    rope_theta: 500000            # base of rotary positions; also rope_share, rope_scaling
    activation: silu              # unless given, silu where gated and gelu elsewhere
    attention: {heads: 32, kv_heads: 8, head_dim: 128}      # bias, out_bias, qk_norm, sinks, window
    mlp: {width: 14336, gated: true}                        # bias
    layers: 32

Latent attention is ``{heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim}``; linear attention and
state-space layers are ``{heads, key_dim, value_dim, inputs, outputs}`` (``inner``, ``block``). All
can have ``window``, ``chunk``, ``gate``, ``sinks``, ``vectors``, and ``index_heads``,
``index_dim``, ``index_top_k``; see :mod:`debubble.planner.model.mixers`. A mixture of experts
has ``experts: {count, top_k, width}`` in place of ``mlp``, with ``shared_width``, ``shared_gate``,
``router_bias``, ``groups``, ``group_top_k``, ``scale``, ``gated`` and ``bias``. Where layers
differ, ``layers`` is a list of groups, each with a ``count`` and with what it does not share with
the others::

    layers:
      - {count: 3, mlp: {width: 18432}}
      - {count: 58, experts: {count: 256, top_k: 8, width: 2048, shared_width: 2048}}
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from debubble.core.errors import FormatError, did_you_mean
from debubble.interchange.syntax import parse
from debubble.interchange.text import read_text, shown
from debubble.planner.model.config_keys import MOST_LAYERS, Keys
from debubble.planner.model.hugging_face import (
    check_attention,
    check_experts,
    hugging_face_model,
)
from debubble.planner.model.mixers import Attention, LatentAttention, Mixer, Recurrence
from debubble.planner.model.rotary import MOST_THETA, scaling
from debubble.planner.model.transformer import Experts, Layer, Mlp, Model

MAX_BYTES = 1 << 20
"""Most bytes of a model's file."""

ENDINGS = (".json", ".yaml", ".yml")

Part = TypeVar("Part", bound=Mixer | Mlp | Experts)


@lru_cache(maxsize=1)
def shipped_models() -> dict[str, str]:
    """Return the files of the models that come with the package, by name."""
    folder = resources.files("debubble.planner.model") / "shipped"
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(ENDINGS))
    return {name.rpartition(".")[0]: name for name in names}


def read_model(target: str | Path) -> Model:
    """Return a model by the name of a shipped one; or from a ``.json`` or ``.yaml`` file.

    A folder stands for the ``config.json`` in it.

    Raises
    ------
    FormatError
        When there is no such model, or its file does not describe one; the message has the value,
        the limit and the nearest that would do.

    Examples
    --------
    >>> read_model("llama-3.1-8b").parameters
    8030261248
    """
    text = str(target)
    shipped = shipped_models().get(text.lower())
    if shipped is not None:
        folder = resources.files("debubble.planner.model") / "shipped"
        return parse_model((folder / shipped).read_text(encoding="utf-8"), shipped)
    path = Path(text)
    if os.path.isdir(text):
        path = path / "config.json"
    elif not text.lower().endswith(ENDINGS):
        hint = did_you_mean(text, shipped_models())
        raise FormatError(
            f"there is no model '{text}'; {hint}{'' if hint.endswith('?') else '.'} A file of your "
            "own ends in .json or .yaml"
        )
    return parse_model(read_text(path, MAX_BYTES), str(path))


def parse_model(text: str, where: str) -> Model:
    """Return a model from a text; `where` names it, with its format as the ending."""
    # transformers writes limits of time steps as JSON has no numbers for.
    data = parse(re.sub(r"(?<=[\s\[,:])Infinity(?=[\s\],}])", "null", text), where)
    if not isinstance(data, Mapping):
        raise FormatError(f"{where} holds {shown(data)}; a model is a mapping from keys to values")
    path = Path(where)
    name = path.parent.name if path.name == "config.json" else path.stem
    if "model_type" in data or "hidden_size" in data:
        return hugging_face_model(data, name or "the model")
    return own_model(data, name or "the model")


def own_model(data: Mapping[str, Any], file: str) -> Model:
    """Return the model that keys of our YAML describe; `file` names it unless a key does."""
    keys = Keys(data, file)
    common = {part: keys.take(part) for part in _PARTS}
    layers, theta = _groups(keys, common), keys.number("rope_theta")
    model = Model(
        keys.word("name", file),
        keys.count("hidden"),
        layers,
        keys.count("vocabulary"),
        tied=keys.flag("tied"),
        norm=keys.choice("norm", ("rms", "layer"), "rms"),
        positions=keys.count("positions", 0, least=0),
        mtp=keys.count("mtp", 0, least=0, most=MOST_LAYERS),
        dropout=keys.flag("dropout"),
        rope_theta=float(theta) if 1 < theta < MOST_THETA else None,
        rope_share=float(min(keys.number("rope_share") or 1.0, 1.0)),
        rope_scaling=_scaling(keys),
        activation=keys.word("activation", "silu" if layers[-1].mlp.gated else "gelu"),
    )
    keys.refuse_unknown()
    return model


def _scaling(keys: Keys) -> dict[str, Any]:
    """Return the keys by which positions are stretched, named as in ``transformers``."""
    found = keys.take("rope_scaling")
    if found is not None and not (isinstance(found, Mapping) and scaling(found)):
        raise FormatError(
            f"{keys.name}: rope_scaling is {shown(found)}; give {{rope_type: llama3, factor: 8}}"
        )
    return scaling(found or {})


_PARTS = ("attention", "mlp", "experts")


def _groups(keys: Keys, common: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Return all layers: a number of equal ones, or groups that share parts."""
    value = keys.values.get("layers")
    if not isinstance(value, list):
        return (_layer(keys.name, common),) * keys.count("layers", most=MOST_LAYERS)
    keys.take("layers")
    found: list[Layer] = []
    for index, group in enumerate(value):
        where = f"{keys.name}, layers[{index}]"
        if not isinstance(group, Mapping):
            raise FormatError(f"{where} is {shown(group)}; give {{count: 3, mlp: {{…}}}}")
        own = Keys(group, where)
        count = own.count("count", 1, most=MOST_LAYERS)
        said = {part: value for part in _PARTS if (value := own.take(part)) is not None}
        own.refuse_unknown()
        # A group with a feed-forward part of its own has none of the model's.
        shared = {"attention": common["attention"]} if said.keys() & {"mlp", "experts"} else common
        found += [_layer(where, {**shared, **said})] * count
        if len(found) > MOST_LAYERS:
            raise FormatError(f"{where}: more than {MOST_LAYERS} layers, the most a model can have")
    if not found:
        raise FormatError(f"{keys.name} has no layers; give a number, or a list of groups")
    return tuple(found)


def _layer(where: str, parts: Mapping[str, Any]) -> Layer:
    if parts.get("attention") is None:
        raise FormatError(
            f"{where} has no attention; give {{heads: 32, kv_heads: 8, head_dim: 128}}"
        )
    mlp, experts = parts.get("mlp"), parts.get("experts")
    if (mlp is None) == (experts is None):
        both = "both mlp and experts" if mlp is not None else "neither mlp nor experts"
        raise FormatError(f"{where} has {both}; give one of them")
    said = parts["attention"]
    latent = isinstance(said, Mapping) and "kv_rank" in said
    kind: type[Mixer] = LatentAttention if latent else Attention
    if isinstance(said, Mapping) and "key_dim" in said:
        kind = Recurrence
    attention = _part(kind, said, f"{where}, attention")
    check_attention(where, attention)
    if experts is None:
        return Layer(attention, _part(Mlp, mlp, f"{where}, mlp"))
    found = _part(Experts, experts, f"{where}, experts")
    check_experts(where, found)
    return Layer(attention, found)


def _part(kind: type[Part], data: Any, where: str) -> Part:
    """Return one part of a layer: keys are the fields of its class."""
    if not isinstance(data, Mapping):
        raise FormatError(f"{where} is {shown(data)}; give a mapping from keys to values")
    keys = Keys(data, where)
    values: dict[str, Any] = {}
    for spec in fields(kind):
        if spec.type == "bool":
            values[spec.name] = keys.flag(spec.name, bool(spec.default))
        elif spec.type == "int | None":
            values[spec.name] = keys.optional(spec.name)
        elif spec.type == "float":
            given = keys.number(spec.name)
            values[spec.name] = float(given) if given else spec.default
        else:
            default = None if spec.default is MISSING else spec.default
            least = 0 if default == 0 or spec.name in ("q_rank", "key_dim") else 1
            values[spec.name] = keys.count(spec.name, default, least=least)
    keys.refuse_unknown()
    return kind(**values)
