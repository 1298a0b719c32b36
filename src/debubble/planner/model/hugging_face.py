"""Hugging Face's ``config.json`` as a model: keys that most families share, read in one way.

What a ``model_type`` fixes without a key (biases, norms, the order of layers) is its row in
:mod:`debubble.planner.model.families`. Sizes that every file has must be there; other defaults are
those of the type's class in ``transformers``. Keys of unknown meaning are refused where their names
speak of shapes, because a count without them would be wrong;
:data:`debubble.planner.model.config_keys.HARMLESS` lists those that are ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from debubble.core.errors import FormatError, did_you_mean
from debubble.planner.model.config_keys import ALIASES, MOST_LAYERS, Keys
from debubble.planner.model.config_parts import FULL, LINEAR, TEXT, TOWERS, as_yaml, flat, text_part
from debubble.planner.model.encoders import encoder
from debubble.planner.model.families import FAMILIES, PLAIN, ModelFamily
from debubble.planner.model.mixers import (
    NO_MIXER,
    Attention,
    LatentAttention,
    Mixer,
    Recurrence,
)
from debubble.planner.model.recurrences import RECURRENCES
from debubble.planner.model.rotary import rotary_fields
from debubble.planner.model.transformer import Experts, Layer, Mlp, Model

SLIDING, CHUNKED = "sliding_attention", "chunked_attention"
INDEXED = ("indexed_attention", "minimax_m3_sparse")
KINDS = {
    **dict.fromkeys((FULL, "attention", "global", "hybrid"), FULL),
    **dict.fromkeys((SLIDING, "local"), SLIDING),
    **dict.fromkeys((LINEAR, "mamba", "recurrent", "conv"), LINEAR),
    **dict.fromkeys(INDEXED, INDEXED[0]),
    **{name: name for name in (CHUNKED, "mlp", "moe")},
}
"""Kinds of layers by the words that files have for them."""
LETTERS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
"""Kinds of layers by Nemotron-H's letters."""
ACTIVATIONS = ("hidden_activation", "hidden_act", "activation_function", "mlp_hidden_act")
"""Names of the activation of feed-forward parts."""


def hugging_face_model(config: Mapping[str, Any], name: str) -> Model:
    """Return the model that a ``config.json`` describes; of one with images or sound, its text.

    A family that is not known is read by the keys that most share, and :attr:`Model.assumed` says
    so. A key that is missing, has a value it cannot have, contradicts another, or is unknown and
    could change a shape is refused.
    """
    kind = config.get("model_type")
    _refuse_encoder(config, name)
    config, others = text_part(config)
    _refuse_encoder(config, name)
    assumed = [f"only the text part of {kind} is counted; {others} is left out"] if others else []
    kind = config.get("model_type")
    if isinstance(widths := config.get("moe_intermediate_size"), list) and widths:
        assumed.append("only experts of text are counted, those of images are left out")
        config = {**config, "moe_intermediate_size": widths[0]}
    if not isinstance(kind, str) or not _readable(config, kind):
        raise FormatError(
            f"{name} has the model_type {kind!r}; {did_you_mean(kind, tuple(FAMILIES))}"
        )
    family = FAMILIES.get(kind, PLAIN)
    if isinstance(family, str):
        raise FormatError(
            f"{name} has the model_type {kind!r}, {family}; describe its layers in YAML, such as "
            f"{as_yaml(config)}"
        )
    if kind not in FAMILIES:
        assumed.append(
            f"the model_type {kind!r} is not known: read as layers with RMS norms, gated MLP or "
            "experts, and biases only where keys say so"
        )
    keys = Keys(flat(config), name)
    model = ConfigReader(keys, family).model()
    if left := [key for key in TOWERS if key in family.ignored and config.get(key)]:
        assumed.append(f"only the text part of {kind} is counted; {', '.join(left)} is left out")
    keys.refuse_unknown_shapes(kind)
    return replace(model, assumed=tuple(assumed))


def _refuse_encoder(config: Mapping[str, Any], name: str) -> None:
    """Refuse a model that is no decoder."""
    kind = config.get("model_type")
    inner = any(isinstance(config.get(key), Mapping) for key in TEXT)
    what = encoder(config, known=inner or (isinstance(kind, str) and kind in FAMILIES))
    if what:
        raise FormatError(
            f"{name} has the model_type {kind!r}, {what}; plans are for decoders. Describe one of "
            f"its size in YAML, such as {as_yaml(config)}"
        )


