"""Parameter counts and FLOPs against transformers' own models, built without memory for weights."""

import json
from importlib import resources

import pytest

from debubble.core.errors import FormatError
from debubble.planner.cost.flops import flops_per_token, head_flops, layer_flops
from debubble.planner.model.families import FAMILIES
from debubble.planner.model.files import parse_model, read_model, shipped_models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
no_init_weights = pytest.importorskip("transformers.initialization").no_init_weights

pytestmark = pytest.mark.slow

CAUSAL = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
DESCRIBED = sorted(
    name for name, family in FAMILIES.items() if not isinstance(family, str) and name in CAUSAL
)

# Encoders, and decoders of encoder-decoder models, that transformers can run as decoders.
NO_DECODERS = [
    "bart", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "blenderbot",
    "blenderbot-small", "camembert", "data2vec-text", "electra", "ernie", "git", "marian",
    "mbart", "megatron-bert", "mvp", "musicgen", "musicgen_melody", "pegasus", "plbart",
    "prophetnet", "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert",
    "roformer", "trocr", "whisper", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod",
]  # fmt: skip

NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {
        "n_shared_experts": 2, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 4},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
}  # fmt: skip
"""What the defaults of a class lack to build its model, or to be a model of its kind."""

BROKEN = {"cohere_compass_text", "dbrx"}
"""Classes whose default transformers 5.23 cannot build."""

TOWERS = {"moshi", "phi4_multimodal"}
"""Types that can have towers, which are left out; Phi-4's class counts them."""

CHANGED = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 128),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 8),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "num_kv_heads"), 2),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads", "num_kv_shared_layers"), 2),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "decoder_sparse_step"), 2),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "interleave_moe_layer_step"), 2),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "lm_head_bias", "conv_bias"), True),
    **dict.fromkeys(("use_qk_norm", "qk_layernorm", "mamba_proj_bias"), True),
    **dict.fromkeys(("attention_k_eq_v", "enable_moe_block", "use_double_wide_mlp"), True),
    **dict.fromkeys(("attention_out_bias", "new_decoder_architecture"), True),
    **dict.fromkeys(("multi_query", "use_parallel_residual"), False),
    **dict.fromkeys(("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"), 56),
    "head_dim": 48, "intermediate_size": 160, "moe_intermediate_size": 48, "vocab_size": 1000,
    "pad_token_id": 0, "kv_lora_rank": 24, "q_lora_rank": 40, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 20, "index_n_heads": 4, "index_head_dim": 16,
    "index_topk": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
    "shared_intermediate_size": 72, "moe_latent_size": 32, "mlp_only_layers": [1],
    "word_embed_proj_dim": 96,
}  # fmt: skip
"""Sizes and switches that tell apart what defaults leave equal."""

