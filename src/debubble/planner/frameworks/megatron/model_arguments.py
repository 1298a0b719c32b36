"""The shape of a model as arguments of Megatron-LM."""

from __future__ import annotations

from debubble.planner.model.mixers import Attention, LatentAttention
from debubble.planner.model.transformer import Mlp, Model

SILU = ("silu", "swish")
"""Names of SiLU in ``transformers``."""


def model_arguments(model: Model) -> list[str]:
    """Return the arguments of a model's shape, those of its last layer where layers differ.

    Comments name what is to be filled in.
    """
    layer = model.layers[-1]
    dense = next((one.mlp.width for one in model.layers if isinstance(one.mlp, Mlp)), 0)
    experts = layer.experts
    width = dense or (experts.width if experts else 0)
    lines = [
        f"--num-layers {len(model.layers)}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {width}",
        *_attention(model),
        *activation_arguments(model, ["--quick-geglu"]),
        *["--disable-bias-linear"] * (not layer.mlp.bias),
        f"--normalization {'LayerNorm' if model.norm == 'layer' else 'RMSNorm'}",
        f"--vocab-size {model.vocabulary}",
        *["--untie-embeddings-and-output-weights"] * (not model.tied),
        *_positions(model),
        *_experts(model),
    ]
    if not model.dropout:
        lines += ["--attention-dropout 0.0", "--hidden-dropout 0.0"]
    left = not_described(model)
    return [*lines, *[f"# fill in: {', '.join(left)}"] * bool(left)]


def activation_arguments(model: Model, of_gelu: list[str]) -> list[str]:
    """Return the arguments of a model's activation; `of_gelu` are the nearest to a gate of GeLU."""
    name = model.activation
    if not model.layers[-1].mlp.gated:
        if name == "relu2":
            return ["--squared-relu"]
        return [] if "gelu" in name else [f"# fill in: the activation, {name or 'not known'}"]
    if name in SILU:
        return ["--swiglu"]
    (one,) = of_gelu if "gelu" in name else ["--swiglu"]
    return [f"{one}  # fill in: the activation of the model's gate is {name or 'not known'}"]


def rope_argument(flag: str, model: Model) -> str:
    """Return the argument of the base of rotary positions, a whole number."""
    if model.rope_theta is None:
        return f"{flag} 10000  # fill in: the model's rope_theta"
    return f"{flag} {round(model.rope_theta)}"


def _attention(model: Model) -> list[str]:
    one = model.layers[-1].attention
    lines = [f"--num-attention-heads {one.heads}"]
    if isinstance(one, LatentAttention):
        return [
            *lines,
            "--multi-latent-attention",
            *[f"--q-lora-rank {one.q_rank}"] * bool(one.q_rank),
            f"--kv-lora-rank {one.kv_rank}",
            f"--qk-head-dim {one.nope_dim}",
            f"--qk-pos-emb-head-dim {one.rope_dim}",
            f"--v-head-dim {one.v_dim}",
            "--qk-layernorm",
        ]
    if not isinstance(one, Attention):
        return lines
    if one.kv_heads != one.heads:
        lines += ["--group-query-attention", f"--num-query-groups {one.kv_heads}"]
    lines += [f"--kv-channels {one.head_dim}", *["--qk-layernorm"] * one.qk_norm]
    return lines + ["--add-qkv-bias"] * (one.bias and not model.layers[-1].mlp.bias)


def _positions(model: Model) -> list[str]:
    if model.positions:
        return [
            "--position-embedding-type learned_absolute",
            f"--max-position-embeddings {model.positions}",
        ]
    latent = isinstance(model.layers[-1].attention, LatentAttention)
    kind = "yarn" if scaling_of(model) == "yarn" and not latent else "rope"
    return [
        f"--position-embedding-type {kind}",
        rope_argument("--rotary-base", model),
        *[f"--rotary-percent {model.rope_share:g}"] * (model.rope_share < 1),
        *_stretched(model),
    ]


LLAMA3 = {
    "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192,
}  # fmt: skip
"""Values that are fixed in Megatron-LM's scaling of Llama 3's kind."""