def _readable(config: Mapping[str, Any], kind: str) -> bool:
    """Return whether the family is known, or is no misspelt one and has what all need.

    A name that differs in its numbers alone is a new version.
    """
    needed = (ALIASES["hidden"][0], ALIASES["layers"][0], ALIASES["heads"][0], "vocab_size")
    if kind in FAMILIES or not all(config.get(key) for key in needed):
        return kind in FAMILIES
    names = {re.sub(r"[\d_]+", "", name) for name in FAMILIES}
    plain = re.sub(r"[\d_]+", "", kind.removesuffix("_text"))
    return plain in names or not difflib.get_close_matches(plain, names, cutoff=0.8)


def _activation(config: Mapping[str, Any]) -> str:
    """Return the name of the activation; empty where no key has it."""
    names = (config.get(key) for key in ACTIVATIONS)
    return next((one for one in names if isinstance(one, str) and one.isidentifier()), "")


def check_attention(name: str, attention: Mixer) -> None:
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


class ConfigReader:
    """The keys of one file, read by what its family fixes."""

    def __init__(self, keys: Keys, family: ModelFamily) -> None:
        self.keys = keys
        self.family = family
        self.hidden = keys.first("hidden")
        words = keys.values.get("layers_block_type") or keys.values.get("hybrid_override_pattern")
        default = len(words) if isinstance(words, str | list) else None
        self.layers = keys.first("layers", default, most=MOST_LAYERS)

    def model(self) -> Model:
        """Return the model; layers of one shape are one object."""
        keys, family = self.keys, self.family
        found: dict[Layer, Layer] = {}
        layers, norms = [], family.norms
        if family.norms_key is not None and keys.on(family.norms_key[0]):
            norms = family.norms_key[1]
        for index, (kind, part) in enumerate(zip(self.kinds(), self.parts(), strict=True)):
            own = keys.of_layer(index)
            mixer = NO_MIXER if kind in ("mlp", "moe") else self.mixer(own, kind)
            second = RECURRENCES[family.second](own, self.hidden) if family.second else None
            layer = Layer(mixer, part, second, norms)
            if family.layer is not None:
                layer = family.layer(own, self.hidden, index, layer)
            layers.append(found.setdefault(layer, layer))
        keys.ignore(*family.ignored)
        if all(isinstance(layer.attention, Recurrence) for layer in layers):
            keys.ignore(*ALIASES["heads"], *ALIASES["kv heads"], "head_dim", "attention_bias")
            keys.ignore(*family.window_keys)
        rates = [keys.number(key, 0.1) for key in family.dropout]
        model = Model(
            keys.name,
            self.hidden,
            tuple(layers),
            keys.count("vocab_size"),
            tied=keys.flag("tie_word_embeddings", family.tied),
            norm=family.norm,
            positions=keys.first(family.positions, 0, least=0) if family.positions else 0,
            mtp=keys.count("num_nextn_predict_layers", 0, least=0, most=MOST_LAYERS),
            dropout=any(rates),
            **rotary_fields(keys.values),
            activation=_activation(keys.values),
        )
        bias = model.vocabulary * keys.on(family.head_bias)
        first, last = self.hidden * family.first, self.hidden * family.last + bias
        model = replace(model, first_extra=first, last_extra=last)
        return family.ends(keys, model) if family.ends is not None else model

    def kinds(self) -> list[str]:
        """Return the kind of every layer."""
        keys, family, count = self.keys, self.family, self.layers
        pattern = keys.take("hybrid_override_pattern")
        if isinstance(pattern, str) and len(pattern) == count and set(pattern) <= set(LETTERS):
            return [LETTERS[letter] for letter in pattern]
        for key in ("layer_types", "layers_block_type", "attention_layers"):
            said = keys.words(key, tuple(KINDS), count)
            if said is not None:
                keys.ignore(*ALIASES["full every"], *family.periods)
                keys.ignore("use_sliding_window", "max_window_layers")
                return [KINDS[word] for word in said]
        marks = keys.take("attn_type_list")
        if isinstance(marks, list) and len(marks) == count and all(one in (0, 1) for one in marks):
            return [FULL if one else LINEAR for one in marks]
        cycle = keys.take("block_types")
        if isinstance(cycle, list) and cycle and all(word in KINDS for word in cycle):
            return [KINDS[cycle[layer % len(cycle)]] for layer in range(count)]
        for key in ("full_attn_idxs", "attn_layer_indices"):
            if keys.take(key) is not None:
                chosen = keys.indices(key, count)
                return [FULL if layer in chosen else LINEAR for layer in range(count)]
        if family.periods:
            period, offset = (keys.optional(key, least=0) for key in family.periods)
            if period:
                return [FULL if i % period == (offset or 0) else LINEAR for i in range(count)]
        others = family.others or (LINEAR if family.linear else SLIDING)
        if others == SLIDING and not self._slides():
            return [FULL] * count
        if family.from_layer:
            first = keys.count("max_window_layers", family.from_layer, least=0)
            return [SLIDING if layer >= first else FULL for layer in range(count)]
        every = keys.first("full every", family.full_every, least=0)
        if not every:
            return [others] * count
        at = 0 if family.full_first else every - 1
        return [FULL if layer % every == at else others for layer in range(count)]

    def _slides(self) -> bool:
        """Return whether layers have a window where no key says which."""
        keys, family = self.keys, self.family
        if family.from_layer and not keys.flag("use_sliding_window"):
            keys.ignore("sliding_window", "max_window_layers")
            return False
        if family.window_keys[0] in keys.values:
            return keys.first(family.window_keys, 0, least=0) > 0
        return bool(family.window)

    def mixer(self, keys: Keys, kind: str) -> Mixer:
        """Return what mixes tokens in a layer of a kind."""
        family = self.family
        if kind == LINEAR:
            name = family.linear
            if not name:
                raise FormatError(
                    f"{keys.name} has linear_attention in layer_types, which is not known for its "
                    "model_type"
                )
            return RECURRENCES[name](keys, self.hidden)
        latent = keys.optional("kv_lora_rank")
        found: Mixer = self._latent(keys) if latent else self._attention(keys)
        if kind == SLIDING:
            window = keys.first(family.window_keys, family.window or 0, least=0)
            if not window:
                raise FormatError(
                    f"{keys.name} has '{SLIDING}' in layer_types and no sliding_window; give the "
                    "number of tokens that a query sees"
                )
            found = replace(found, window=window)
        elif kind == CHUNKED:
            found = replace(found, chunk=keys.count("attention_chunk_size", family.window))
        elif kind in INDEXED:
            found = self._sparse(keys, found)
        keys.ignore(*family.window_keys, "attention_chunk_size", "index_topk", "index_n_heads",
                    "index_head_dim", "index_block_size", "index_topk_blocks", "index_local_blocks",
                )  # fmt: skip
        check_attention(keys.name, found)
        if family.mixer is not None:
            found = family.mixer(keys, self.hidden, kind, found)
        return found

    def _sparse(self, keys: Keys, found: Mixer) -> Mixer:
        top_k = keys.optional("index_topk")
        if top_k is None:
            top_k = keys.count("index_topk_blocks") * keys.count("index_block_size")
        heads, width = keys.count("index_n_heads"), keys.count("index_head_dim")
        if keys.values.get("indexer_type") == "shared":
            heads = 0
        return replace(found, index_heads=heads, index_dim=width, index_top_k=top_k)

    def _attention(self, keys: Keys) -> Attention:
        family, hidden = self.family, self.hidden
        heads = keys.first("heads")
        kv_heads = keys.first("kv heads", None if family.kv_given else heads)
        if family.kv_key is not None:
            kv_heads = 1 if keys.on(family.kv_key) else heads
        width = keys.first("head width", 0, least=0) or family.head_dim
        if width is None and hidden % heads:
            one, other = (
                next(key for key in ALIASES[name] if key in keys.values)
                for name in ("hidden", "heads")
            )
            raise FormatError(
                f"{keys.name} has {one} {hidden}, no multiple of {other} {heads}; give head_dim"
            )
        width = width or hidden // heads
        bias = keys.on(family.bias)
        out = bias if family.out_bias is None else keys.on(family.out_bias)
        kind = family.qk_norm if family.qk_norm and keys.on(family.qk_key) else ""
        extra = {"wide": (heads + kv_heads) * width, "layer": 2 * width}.get(kind, 0)
        extra += heads * family.per_head + width * family.per_channel + hidden * family.per_hidden
        normed = kind in ("head", "layer")
        v_dim = keys.optional("v_head_dim") or 0
        found = Attention(
            heads, kv_heads, width, normed, bias, out, 0 if v_dim == width else v_dim,
            sinks=family.sinks, gate=self._gate(keys, heads, heads * (v_dim or width)),
            vectors=extra + (family.gate_bias and bias and heads * width),
        )  # fmt: skip
        check_attention(keys.name, found)
        return found

    def _gate(self, keys: Keys, heads: int, width: int) -> int:
        """Return outputs of the projection that gates attention: one per head or number."""
        if not self.family.gate or not keys.on(self.family.gate_key):
            return 0
        return heads if self.family.gate == "heads" else width

    def _latent(self, keys: Keys) -> LatentAttention:
        if keys.flag("attention_bias"):
            raise FormatError(
                f"{keys.name} has attention_bias true; only false is known for latent attention"
            )
        heads, width = keys.first("heads"), keys.count("v_head_dim")
        keys.ignore("head_dim", "qk_head_dim", "num_key_value_heads")
        return LatentAttention(
            heads, keys.count("q_lora_rank", 0, least=0), keys.count("kv_lora_rank"),
            keys.count("qk_nope_head_dim"), keys.count("qk_rope_head_dim"), width,
            sinks=self.family.sinks, gate=self._gate(keys, heads, heads * width),
        )  # fmt: skip

    def parts(self) -> list[Mlp | Experts]:
        """Return the feed-forward part of every layer."""
        keys, family = self.keys, self.family
        count, kinds = keys.first("experts", 0, least=0) if family.experts else 0, self.kinds()
        sparse = self._sparse_layers() if count else [False] * self.layers
        if family.blocks:
            sparse = [kind == "moe" for kind in kinds]
            count = keys.first("experts") if any(sparse) else count
        experts = self.experts(count) if count else None
        found: list[Mlp | Experts] = []
        for index, kind in enumerate(kinds):
            if family.no_mlp or (family.blocks and kind not in ("moe", "mlp")):
                found.append(Mlp(0))
            elif experts is not None and sparse[index]:
                found.append(experts)
            else:
                found.append(self._mlp(keys.of_layer(index)))
        if count:
            keys.ignore(*ALIASES["width"])
        return found

    def _mlp(self, keys: Keys) -> Mlp:
        family = self.family
        default = None if family.width is None else family.width * self.hidden
        width = keys.first("width", default, same=False)
        width = width if family.shrink is None else family.shrink(keys, width)
        bias = keys.on(family.mlp_bias)
        return Mlp(
            width, family.gated, bias, family.mlp_vectors * (width if family.sub_norm else 1)
        )

    def experts(self, count: int) -> Experts:
        """Return the experts of layers that have some."""
        keys, family = self.keys, self.family
        top_k, width = keys.first("top k"), keys.count(family.expert_width)
        number = keys.first("shared", 0, least=0)
        each = keys.count("shared_experts_intermediate_size", width)
        shared = keys.first("shared width", number * each, least=0)
        shared = shared or family.shared * width
        biased = keys.on(family.mlp_bias) and shared > 0
        matrices, latent = 3 if family.gated else 2, keys.count("moe_latent_size", 0, least=0)
        projected = bool(latent) and keys.on(family.mlp_bias) and latent + self.hidden
        found = Experts(
            count, top_k, width, family.gated, shared,
            vectors=biased * ((matrices - 1) * shared + self.hidden) + projected,
            shared_gate=family.shared_gate and shared > 0,
            router_bias=family.router_bias, bias=family.expert_bias, latent=latent,
            **(self._routing() if family.router_bias else {}),
        )  # fmt: skip
        check_experts(keys.name, found)
        return found

    def _routing(self) -> dict[str, Any]:
        """Return groups of experts that routers choose from, and the scale of their output."""
        names = ("n_group", "topk_group", "routed_scaling_factor")
        found = (self.keys.values.get(name) for name in names)
        groups, top, scale = (x if isinstance(x, int | float) and x > 0 else 1 for x in found)
        groups = int(groups)
        return {"groups": groups, "group_top_k": min(int(top), groups), "scale": float(scale)}

    def _sparse_layers(self) -> list[bool]:
        """Return for every layer whether it has experts."""
        keys, count = self.keys, self.layers
        said = keys.words("mlp_layer_types", ("sparse", "dense", "moe"), count)
        if said is not None:
            keys.ignore(*ALIASES["dense first"], "moe_layer_freq")
            return [word != "dense" for word in said]
        if keys.take("moe_layers") is not None:
            keys.ignore("interleave_moe_layer_step")
            chosen = keys.indices("moe_layers", count)
            return [layer in chosen for layer in range(count)]
        if self.family.expert_periods:
            period, offset = (keys.count(key, least=0) for key in self.family.expert_periods)
            return [layer % max(period, 1) == offset for layer in range(count)]
        dense = keys.indices("mlp_only_layers", count)
        first = keys.first("dense first", self.family.dense_first, least=0, most=MOST_LAYERS)
        last = keys.count("moe_layer_end_index", count, least=-1)
        last = count if last < 0 else last
        step = keys.first("sparse step", 1)
        if isinstance(keys.values.get("moe_layer_freq"), list):
            freq = keys.take("moe_layer_freq")
            if len(freq) == count and all(one in (0, 1) for one in freq):
                return [bool(one) for one in freq]
        every = keys.count("moe_layer_freq", 1)
        return [
            first <= layer <= last
            and (layer + 1) % step == 0
            and layer % every == 0
            and layer not in dense
            for layer in range(count)
        ]
