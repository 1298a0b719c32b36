"""Typed access to the keys of a model's description, and the meaning of unknown keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from debubble.core.errors import FormatError, did_you_mean
from debubble.interchange.text import shown

MOST = 1 << 24
"""Largest width, number of heads, experts or tokens."""

MOST_LAYERS = 10_000
"""Most decoder layers."""

LONGEST_NAME = 200

ALIASES = {
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "kv heads": ("num_key_value_heads", "kv_n_heads"),
    "head width": ("head_dim", "attention_head_dim"),
    "width": (
        "dense_intermediate_size", "intermediate_size_mlp", "intermediate_size", "ffn_hidden_size",
        "ffn_dim", "n_inner", "dff", "dim_ff",
    ),
    "experts": ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    "top k": (
        "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk", "moe_k",
        "moe_top_k", "top_k_experts",
    ),
    "shared width": (
        "shared_expert_intermediate_size", "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ),
    "shared": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "dense first": ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
    "sparse step": ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"),
    "full every": (
        "sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers",
        "full_attention_interval",
    ),
}  # fmt: skip
"""Names that families have for one number."""

HARMLESS = {
    "about the file": (
        "_name_or_path", "architectures", "auto_map", "dtype", "id2label", "label2id",
        "model_type", "name", "num_labels", "problem_type", "quantization_config",
        "task_specific_params", "torch_dtype", "transformers_version",
    ),
    "about generating text": (
        "bos_token_id", "encoder_no_repeat_ngram_size", "eos_token_id", "max_length",
        "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
        "num_return_sequences", "pad_token_id", "top_k", "top_p", "use_cache",
    ),
    "about positions that have no weights": (
        "initial_context_length", "max_position_embeddings", "n_ctx",
        "layer_rope_theta", "max_seq_len", "no_rope_layer_interval", "no_rope_layers",
        "original_max_position_embeddings", "rope_interleave", "rope_parameters",
        "rope_scaling", "rope_theta", "rotary_dim",
    ),
    "about numbers, not shapes": (
        "attention_in_multiplier", "attention_multiplier", "attention_out_multiplier",
        "activation_sparsity_pattern", "add_out_norm", "bias_dropout_fusion", "skip_bias_add",
        "dim_model_base", "do_layer_norm_before",
        "expert_selection_fn", "ffn_act_fn", "init_device", "moe_normalize_expert_weights",
        "mtp_layers_block_type", "sequence_kernel", "step_kernel", "chunkwise_kernel",
        "inference_state_dtype", "mamba_norm_before_gate", "mamba_ssm_cache_dtype",
        "moe_shared_expert_overlap", "shared_expert_combination_strategy", "embedding_multiplier",
        "hidden_dropout", "key_multiplier", "lm_head_multiplier", "mlp_multipliers", "moe_norm_min",
        "norm_reduction_force_float32", "norm_type", "num_codebooks", "num_expert_group",
        "num_image_tokens",
        "num_logits_to_keep", "n_shared_head", "keep_window_size", "rescale_every",
        "residual_multiplier", "scale_embedding", "ssm_in_multiplier", "ssm_multipliers",
        "ssm_out_multiplier", "time_step_limit", "use_l2_norm", "final_w_init_variance_scale",
        "activation_function", "attention_dropout", "aux_loss_alpha", "chunk_size_feed_forward",
        "ep_size", "hidden_act", "initializer_range", "layer_norm_epsilon", "n_group",
        "norm_topk_prob", "pretraining_tp", "rms_norm_eps", "routed_scaling_factor",
        "router_aux_loss_coef", "scale_attn_by_inverse_layer_idx", "scoring_func", "seq_aux",
        "swiglu_limit", "topk_group", "topk_method",
    ),
}  # fmt: skip
"""Keys of a ``config.json`` that set no shape and are ignored, by topic."""

_BY_LAYER = {
    "num_attention_heads_per_layer": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "indexer_types": "indexer_type",
}
"""Keys that have one value per layer, each with the key of one value."""

_IGNORED = frozenset(key for keys in HARMLESS.values() for key in keys)

_NUMERIC = re.compile(
    r"(_eps|_epsilon|_activation|_act|_scale|_scaling|_min|_max|_range|_cap|_floor|_kernels|_capping|"
    r"_theta|_softcap|softcapping|_alpha_factor|_beta_factor|_alpha|_beta|_init_scheme|_std|_coef)$"
)
"""Endings of keys that set numbers and kernels, no shapes."""

_OF_SHAPES = re.compile(
    r"(^|_)(n|nums?|dims?|sizes?|ranks?|widths?|heads?|layers?|hidden|experts?|bias|windows?|vocab|"
    r"tied?|intermediate|shared|embeddings?|blocks?|groups?|vision|text|audio|encoder|cross|mlp|"
    r"ffn?|norms?|freq|every|steps?|patterns?|mtp|latent|conv|state|ssm|mamba)(_|$)"
)


def _is_short_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= LONGEST_NAME


class Keys:
    """The keys of one model's description, and those of them that were read.

    Parameters
    ----------
    values
        Values of the file by key.
    name
        Name of the model or file, for messages.
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values = values
        self.name = name
        self.read: set[str] = set()

    def take(self, key: str) -> Any:
        """Return the value, None where there is none."""
        self.read.add(key)
        return self.values.get(key)

    def _fitting(self, key: str, fits: Callable[[Any], bool], advice: str) -> Any:
        """Return the value where it fits, None where there is none."""
        value = self.take(key)
        if value is not None and not fits(value):
            raise FormatError(f"{self.name} has {key} {shown(value)}; {advice}")
        return value

    def optional(self, key: str, *, least: int = 1, most: int = MOST) -> int | None:
        """Return a whole number, None where there is none."""
        found: int | None = self._fitting(
            key, lambda value: type(value) is int and least <= value <= most,
            f"give a whole number from {least} to {most}",
        )  # fmt: skip
        return found

    def count(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST
    ) -> int:
        """Return a whole number, `default` where there is none.

        One that is needed and not there is refused with the nearest unread key.
        """
        value = self.optional(key, least=least, most=most)
        if value is not None:
            return value
        if default is not None:
            return default
        others = [str(name) for name in self.values if name not in _IGNORED | self.read]
        near = did_you_mean(key, others) if others else ""
        hint = f"; {near}" if near.startswith("did you") else ""
        raise FormatError(f"{self.name} has no key '{key}', a whole number from {least} up{hint}")

    def first(
        self, names: str | Sequence[str], default: int | None = None, *, least: int = 1,
        most: int = MOST, same: bool = True,
    ) -> int:  # fmt: skip
        """Return a whole number that has several names, `default` where it has none.

        A text stands for those of :data:`ALIASES`. Two that differ are refused; unless `same` is
        False, the first one counts.
        """
        names = ALIASES[names] if isinstance(names, str) else names
        there = [name for name in names if self.values.get(name) is not None]
        found = {name: self.count(name, least=least, most=most) for name in there}
        self.read.update(names)
        if not there:
            return self.count(names[0], default, least=least, most=most)
        if same and len(set(found.values())) > 1:
            one, other = list(dict.fromkeys(found.values()))[:2]
            first, second = (next(n for n in there if found[n] == v) for v in (one, other))
            raise FormatError(
                f"{self.name} has {first} {one} and {second} {other}, two names of one number; "
                "remove one"
            )
        return found[there[0]]

    def on(self, flag: bool | str) -> bool:
        """Return a constant, or the flag of a key: ``"+key"`` is true where there is none."""
        if isinstance(flag, bool):
            return flag
        return self.flag(flag.removeprefix("+"), flag.startswith("+"))

    def of_layer(self, index: int) -> Keys:
        """Return the keys of one layer, which some files have for each."""
        changed: dict[str, Any] = {}
        by_layer = self.take("per_layer_config")
        if isinstance(by_layer, Mapping):
            own = by_layer.get(f"{index:02}", by_layer.get(str(index)))
            changed.update(own if isinstance(own, Mapping) else {})
        for key, name in _BY_LAYER.items():
            items = self.take(key) if key != name else self.values.get(key)
            if isinstance(items, list) and index < len(items):
                changed[name] = items[index]
        if not changed:
            return self
        found = Keys({**self.values, **changed}, self.name)
        found.read = self.read
        return found

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a truth value, `default` where there is none."""
        value = self._fitting(key, lambda value: isinstance(value, bool), "give true or false")
        return default if value is None else bool(value)

    def word(self, key: str, default: str) -> str:
        """Return a text for display."""
        value = self._fitting(key, _is_short_text, "give a short text")
        return default if value is None else str(value)

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """Return one of several words."""
        value = self.take(key)
        if value is None:
            return default
        if value not in choices:
            raise FormatError(
                f"{self.name} has {key} {shown(value)}; {did_you_mean(value, choices)}"
            )
        return str(value)

    def words(self, key: str, choices: Sequence[str], count: int) -> list[str] | None:
        """Return one of several words for every layer, None where there are none."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count:
            size = f"{len(value)} entries" if isinstance(value, list) else shown(value)
            raise FormatError(f"{self.name} has {key} with {size}; give {count}, one per layer")
        for item in value:
            if item not in choices:
                hint = did_you_mean(item, choices)
                raise FormatError(f"{self.name} has {shown(item)} in {key}; {hint}")
        return value

    def indices(self, key: str, count: int) -> frozenset[int]:
        """Return a set of layers by their numbers."""
        value = self.take(key)
        if value is None:
            return frozenset()
        items = value if isinstance(value, list) else [value]
        for item in items:
            if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < count:
                raise FormatError(
                    f"{self.name} has {shown(item)} in {key}; layers are 0 to {count - 1}"
                )
        return frozenset(items)

    def number(self, key: str, default: float = 0.0) -> float:
        """Return a number from zero up, `default` where there is none."""
        value: float | None = self._fitting(
            key, lambda value: type(value) in (int, float) and value >= 0, "give a number from 0 up"
        )
        return default if value is None else value

    def ignore(self, *keys: str) -> None:
        """Mark keys as read that set no further shape."""
        self.read.update(keys)

    def refuse_unknown(self) -> None:
        """Refuse every key that was not read."""
        for key in self.values:
            if key not in self.read:
                hint = did_you_mean(key, self.read)
                raise FormatError(f"{self.name} has the unknown key {shown(key)}; {hint}")

    def refuse_unknown_shapes(self, family: str) -> None:
        """Refuse unknown keys whose names speak of shapes, and ignore all others.

        A key that is null, false or zero is taken to switch something off.
        """
        for key, value in self.values.items():
            if key in self.read or key in _IGNORED or not value:
                continue
            if _OF_SHAPES.search(str(key)) and not _NUMERIC.search(str(key)):
                hint = did_you_mean(key, self.read)
                raise FormatError(
                    f"{self.name} has {shown(key)}, which could change a shape and is not known "
                    f"for {family}; {hint}{'' if hint.endswith('?') else '.'} Remove it if it "
                    "changes none"
                )