LATENT_YARN = {"original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
"""Values of YaRN that are fixed for latent attention."""

YARN = {
    "original_max_position_embeddings": "--yarn-original-max-position-embeddings",
    "beta_fast": "--yarn-beta-fast", "beta_slow": "--yarn-beta-slow",
}  # fmt: skip
"""Arguments of YaRN elsewhere, by the keys of ``transformers``."""


def _stretched(model: Model) -> list[str]:
    """Return the arguments that stretch rotary positions."""
    kind, given = scaling_of(model), model.rope_scaling
    factor = f"{given.get('factor', 1):g}"
    if kind == "llama3":
        return ["--use-rope-scaling", f"--rope-scaling-factor {factor}"]
    if kind == "linear":
        return [f"--rotary-seq-len-interpolation-factor {factor}"]
    latent = isinstance(model.layers[-1].attention, LatentAttention)
    if kind != "yarn":
        # Latent attention has YaRN unless told otherwise.
        return ["--rope-type rope"] * latent
    lines = [
        f"--rotary-scaling-factor {factor}",
        f"--mscale {given.get('mscale', 1):g}",
        f"--mscale-all-dim {given.get('mscale_all_dim', 0):g}",
    ]
    if latent:
        return ["--rope-type yarn", *lines]
    lines += [f"{flag} {given[key]:g}" for key, flag in YARN.items() if key in given]
    return [*lines, *["--no-yarn-correction-range-round-to-int"] * (not given.get("truncate", 1))]


def scaling_of(model: Model) -> str:
    """Return the kind of scaling that arguments describe; empty without any, else "other"."""
    given = model.rope_scaling
    if not given:
        return ""
    kind, factor = given["rope_type"], float(given.get("factor", 1))
    latent = isinstance(model.layers[-1].attention, LatentAttention)
    fixed = {"llama3": LLAMA3, "linear": {}, "yarn": LATENT_YARN if latent else {}}.get(kind)
    if fixed is None or any(given.get(key, one) != one for key, one in fixed.items()):
        return "other"
    return "other" if kind == "linear" and not factor.is_integer() else str(kind)


def _experts(model: Model) -> list[str]:
    own = [layer.experts for layer in model.layers]
    experts = own[-1]
    if experts is None:
        return []
    lines = [
        f"--num-experts {experts.count}",
        f"--moe-router-topk {experts.top_k}",
        f"--moe-ffn-hidden-size {experts.width}",
    ]
    if experts.shared_width:
        lines.append(f"--moe-shared-expert-intermediate-size {experts.shared_width}")
    if None in own:
        flags = ",".join("0" if one is None else "1" for one in own)
        first = own.index(experts)
        usual = all(one is not None for one in own[first:]) and not any(own[:first])
        pattern = f"[0]*{first}+[1]*{len(own) - first}" if usual else f"[{flags}]"
        lines.append(f"--moe-layer-freq '({pattern})'")
    if experts.router_bias:
        lines += ["--moe-router-score-function sigmoid", "--moe-router-enable-expert-bias"]
    if experts.groups > 1:
        lines += [
            f"--moe-router-num-groups {experts.groups}",
            f"--moe-router-group-topk {experts.group_top_k}",
        ]
    if experts.scale != 1:
        lines.append(f"--moe-router-topk-scaling-factor {experts.scale:g}")
    return lines


def not_described(model: Model) -> list[str]:
    """Return the parts of a model that no argument here describes, so that another model runs."""
    known = (Attention, LatentAttention)
    parts = [
        (any(not isinstance(one, known) for one in model.attentions), "layers without attention"),
        (len({type(one) for one in model.attentions}) > 1, "layers of several kinds"),
        (any(one.window or one.chunk for one in model.attentions), "windows of attention"),
        (any(one.sinks or one.gate for one in model.attentions), "sinks and gates of attention"),
        (any(one.index_heads for one in model.attentions), "sparse attention"),
        (any(one.second for one in model.layers), "two mixers in a layer"),
        (any(one.norms != 2 for one in model.layers), "norms elsewhere than before each part"),
        (len({one.mlp.width for one in model.layers if isinstance(one.mlp, Mlp)}) > 1,
         "MLPs of several widths"),
        (model.layers[-1].mlp.gated and "gelu" in model.activation, "a gate of GeLU"),
        (scaling_of(model) == "other",
         f"scaling of rotary positions ({model.rope_scaling.get('rope_type')})"),
    ]  # fmt: skip
    return [name for there, name in parts if there]


def said_missing(model: Model) -> str:
    """Return a sentence on parts that arguments do not describe; empty where they describe all."""
    left = not_described(model)
    if not left:
        return ""
    return f"These arguments do not describe all of the model, fill in: {', '.join(left)}."