NEVER_TIED = {"bailing_hybrid", "dots3_note_text", "kimi_linear", "moshi", "nemotron_h", "xlstm"}
FIXED = {
    "gemma3n_text": ("num_hidden_layers",),
    "glm4_moe": ("n_shared_experts",),
    "gpt_neo": ("num_hidden_layers",),
    "helium": ("head_dim", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    "lfm2_moe": ("num_hidden_layers",),
    "mamba2": ("head_dim", "hidden_size"),
    "xlstm": ("hidden_size", "use_bias"),
}
"""Keys that a class cannot have otherwise, or ignores."""


def config_of(name, **changes):
    return transformers.CONFIG_MAPPING[name](**{**NEEDED.get(name, {}), **changes})


def counted(config):
    # Weights without memory are not set to anything either.
    with torch.device("meta"), no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def read(config):
    """Our model of a config, with all keys that transformers writes, defaults included."""
    return parse_model(json.dumps(config.to_dict(), default=str), "config.json")


def without_buffers(model, name):
    """Number of parameters; of DeepSeek-V3's the routers' biases are buffers in transformers."""
    found = [layer.experts for layer in model.layers if layer.experts is not None]
    return model.parameters - sum(one.count for one in found) * (name == "deepseek_v3")


def test_every_decoder_is_described_or_refused_with_a_reason():
    wrappers = {name for name in CAUSAL if _text_config(name) is not None}
    left = set(CAUSAL) - set(FAMILIES) - set(NO_DECODERS) - wrappers
    assert not left
    assert len(DESCRIBED) > 120


def _text_config(name):
    try:
        config = transformers.CONFIG_MAPPING[name]()
    except Exception:
        return "none" if name.startswith("gemma4") else None
    return getattr(config, "text_config", None) or (name == "fuyu") or None


@pytest.mark.parametrize("name", sorted(set(DESCRIBED) - BROKEN - {"phi4_multimodal"}))
def test_defaults_are_exact(name):
    config = config_of(name)
    model = read(config)
    assert without_buffers(model, name) == counted(config)
    assert bool(model.assumed) == (name in TOWERS)
    full, causal = flops_per_token(model, 4096).values()
    assert full >= causal > 0


def changes_of(name):
    """The changes that a class knows."""
    known = config_of(name).to_dict()
    found = {key: value for key, value in CHANGED.items() if key in known}
    if "kv_lora_rank" in known:
        found |= {"attention_bias": False, "num_key_value_heads": 4}
    for key in ("n_group", "topk_group"):
        if key in known:
            found[key] = 1
    if name not in NEVER_TIED and "tie_word_embeddings" in known:
        found["tie_word_embeddings"] = not known["tie_word_embeddings"]
    return {key: value for key, value in found.items() if key not in FIXED.get(name, ())}


@pytest.mark.parametrize("name", sorted(set(DESCRIBED) - BROKEN - {"lfm2_moe", "phi4_multimodal"}))
def test_other_sizes_are_exact(name):
    config = config_of(name, **changes_of(name))
    assert without_buffers(read(config), name) == counted(config)


@pytest.mark.parametrize("name", [name for name in shipped_models() if "-3-175b" not in name])
def test_shipped_models(name):
    path = resources.files("debubble.planner.model") / "shipped" / f"{name}.json"
    if not path.is_file():
        pytest.skip("not a config.json")
    values = json.loads(path.read_text())
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    assert without_buffers(read_model(name), config.model_type) == counted(config)


WITH_IMAGES = (
    "gemma3", "glm4v", "llama4", "llava", "mistral3", "paligemma", "qwen2_5_vl", "qwen3_5",
    "qwen3_vl", "qwen3_vl_moe",
)  # fmt: skip


@pytest.mark.parametrize("outer", WITH_IMAGES)
def test_of_models_with_images_the_text_is_read(outer):
    config = transformers.CONFIG_MAPPING[outer]()
    with torch.device("meta"):
        built = transformers.AutoModelForImageTextToText.from_config(config)
    built.tie_weights()
    text = ("language_model", "lm_head")
    parts = [part for name, part in built.named_parameters() if any(key in name for key in text)]
    model = read(config)
    assert model.parameters == sum(part.numel() for part in parts)
    (note,) = model.assumed
    assert "vision_config is left out" in note


SMALL = {
    "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 1000, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 24, "q_lora_rank": 40, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 20, "num_key_value_heads": 4,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 24, "mlp_only_layers": [0, 1, 2, 3],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "more", "within"),
    [
        ("llama", {}, 0),
        ("qwen3", {"head_dim": 48}, 0),
        ("starcoder2", {}, 0),
        ("cohere", {}, 0),
        ("olmo2", {}, 0),
        ("minicpm3", LATENT, 0),
        ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}, 0),
        ("afmoe", {"num_dense_layers": 4, "head_dim": 48}, 0),
        ("lfm2", {"layer_types": ["conv", "conv", "full_attention", "conv"]}, 0.01),
        # Chunks of the delta rule and of Mamba-2 as PyTorch computes them.
        ("qwen3_next", {**DELTA, "head_dim": 48}, 0.05),
        ("bamba", {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_chunk_size": 32}, 0.1),
    ],
)
def test_flops_are_those_that_pytorch_counts(name, more, within):
    from torch.utils.flop_counter import FlopCounterMode

    sequence = 128
    config = transformers.CONFIG_MAPPING[name](**{**SMALL, **more})
    config._experts_implementation = "eager"
    built = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        built(torch.zeros(1, sequence, dtype=torch.long), use_cache=False)
    model = read(config)
    parts = [layer_flops(model, layer, sequence) for layer in model.layers]
    # Eager attention multiplies all pairs of tokens; the convention leaves routers out.
    pairs = sum(
        2 * part.score_width * part.attended(sequence)
        for layer in model.layers
        for part in layer.mixers
    )
    routers = sum(2 * model.hidden * layer.experts.count for layer in model.layers if layer.experts)
    expected = sum(part.F for part in parts) + pairs + routers + head_flops(model)
    assert counter.get_total_flops() / sequence == pytest.approx(expected, rel=within or 1e-12)


KIMI_LINEAR = {
    "head_dim": 72, "mla_use_nope": True, "moe_layer_freq": 1, "first_k_dense_replace": 1,
    "moe_router_activation_func": "sigmoid", "use_grouped_topk": True, "rope_theta": 10000.0,
    "num_nextn_predict_layers": 0, "num_expert_group": 1, "num_experts_per_token": 8,
    "num_shared_experts": 1, "num_experts": 256, "model_max_length": 1048576,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [n for n in range(1, 27) if n % 4],
        "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
    },
}  # fmt: skip
"""Keys of Kimi-Linear-48B-A3B's own file, whose numbers of layers count from 1."""

