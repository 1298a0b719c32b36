"""Properties of each ``model_type`` that its ``config.json`` does not say, one row each.

Sources are the classes of ``transformers`` 5.23; tests build each of them on the meta device and
compare numbers of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from debubble.planner.model import odd_layers as odd
from debubble.planner.model.config_keys import Keys
from debubble.planner.model.mixers import Mixer
from debubble.planner.model.transformer import Layer, Model

Flag = bool | str
"""A constant, or the key of a flag: ``"+key"`` is on unless the file says otherwise."""


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """Properties that layers of a ``model_type`` have in common.

    Parameters
    ----------
    bias, out_bias, mlp_bias, head_bias
        Biases of queries, keys and values; of attention's output (None: as `bias`); of the
        feed-forward part; of the head.
    head_dim
        Width of a head where no key has it; None: hidden size over heads.
    kv_given, kv_key
        True if the number of key-value heads has no default; the flag that makes it one.
    qk_norm, qk_key
        Norms of queries and keys: ``"head"`` over each head, ``"layer"`` the same with biases,
        ``"wide"`` over all; and their flag.
    sinks
        True if softmax has sinks.
    gate, gate_key, gate_bias
        Gate of attention's result: ``"heads"`` or ``"wide"``; its flag; whether it is biased, too.
    norm, norms, norms_key
        Kind and number of a layer's norms; a flag and the number with it.
    gated, width, sub_norm, mlp_vectors, shrink
        Feed-forward part: gated, its default width over the hidden size, whether it has a norm
        inside, other parameters (per number of its width with one), and a function of its width.
    tied
        True if embedding and head are one matrix by default.
    experts, expert_width, shared, shared_gate, router_bias, expert_bias, dense_first
        Whether it can have experts, the key of their width, experts that every token meets where no
        key says, gate and biases, and first layers without experts.
    window, window_keys, full_every, full_first, from_layer
        Default of the sliding window and its keys; every how many layers one has none, the last or
        the first of them; or from which layer on they have one, where a flag says so.
    linear, others, periods, expert_periods, second
        What ``linear_attention`` is; the kind of layers that are not full; keys of the period and
        offset of full attention and of experts; a second mixer in every layer.
    blocks, no_mlp
        True if each layer is either a mixer or a feed-forward part; if it has none of the latter.
    positions, dropout
        Keys of learned positions and of dropout.
    ignored
        Keys that change no shape in this family.
    per_head, per_channel, per_hidden
        Other parameters of attention: so many times its heads, a head's width, the hidden size.
    first, last
        Other parameters of the first and last stage, in hidden sizes.
    mixer, layer, ends
        What else differs, as functions.
    """

    bias: Flag = "attention_bias"
    out_bias: Flag | None = None
    mlp_bias: Flag = "mlp_bias"
    head_bias: Flag = False
    head_dim: int | None = None
    kv_given: bool = False
    kv_key: Flag | None = None
    qk_norm: str = ""
    qk_key: Flag = True
    sinks: bool = False
    gate: str = ""
    gate_key: Flag = True
    gate_bias: bool = False
    norm: str = "rms"
    norms: int = 2
    norms_key: tuple[str, int] | None = None
    gated: bool = True
    width: int | None = None
    sub_norm: bool = False
    mlp_vectors: int = 0
    shrink: Callable[[Keys, int], int] | None = None
    tied: bool = False
    experts: bool = True
    expert_width: str = "moe_intermediate_size"
    shared: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    dense_first: int = 0
    window: int | None = None
    window_keys: tuple[str, ...] = ("sliding_window",)
    full_every: int = 0
    full_first: bool = False
    from_layer: int = 0
    linear: str = ""
    others: str = ""
    periods: tuple[str, ...] = ()
    expert_periods: tuple[str, ...] = ()
    second: str = ""
    blocks: bool = False
    no_mlp: bool = False
    positions: tuple[str, ...] = ()
    dropout: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    per_head: int = 0
    per_channel: int = 0
    per_hidden: int = 0
    first: int = 0
    last: int = 0
    mixer: Callable[[Keys, int, str, Mixer], Mixer] | None = None
    layer: Callable[[Keys, int, int, Layer], Layer] | None = None
    ends: Callable[[Keys, Model], Model] | None = None


_CLASSIC = ModelFamily(norm="layer", gated=False, bias=True, mlp_bias=True, tied=True, width=4)
_GPT2 = replace(
    _CLASSIC, positions=("n_positions",), dropout=("resid_pdrop", "embd_pdrop", "attn_pdrop")
)
_GPTJ = replace(_CLASSIC, ignored=("n_positions",), bias=False, norms=1, tied=False, head_bias=True)
PLAIN = ModelFamily()
"""Families whose keys say all."""
_DENSE = ModelFamily(experts=False)
_MISTRAL = ModelFamily(bias=False, window=4096, kv_given=True, mlp_bias=False)
_QWEN2 = ModelFamily(bias=True, out_bias=False, from_layer=28, window=4096, kv_given=True)
_QWEN3 = replace(_QWEN2, bias="attention_bias", out_bias=None, head_dim=128, qk_norm="head")
_QWEN_NEXT = ModelFamily(
    qk_norm="head", gate="wide", gate_bias=True, head_dim=256, shared_gate=True,
    linear="gated_delta", full_every=4, kv_given=True,
)  # fmt: skip
_SPARSE = ModelFamily(
    mlp_bias=False, ignored=("mlp_bias",), others="indexed_attention", dense_first=3
)
_GEMMA = ModelFamily(tied=True, head_dim=256, kv_given=True)
_GEMMA2 = replace(_GEMMA, norms=4, window=4096, full_every=2)
_GEMMA4 = replace(
    _GEMMA2, qk_norm="head", window=512, full_every=6, mixer=odd.gemma4_mixer, layer=odd.gemma4,
    ends=odd.per_layer_inputs, experts=False,
)  # fmt: skip
_WIDE_NORM = ModelFamily(qk_norm="wide")
_MIXTRAL = ModelFamily(bias=False, mlp_bias=False, expert_width="intermediate_size", kv_given=True)
_GRANITE_MOE = ModelFamily(expert_width="intermediate_size")
_SINKS = replace(_GRANITE_MOE, sinks=True, window=128, full_every=4, full_first=True)
_LFM2 = ModelFamily(
    ignored=("conv_L_cache", "conv_bias", "block_multiple_of", "block_auto_adjust_ff_dim",
             "use_expert_bias", "block_ffn_dim_multiplier", "block_dim", "block_ff_dim",
             "block_use_swiglu", "block_use_xavier_init", "conv_dim", "conv_dim_out",
             "conv_use_xavier_init"),
    tied=True, linear="short_convolution", qk_norm="head", bias=False, kv_given=True,
    shrink=odd.lfm2_width,
)  # fmt: skip
_ERNIE = ModelFamily(
    bias="use_bias", mlp_bias="use_bias", tied=True, router_bias=True, dense_first=1
)
_EXAONE = ModelFamily(qk_norm="head", bias=False, window=4096, full_every=4, mlp_bias=False)
_COHERE = ModelFamily(norms=1, tied=True)
_MAMBA = ModelFamily(linear="mamba", others="linear_attention", norms=1, no_mlp=True, tied=True)

SHARED_BLOCK = "whose layers share the weights of one block"

FAMILIES: Mapping[str, ModelFamily | str] = {
    "afmoe": ModelFamily(
        qk_norm="head", gate="wide", norms=4, router_bias=True, window=1024, full_every=4,
        head_dim=128, dense_first=1,
    ),
    "apertus": ModelFamily(qk_norm="head", gated=False, mlp_vectors=2),
    "arcee": ModelFamily(gated=False),
    "aria_text": ModelFamily(expert_width="intermediate_size"),
    "axk1": ModelFamily(layer=odd.axk1),
    "bailing_hybrid": ModelFamily(
        ignored=("short_conv_kernel_size", "layer_group_size"), gate="heads",
        linear="wide_kimi_delta", dense_first=2,
    ),
    "bamba": ModelFamily(linear="mamba2"),
    "beam": ModelFamily(
        qk_norm="head", gate="wide", norms=4, window=512, full_every=6, head_dim=128, per_head=1,
    ),
    "biogpt": replace(
        _CLASSIC, positions=("max_position_embeddings",), dropout=("hidden_dropout_prob",), first=2,
    ),
    "bitnet": ModelFamily(sub_norm=True, mlp_vectors=1, per_hidden=1),
    "bloom": replace(_CLASSIC, dropout=("hidden_dropout",), first=2),
    "codegen": _GPTJ,
    "cohere": replace(_COHERE, qk_norm="wide", qk_key="use_qk_norm"),
    "cohere2": replace(_COHERE, window=4096, full_every=4),
    "cohere2_moe": replace(
        _COHERE, window=4096, full_every=4, head_dim=128, expert_width="intermediate_size",
        ignored=("prefix_dense_sliding_window_pattern",),
    ),
    "cohere_compass_text": replace(_COHERE, window=4096, full_every=4),
    "ctrl": replace(
        _CLASSIC, ignored=("n_positions",), head_bias=True, dropout=("resid_pdrop", "embd_pdrop"),
    ),
    "cwm": ModelFamily(window=8192, full_every=4, full_first=True, head_dim=128, bias=False),
    "dbrx": ModelFamily(width=4, bias=False, expert_width="ffn_hidden_size", mlp_bias=False),
    "deepseek_v2": PLAIN,
    "deepseek_v3": ModelFamily(router_bias=True),
    "deepseek_v32": _SPARSE,
    "kimi_k2": ModelFamily(router_bias=True),
    "diffllama": ModelFamily(per_channel=4),
    "doge": ModelFamily(
        ignored=("num_experts", "num_experts_per_tok"), qk_norm="head", experts=False,
        mixer=odd.doge, layer=odd.doge_layer,
    ),
    "dots1": ModelFamily(qk_norm="head", window=4096, from_layer=62),
    "dots3_note_text": replace(
        _SPARSE, gate="heads", window=512, dense_first=1, mixer=odd.rotated_norm,
    ),
    "emu3_text_model": PLAIN,
    "ernie4_5": replace(_ERNIE, head_dim=128),
    "ernie4_5_moe": replace(_ERNIE, head_bias="use_bias"),
    "ernie4_5_vl_moe_text": _ERNIE,
    "exaone4": _EXAONE,
    "exaone_moe": replace(_EXAONE, dense_first=1),
    "falcon": replace(
        _CLASSIC, bias="bias", mlp_bias="bias", layer=odd.falcon, dropout=("hidden_dropout",),
    ),
    "falcon_h1": ModelFamily(second="mamba2", kv_given=True),
    "falcon_mamba": _MAMBA,
    "flex_olmo": replace(_WIDE_NORM, expert_width="intermediate_size"),
    "flint": ModelFamily(qk_norm="head", sinks=True, head_dim=128, window=513, full_every=4),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": replace(_GEMMA2, qk_norm="head", full_every=6),
    "gemma3n_text": replace(
        _GEMMA2, qk_norm="head", full_every=5, window=512, layer=odd.gemma3n,
        ends=odd.per_layer_inputs,
    ),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": replace(_GEMMA4, window=1024),
    "glm": ModelFamily(bias="+attention_bias", out_bias=False, head_dim=128),
    "glm4": ModelFamily(bias="+attention_bias", out_bias=False, head_dim=128, norms=4),
    "glm4v_text": ModelFamily(bias="+attention_bias", out_bias=False, norms=4),
    "glm4v_moe_text": ModelFamily(bias="+attention_bias", out_bias=False, dense_first=1),
    "glm4_moe": ModelFamily(qk_norm="head", qk_key="use_qk_norm", out_bias=False, dense_first=1),
    "glm4_moe_lite": ModelFamily(dense_first=1),
    "glm_moe_dsa": _SPARSE,
    "gpt-sw3": _GPT2,
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, kv_key="+multi_query"),
    "gpt_neo": replace(
        _CLASSIC, bias=False, out_bias=True, positions=("max_position_embeddings",),
        window_keys=("window_size",), window=256, dropout=("resid_dropout", "embed_dropout"),
    ),
    "gpt_neox": replace(_CLASSIC, bias="+attention_bias", tied=False, dropout=("hidden_dropout",)),
    "gpt_neox_japanese": replace(
        _CLASSIC, ignored=("intermediate_multiple_size",), bias=False, mlp_bias=False, last=1,
        dropout=("hidden_dropout",),
    ),
    "gpt_oss": replace(
        _MIXTRAL, bias="+attention_bias", head_dim=64, sinks=True, window=128, full_every=2,
        router_bias=True, expert_bias=True,
    ),
    "gptj": _GPTJ,
    "granite": _DENSE,
    "granite_swa": replace(_SINKS, tied=True),
    "granitemoe": _GRANITE_MOE,
    "granitemoe_swa": _SINKS,
    "granitemoehybrid": replace(_GRANITE_MOE, linear="mamba2"),
    "granitemoeshared": _GRANITE_MOE,
    "helium": ModelFamily(head_dim=128, out_bias=False),
    "hunyuan_v1_dense": ModelFamily(qk_norm="head"),
    "hunyuan_v1_moe": ModelFamily(qk_norm="head", expert_width="intermediate_size", shared=1),
    "hy_v3": ModelFamily(qk_norm="head", head_dim=128, dense_first=1),
    "hyperclovax": ModelFamily(norms_key=("+use_post_norm", 4)),
    "internlm3": ModelFamily(head_dim=128),
    "iquestcoder": ModelFamily(head_dim=128),
    "jais2": ModelFamily(norm="layer", bias="+attention_bias", mlp_bias="+mlp_bias", gated=False),
    "jamba": ModelFamily(
        linear="mamba", periods=("attn_layer_period", "attn_layer_offset"), bias=False,
        expert_periods=("expert_layer_period", "expert_layer_offset"), kv_given=True,
        expert_width="intermediate_size",
    ),
    "kimi_linear": ModelFamily(linear="kimi_delta", dense_first=1),
    "kolibri1": ModelFamily(qk_norm="head", norms=4, head_dim=128, window=513, full_every=5),
    "laguna": ModelFamily(
        qk_norm="head", gate="heads", gate_key="+gating", router_bias=True, head_dim=128,
        dense_first=1,
    ),
    "lfm2": _LFM2,
    "lfm2_moe": replace(_LFM2, shrink=None, dense_first=2),
    "lfm3": replace(
        _LFM2, shrink=None, norms_key=("+use_sandwich_norm", 4), gate="heads", head_dim=128,
        gate_key="+use_attention_gate", bias="attention_bias", window=256,
    ),
    "llama": _DENSE,
    "llama4_text": ModelFamily(
        ignored=("use_qk_norm",), expert_width="intermediate_size", shared=1, head_dim=128,
        others="chunked_attention", full_every=4, window=8192, kv_given=True,
    ),
    "mamba": _MAMBA,
    "mamba2": replace(_MAMBA, linear="mamba2", tied=False),
    "mellum": ModelFamily(qk_norm="head", head_dim=128),
    "mimo_v2_flash": ModelFamily(
        head_dim=192, out_bias=False, window=129, full_every=6, full_first=True, dense_first=1,
        mixer=odd.mimo,
    ),
    "minicpm3": ModelFamily(tied=True),
    "minimax": replace(_MIXTRAL, linear="lightning", full_every=2, full_first=True),
    **dict.fromkeys(
        ("minimax_text_01", "minimax_m1"),
        replace(
            _MIXTRAL, linear="lightning", full_every=8, head_dim=128, ignored=("shared_moe_mode",),
        ),
    ),
    "minimax_m2": replace(
        _MIXTRAL, qk_norm="wide", head_dim=128,
        ignored=("use_qk_norm", "qk_norm_type", "use_mtp", "num_mtp_modules",
                 "mtp_transformer_layers"),
    ),
    "minimax_m3_vl_text": replace(_MIXTRAL, qk_norm="head", head_dim=128),
    "ministral": replace(_MISTRAL, full_every=0),
    "ministral3": replace(_MISTRAL, window=None, head_dim=128),
    "mistral": _MISTRAL,
    "mistral4": PLAIN,
    "mixtral": _MIXTRAL,
    "modernbert-decoder": ModelFamily(
        tied=True, window=128, full_every=3, full_first=True, window_keys=("sliding_window",),
        layer=odd.modernbert, ends=odd.modernbert_ends,
    ),
    "moshi": ModelFamily(
        ignored=("audio_encoder_config", "depth_decoder_config"), window=3000, shrink=odd.half,
        head_dim=128, first=1,
    ),
    "mpt": ModelFamily(
        ignored=("no_bias", "learned_pos_emb", "embedding_fraction"), bias=False, mlp_bias=False,
        gated=False, tied=True, width=4,
    ),
    "nanochat": ModelFamily(norm="none", gated=False),
    "nemotron": ModelFamily(norm="layer", gated=False),
    "nemotron_h": ModelFamily(
        ignored=("n_groups", "use_bias", "attention_bias"), bias=False, linear="mamba2",
        blocks=True, norms=1, gated=False, kv_given=True, head_dim=128, mlp_bias="mlp_bias",
    ),
    "olmo": ModelFamily(norm="none"),
    "olmo2": _WIDE_NORM,
    "olmo3": replace(_WIDE_NORM, window=4096, full_every=4),
    "olmo_hybrid": replace(_WIDE_NORM, linear="gated_delta", full_every=4),
    "olmoe": replace(_WIDE_NORM, expert_width="intermediate_size"),
    "openai-gpt": replace(_GPT2, last=-2),
    "opt": replace(
        _CLASSIC, ignored=("layer_norm_elementwise_affine",), bias="+enable_bias",
        mlp_bias="+enable_bias", dropout=("dropout",), positions=("max_position_embeddings",),
        ends=odd.opt,
    ),
    "persimmon": replace(
        _CLASSIC, tied=False, dropout=("hidden_dropout",), qk_norm="layer", qk_key="+qk_layernorm",
    ),
    "phi": replace(
        _CLASSIC, tied=False, norms=1, head_bias=True, qk_norm="layer", qk_key="qk_layernorm",
        width=None,
    ),
    "phi3": ModelFamily(bias=False),
    "phi4_multimodal": ModelFamily(ignored=("vision_config", "audio_config"), bias=False),
    "phimoe": replace(_MIXTRAL, norm="layer", bias="attention_bias", head_bias="lm_head_bias"),
    "qwen2": _QWEN2,
    "qwen2_moe": replace(_QWEN2, bias="+qkv_bias", shared_gate=True),
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": replace(_QWEN3, head_dim=None),
    "qwen3_vl_text": _QWEN3,
    "qwen3_vl_moe_text": _QWEN3,
    "qwen2_5_omni_text": _QWEN2,
    "qwen3_omni_moe_text": replace(_QWEN3, head_dim=None),
    "qwen3_5_text": _QWEN_NEXT,
    "qwen3_5_moe_text": _QWEN_NEXT,
    "qwen3_next": _QWEN_NEXT,
    "recurrent_gemma": ModelFamily(
        linear="gated_linear", tied=True, bias="attention_bias", out_bias=True, mlp_bias=True,
        window_keys=("attention_window_size",), window=2048, head_dim=256, shrink=odd.half,
    ),
    "rwkv": ModelFamily(
        linear="receptance", others="linear_attention", norm="layer", gated=False, first=2,
    ),
    "seed_oss": ModelFamily(bias="+attention_bias", out_bias="attention_out_bias", head_dim=128),
    "smollm3": ModelFamily(tied=True, from_layer=28),
    "solar_open": ModelFamily(head_dim=128, out_bias=False),
    "stablelm": ModelFamily(
        norm="layer", bias="use_qkv_bias", out_bias=False, norms_key=("use_parallel_residual", 1),
        qk_norm="wide", qk_key="qk_layernorm",
    ),
    "starcoder2": replace(
        _CLASSIC, bias="+use_bias", mlp_bias="+use_bias", kv_given=True,
        dropout=("residual_dropout", "embedding_dropout"),
    ),
    "vaultgemma": replace(_GEMMA2, norms=2),
    "xglm": replace(_CLASSIC, dropout=("dropout",)),
    "xlstm": ModelFamily(
        linear="matrix_memory", others="linear_attention", shrink=odd.xlstm_width, width=1,
    ),
    "youtu": ModelFamily(tied=True),
    "zamba": SHARED_BLOCK,
    "zamba2": SHARED_BLOCK,
    "hrm_text": "which runs the same layers several times",
    **dict.fromkeys(("axk2", "chameleon", "cpmant", "deepseek_v4", "gemma4_assistant", "hy_v4",
                     "inkling_text", "inkling2_text", "jetmoe", "longcat_flash", "qwen4_exp_text",
                     "zaya"),
                    "which has parts that are not described here"),
    "mllama_text_model": "whose cross-attention layers attend to images",
    "blt": "which has five transformers, of bytes and of patches",
}  # fmt: skip
"""Families by ``model_type``; a text says why there is none."""
