"""The shape of a model as arguments of Megatron-LM."""

from __future__ import annotations

from debubble.planner.model.mixers import Attention, LatentAttention
from debubble.planner.model.transformer import Mlp, Model


def model_arguments(model: Model) -> list[str]:
    """Return the arguments of a model's shape, those of its last layer where layers differ.

    Comments name what is to be filled in.
    """
    layer = model.layers[-1]
    dense = next((one.mlp.width for one in model.layers if isinstance(one.mlp, Mlp)), 0)
    experts = layer.experts
    width = dense or (experts.width if experts else 0)
    gated = layer.mlp.gated
    lines = [
        f"--num-layers {len(model.layers)}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {width}",
        *_attention(model),
        *["--swiglu"] * gated,
        *["--disable-bias-linear"] * (not layer.mlp.bias),
        f"--normalization {'LayerNorm' if model.norm == 'layer' else 'RMSNorm'}",
        f"--vocab-size {model.vocabulary}",
        *["--untie-embeddings-and-output-weights"] * (not model.tied),
        *_positions(model),
        *_experts(model),
        *[f"--mtp-num-layers {model.mtp}"] * bool(model.mtp),
    ]
    if not model.dropout:
        lines += ["--attention-dropout 0.0", "--hidden-dropout 0.0"]
    return [*lines, *_left(model)]


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
    return [
        "--position-embedding-type rope",
        "--rotary-base 10000  # fill in: the model's rope_theta",
    ]


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
    return lines


def _left(model: Model) -> list[str]:
    """Return comments on parts that no argument here describes."""
    known = (Attention, LatentAttention)
    parts = [
        (any(not isinstance(one, known) for one in model.attentions), "layers without attention"),
        (len({type(one) for one in model.attentions}) > 1, "layers of several kinds"),
        (any(one.window or one.chunk for one in model.attentions), "windows of attention"),
        (any(one.sinks or one.gate for one in model.attentions), "sinks and gates of attention"),
        (any(one.index_heads for one in model.attentions), "sparse attention"),
    ]
    names = [name for there, name in parts if there]
    return [f"# fill in: {', '.join(names)}"] if names else []