MINIMAX_TEXT = {
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10, "head_dim": 128, "hidden_size": 6144,
    "intermediate_size": 9216, "layernorm_full_attention_alpha": 3.5565588200778455,
    "layernorm_full_attention_beta": 1.0, "layernorm_mlp_beta": 1.0, "num_attention_heads": 64,
    "num_experts_per_tok": 2, "num_hidden_layers": 80, "num_key_value_heads": 8,
    "num_local_experts": 32, "postnorm": True, "rotary_dim": 64, "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid", "vocab_size": 200064,
}  # fmt: skip
"""Keys of MiniMax-Text-01's own file."""


def test_files_of_models_before_they_were_in_transformers():
    defaults = config_of("kimi_linear").to_dict()
    own = {key: value for key, value in defaults.items() if not key.startswith("linear_")}
    own = {key: one for key, one in own.items() if key not in ("layer_types", "mlp_layer_types")}
    kimi = {**own, **KIMI_LINEAR}
    kinds = {"model_type": "kimi_linear"}
    config = transformers.AutoConfig.for_model("kimi_linear", **KIMI_LINEAR)
    found = parse_model(json.dumps({**kimi, **kinds}, default=str), "config.json")
    assert found.parameters == counted(config) == 49_122_675_072
    marks = MINIMAX_TEXT["attn_type_list"]
    plain = {key: value for key, value in MINIMAX_TEXT.items() if key != "attn_type_list"}
    plain["layer_types"] = [("linear_attention", "full_attention")[mark] for mark in marks]
    config = transformers.AutoConfig.for_model("minimax", **plain)
    text = json.dumps({**MINIMAX_TEXT, "model_type": "minimax_text_01"})
    found = parse_model(text, "config.json")
    assert found.parameters == counted(config) == 456_089_655_296
    ends = found.embedding_parameters + found.head_parameters
    assert (found.active_parameters - ends) / 1e9 == pytest.approx(45.9, abs=0.1)


def test_a_text_part_that_is_no_causal_model_of_its_own():
    config = transformers.CONFIG_MAPPING["mistral4"]()
    with torch.device("meta"):
        built = transformers.AutoModel.from_config(config)
    model = read(config)
    inner = sum(part.numel() for part in built.parameters())
    assert model.parameters == inner + model.head_parameters


def test_experts_of_images_are_left_out():
    config = transformers.CONFIG_MAPPING["ernie4_5_vl_moe"]()
    with torch.device("meta"):
        built = transformers.AutoModelForImageTextToText.from_config(config)
    built.tie_weights()
    left = ("vision", "resampler")
    parts = [one for key, one in built.named_parameters() if not any(k in key for k in left)]
    model = read(config)
    assert model.parameters == sum(part.numel() for part in parts)
    assert any("those of images are left out" in note for note in model.assumed)


def test_of_models_that_speak_the_text_of_the_thinker_is_read():
    model = read(transformers.CONFIG_MAPPING["qwen2_5_omni"]())
    assert model.parameters == pytest.approx(7.6e9, rel=0.01)
    (note,) = model.assumed
    assert "talker_config" in note
    assert "vision_config" in note


@pytest.mark.parametrize("name", ["zamba", "longcat_flash", "jetmoe", "hrm_text"])
def test_what_is_refused_comes_with_yaml_that_can_be_read(name):
    config = transformers.CONFIG_MAPPING[name]()
    with pytest.raises(FormatError) as refused:
        read(config)
    text = str(refused.value).partition("such as ")[2]
    model = parse_model(text, "own.yaml")
    assert model.hidden == config.hidden_size
    assert model.vocabulary == config.vocab_size


def test_families_without_a_description_say_why():
    with pytest.raises(FormatError, match=r"'zamba', whose layers share .*in YAML, such as"):
        read(transformers.CONFIG_MAPPING["zamba"]())
