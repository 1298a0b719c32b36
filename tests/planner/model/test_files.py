"""Models from names and files: exact parameter counts, and messages."""

import json
from importlib import resources

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from debubble.core.errors import FormatError
from debubble.planner.cost.flops import flops_per_token
from debubble.planner.model.files import parse_model, read_model, shipped_models
from debubble.planner.model.hugging_face import hugging_face_model
from debubble.planner.model.mixers import Attention, LatentAttention, Recurrence
from debubble.planner.model.transformer import Experts
from tests.planner.cases import mtp_parameters

COUNTS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt2": 124_439_808,
    "deepseek-v3": 671_026_419_200,
}
"""Published totals, norms and biases included."""


@pytest.mark.parametrize(("name", "parameters"), COUNTS.items())
def test_parameters_are_exact(name, parameters):
    assert read_model(name).parameters == parameters


def test_parameters_beside_the_main_model_and_of_one_token():
    model = read_model("deepseek-v3")
    assert mtp_parameters(model) == pytest.approx(11.61e9, rel=1e-4)
    assert model.active_parameters == pytest.approx(37.55e9, rel=1e-4)
    without_embedding = model.active_parameters - model.embedding_parameters
    assert without_embedding == pytest.approx(36.62e9, rel=2e-4)
    attention = model.layers[0].attention
    assert attention.parameters(model.hidden) == 187_107_328


def test_every_shipped_model_is_read_by_name_and_by_path(tmp_path):
    assert {"gpt2", "mistral-7b", "deepseek-v2", "gpt-oss-20b"} <= set(shipped_models())
    for name in shipped_models():
        assert read_model(name.upper()).parameters > 1e8, name


def test_a_folder_with_a_config_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_model(tmp_path).name == tmp_path.name


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 1000,
}


def parsed(config, where="config.json"):
    return parse_model(json.dumps(config), where)


def changed(**more):
    return parsed({**LLAMA, **more}, "my.json")


PUBLISHED = {
    "Qwen3-Next-80B-A3B": (
        79_674_391_296,
        {
            "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120,
            "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
            "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads":
            32, "decoder_sparse_step": 1, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
            "vocab_size": 151936, "full_attention_interval": 4, "mlp_only_layers": [],
            "tie_word_embeddings": False,
        },
    ),
    "gemma-2-9b": (
        9_241_705_984,
        {
            "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
            "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 256, "sliding_window": 4096, "vocab_size": 256000, "hidden_activation":
            "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
        },
    ),
    "bloom-176b": (
        176_247_271_424,
        {
            "model_type": "bloom", "n_embed": 14336, "num_attention_heads": 112, "n_layer": 70,
            "vocab_size": 250880, "skip_bias_add": True, "bias_dropout_fusion": True, "n_inner":
            None,
        },
    ),
    "pythia-12b": (
        11_846_072_320,
        {
            "model_type": "gpt_neox", "hidden_size": 5120, "intermediate_size": 20480,
            "num_attention_heads": 40, "num_hidden_layers": 36, "vocab_size": 50688,
            "use_parallel_residual": True, "rotary_pct": 0.25, "tie_word_embeddings": False,
        },
    ),
    "opt-350m": (
        331_196_416,
        {
            "model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
            "num_attention_heads": 16, "vocab_size": 50272, "word_embed_proj_dim": 512,
            "do_layer_norm_before": False, "max_position_embeddings": 2048,
        },
    ),
    "mpt-7b": (
        6_649_286_656,
        {
            "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32,
            "expansion_ratio": 4, "vocab_size": 50432, "no_bias": True, "attn_config": {"alibi":
            True, "attn_type": "multihead_attention"},
        },
    ),
    "dbrx": (
        131_596_523_520,
        {
            "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size":
            100352, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4,
            "moe_jitter_eps": 0.01, "moe_loss_weight": 0.05},
        },
    ),
    "Nemotron-H-8B": (
        8_100_852_736,
        {
            "model_type": "nemotron_h", "hidden_size": 4096, "num_hidden_layers": 52,
            "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128,
            "intermediate_size": 21504, "mamba_num_heads": 128, "mamba_head_dim": 64,
            "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "expand": 2, "use_conv_bias":
            True, "vocab_size": 131072, "chunk_size": 128, "mlp_bias": False, "attention_bias":
            False, "time_step_rank": 256,
        },
    ),
    "Jamba-v0.1": (
        51_570_323_328,
        {
            "model_type": "jamba", "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "num_experts": 16, "num_experts_per_tok": 2, "expert_layer_offset": 1,
            "expert_layer_period": 2, "attn_layer_offset": 4, "attn_layer_period": 8,
            "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256,
            "mamba_conv_bias": True, "vocab_size": 65536, "use_mamba_kernels": True,
            "tie_word_embeddings": False, "num_logits_to_keep": 1,
        },
    ),
    "MiniMax-M2": (
        228_689_748_992,
        {
            "model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536,
            "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8,
            "head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8, "use_qk_norm":
            True, "use_mtp": True, "num_mtp_modules": 3, "mtp_transformer_layers": 1,
            "vocab_size": 200064, "rotary_dim": 64, "shared_intermediate_size": 0,
        },
    ),
    "Kimi-K2": (
        1_026_408_232_448,
        {
            "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432,
            "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 64,
            "num_key_value_heads": 64, "n_shared_experts": 1, "n_routed_experts": 384,
            "num_experts_per_tok": 8, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
            "first_k_dense_replace": 1, "moe_layer_freq": 1, "vocab_size": 163840, "n_group": 1,
            "topk_group": 1,
        },
    ),
    "Llama-4-Scout": (
        107_769_861_120,
        {
            "model_type": "llama4", "text_config": {"model_type": "llama4_text", "hidden_size":
            5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_hidden_layers":
            48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
            "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
            "attention_chunk_size": 8192, "vocab_size": 202048, "use_qk_norm": True,
            "no_rope_layers": []}, "vision_config": {"a": 1},
        },
    ),
    "GLM-4.5": (
        352_797_814_784,
        {
            "model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288,
            "moe_intermediate_size": 1536, "num_hidden_layers": 92, "num_attention_heads": 96,
            "num_key_value_heads": 8, "head_dim": 128, "attention_bias": True, "use_qk_norm":
            True, "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8,
            "first_k_dense_replace": 3, "vocab_size": 151552, "num_nextn_predict_layers": 1,
            "partial_rotary_factor": 0.5,
        },
    ),
    "Mamba-2.8b": (
        2_768_345_600,
        {
            "model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16,
            "expand": 2, "conv_kernel": 4, "time_step_rank": 160, "vocab_size": 50280,
            "intermediate_size": 5120, "use_conv_bias": True, "use_bias": False,
        },
    ),
}  # fmt: skip
"""Parameters of published checkpoints, and the keys of their files that speak of shapes."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_exact(name):
    parameters, config = PUBLISHED[name]
    assert parsed(config).parameters == parameters


def test_families_differ_in_what_they_need():
    gpt_oss = read_model("gpt-oss-20b")
    assert isinstance(gpt_oss.layers[0].attention, Attention)
    assert [layer.attention.window for layer in gpt_oss.layers[:3]] == [128, None, 128]
    assert gpt_oss.layers[0].attention.sinks
    assert gpt_oss.layers[0].attention.out_bias
    assert isinstance(gpt_oss.layers[0].mlp, Experts)
    deepseek = read_model("deepseek-v3")
    assert isinstance(deepseek.layers[0].attention, LatentAttention)
    assert [layer.experts is None for layer in deepseek.layers[:4]] == [True, True, True, False]
    assert read_model("mistral-7b").layers[0].attention.window == 4096
    assert read_model("qwen2.5-7b").layers[0].attention.window is None
    assert len(set(map(id, deepseek.layers))) == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"model_type": None}, "model_type None"),
        ({"model_type": 3}, "the model_type 3"),
        ({"hidden_size": None}, "no key 'hidden_size'"),
        ({"hidden_size": 0}, "hidden_size 0; give a whole number from 1"),
        ({"hidden_size": 64.5}, "hidden_size 64.5"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_hidden_layers": 20_000}, "from 1 to 10000"),
        ({"num_attention_heads": 3}, "no multiple of num_attention_heads 3; give head_dim"),
        ({"num_key_value_heads": 3}, "4 attention heads, no multiple of 3"),
        ({"tie_word_embeddings": "yes"}, "give true or false"),
        ({"num_experts": 8}, "which could change a shape"),
        ({"vision_config": {"depth": 2}}, "which could change a shape"),
        ({"intermediate_sizes": 3}, "did you mean 'intermediate_size'"),
    ],
)
def test_values_that_do_not_do(more, message):
    with pytest.raises(FormatError, match=message):
        changed(**more)


def test_a_missing_key_names_the_nearest():
    config = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}
    with pytest.raises(FormatError, match="did you mean 'num_hiden_layers'"):
        parsed({**config, "num_hiden_layers": 2})


def test_harmless_and_switched_off_keys_are_ignored():
    model = changed(
        architectures=["LlamaForCausalLM"], rope_theta=500000.0, torch_dtype="bfloat16",
        num_experts=None, use_something_new=True, rms_norm_eps=1e-5, add_cross_attention=False,
    )  # fmt: skip
    assert model == changed()


def test_base_of_rotary_positions_and_activation_are_read_where_files_have_them():
    of_kinds = {
        "full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4},
    }  # fmt: skip
    assert changed(rope_theta=500000.0).rope_theta == 500000
    assert changed(rope_parameters={"rope_type": "default", "rope_theta": 5e5}).rope_theta == 5e5
    assert changed(rope_scaling={"rope_theta": 5e5}).rope_theta == 5e5
    assert changed(rope_parameters=of_kinds).rope_theta == 1e6
    assert changed(rope_theta=None).rope_theta is None
    assert changed(rope_theta=10**400).rope_theta is None
    assert changed(hidden_act="gelu").activation == "gelu"
    assert read_model("llama-3.1-8b").rope_theta == 500000
    assert read_model("mixtral-8x7b").rope_theta == 1e6
    assert read_model("gpt2").rope_theta is None
    attention = "attention: {heads: 4, kv_heads: 4, head_dim: 16}"
    own = f"{{hidden: 64, vocabulary: 100, {attention}, layers: 2, "
    model = parse_model(own + "mlp: {width: 64}, rope_theta: 10000}", "own.yaml")
    assert (model.rope_theta, model.activation) == (10000, "silu")
    model = parse_model(own + "mlp: {width: 64, gated: false}, activation: relu2}", "own.yaml")
    assert (model.rope_theta, model.activation) == (None, "relu2")
    with pytest.raises(FormatError, match="rope_theta"):
        parse_model(own + "mlp: {width: 64}, rope_theta: fast}", "own.yaml")


def test_unknown_families_are_read_by_their_keys_and_say_so():
    model = changed(model_type="llama5", num_local_experts=8, num_experts_per_tok=2,
                    moe_intermediate_size=32, attention_bias=True)  # fmt: skip
    (note,) = model.assumed
    assert "'llama5' is not known" in note
    assert model.layers[0].experts.count == 8
    assert model.layers[0].attention.out_bias
    with pytest.raises(FormatError, match="'latent_rank', which could change a shape"):
        changed(model_type="other", latent_rank=3)
    with pytest.raises(FormatError, match="the model_type 'lama'; did you mean 'llama"):
        changed(model_type="lama")
    with pytest.raises(FormatError, match=r"'zamba', whose layers share .* YAML, such as"):
        changed(model_type="zamba")


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"model_type": "bert"}, "an encoder of text"),
        ({"model_type": "modernbert"}, "an encoder of text"),
        ({"model_type": "electra"}, "an encoder of text"),
        ({"model_type": "vit"}, "an encoder of images"),
        ({"model_type": "clip", "text_config": {**LLAMA}}, "an encoder of images"),
        ({"model_type": "whisper"}, "an encoder with a decoder"),
        ({"model_type": "t5"}, "an encoder with a decoder"),
        ({"model_type": "new", "is_encoder_decoder": True}, "an encoder with a decoder"),
        ({"model_type": "new", "architectures": ["NewForMaskedLM"]}, "of NewForMaskedLM"),
    ],
)
def test_encoders_are_refused(config, what):
    with pytest.raises(FormatError, match=f"{what}.*; plans are for decoders.* such as {{hidden: "):
        changed(**config)
    assert changed(model_type="new", architectures=["NewForCausalLM"]).assumed
    assert changed(architectures=["LlamaForSequenceClassification"]) == changed()


def test_the_config_of_bert_is_refused_as_an_encoder():
    bert = {
        "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
        "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 30522,
    }  # fmt: skip
    with pytest.raises(FormatError, match="the model_type 'bert', an encoder of text"):
        parsed(bert)


def test_heads_of_mamba_2_follow_from_their_width():
    mamba = {
        "model_type": "mamba2", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 100,
        "expand": 2, "state_size": 64, "n_groups": 1,
    }  # fmt: skip
    assert parsed({**mamba, "head_dim": 64}) == parsed({**mamba, "head_dim": 64, "num_heads": 8})
    with pytest.raises(FormatError, match="no key 'num_heads'"):
        parsed(mamba)


def test_sentences_of_refused_keys_end():
    with pytest.raises(FormatError, match=r"'index_\w+' and '\w+'\. Remove it|[.?] Remove it"):
        changed(index_topk_layers=3)


def test_the_text_of_a_model_with_images_is_read():
    outer = {"model_type": "seer", "text_config": LLAMA, "vision_config": {"depth": 2}}
    model = parsed({**outer, "tie_word_embeddings": True})
    assert model.layers == parsed(LLAMA).layers
    assert "only the text part of seer is counted; vision_config is left out" in model.assumed[0]
    assert parsed({**outer, "text_config": {**LLAMA, "tie_word_embeddings": True}}).tied


def test_limits_that_json_has_no_number_for():
    text = json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")]})
    assert parse_model(text, "config.json") == parsed(LLAMA)


def test_layer_types_must_fit():
    oss = {
        "model_type": "gpt_oss", "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
        "vocab_size": 100, "num_local_experts": 4, "num_experts_per_tok": 2,
    }  # fmt: skip
    assert parsed(oss).layers[0].attention.window == 128
    with pytest.raises(FormatError, match="1 entries; give 2, one per layer"):
        parsed({**oss, "layer_types": ["full_attention"]})
    with pytest.raises(FormatError, match="did you mean 'full_attention'"):
        parsed({**oss, "layer_types": ["full_attention", "ful_attention"]})
    with pytest.raises(FormatError, match="two names of one number"):
        parsed({**oss, "experts_per_token": 3})
    with pytest.raises(FormatError, match="5 of 4 experts; 4 is the most"):
        parsed({**oss, "num_experts_per_tok": 5})


def test_dense_layers_among_experts_are_numbered():
    qwen = json.loads(json.dumps(QWEN))
    kinds = [layer.experts is not None for layer in parsed(qwen).layers]
    assert kinds == [False, True, False, False]
    assert parsed({**qwen, "mlp_only_layers": 1}).layers[1].experts is None
    with pytest.raises(FormatError, match="4 in mlp_only_layers; layers are 0 to 3"):
        parsed({**qwen, "mlp_only_layers": [4]})


QWEN = {
    "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 4, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 160,
    "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
    "decoder_sparse_step": 2, "mlp_only_layers": [3], "vocab_size": 1000,
}  # fmt: skip

OWN = """
name: small
hidden: 64
vocabulary: 1000
attention: {heads: 4, kv_heads: 2, head_dim: 16}
mlp: {width: 160}
layers: 2
"""


def test_own_yaml_describes_the_same_models():
    own = parse_model(OWN, "small.yaml")
    config = changed()
    assert (own.name, own.layers, own.parameters) == ("small", config.layers, config.parameters)


def test_own_yaml_has_groups_of_layers():
    text = """
hidden: 7168
vocabulary: 129280
mtp: 1
attention: {heads: 128, q_rank: 1536, kv_rank: 512, nope_dim: 128, rope_dim: 64, v_dim: 128}
layers:
  - {count: 3, mlp: {width: 18432}}
  - count: 58
    experts: {count: 256, top_k: 8, width: 2048, shared_width: 2048, router_bias: true, groups: 8,
              group_top_k: 4, scale: 2.5}
"""
    model, shipped = parse_model(text, "v3.yaml"), read_model("deepseek-v3")
    assert model.layers == shipped.layers
    assert model.parameters == shipped.parameters
    assert model.name == "v3"
    own, same = (one.layers[-1].experts for one in (model, shipped))
    assert own is not None
    assert same is not None
    routing = (own.groups, own.group_top_k, own.scale)
    assert routing == (same.groups, same.group_top_k, same.scale) == (8, 4, 2.5)


def test_own_yaml_has_linear_attention_windows_and_sparse_attention():
    linear = "{heads: 32, key_dim: 128, value_dim: 128, inputs: 12352, outputs: 4096}"
    text = f"""
hidden: 2048
vocabulary: 151936
mlp: {{width: 5632}}
layers:
  - {{count: 3, attention: {linear}, mlp: {{width: 5632}}}}
  - attention: {{heads: 16, kv_heads: 2, head_dim: 256, gate: 4096, window: 512}}
    mlp: {{width: 5632}}
"""
    linear, full = (parse_model(text, "next.yaml").layers[layer] for layer in (0, 3))
    assert linear.attention == Recurrence(32, 128, 128, 12352, 4096)
    assert full.attention == Attention(16, 2, 256, gate=4096, window=512)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hidden: 64", "hidden: wide", "hidden 'wide'"),
        ("hidden: 64", "hiden: 64", "no key 'hidden'.*did you mean 'hiden'"),
        ("layers: 2", "layers: []", "no layers"),
        ("layers: 2", "layers: [3]", r"layers\[0\] is 3"),
        ("layers: 2", "layers: 2\nheads: 4", "unknown key 'heads'"),
        ("kv_heads: 2", "kv_heads: 3", "4 attention heads, no multiple of 3"),
        ("kv_heads: 2", "kv_head: 2", "no key 'kv_heads'.*did you mean 'kv_head'"),
        ("mlp: {width: 160}", "mlp: 160", "mlp is 160"),
        ("mlp: {width: 160}", "", "neither mlp nor experts"),
        ("mlp: {width: 160}", "mlp: {width: 160}\nexperts: {}", "both mlp and experts"),
        ("attention:", "atention:", "no attention"),
        ("name: small", "name: [1]", "name .*give a short text"),
        ("name: small", "norm: batch", "norm 'batch'; known: layer, rms"),
    ],
)
def test_own_yaml_is_refused_where_it_is_wrong(old, new, message):
    with pytest.raises(FormatError, match=message):
        parse_model(OWN.replace(old, new, 1), "small.yaml")


def test_no_such_model():
    with pytest.raises(FormatError, match=r"there is no model 'llama-3.1-9b'; did you mean 'llama"):
        read_model("llama-3.1-9b")
    with pytest.raises(FormatError, match="there is no file"):
        read_model("missing.json")
    with pytest.raises(FormatError, match="a model is a mapping"):
        parse_model("[1]", "x.json")


FAMILIES = [
    json.loads((resources.files("debubble.planner.model") / "shipped" / file).read_text())
    for file in shipped_models().values()
    if file.endswith(".json")
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def built(build):
    """What was built, or why not."""
    try:
        return build()
    except FormatError as error:
        return error


@given(st.data())
def test_any_config_is_a_model_or_refused(data):
    config = dict(data.draw(st.sampled_from(FAMILIES)))
    for _ in range(data.draw(st.integers(1, 3))):
        config[data.draw(st.sampled_from(sorted(config)) | st.text(max_size=6))] = data.draw(
            ANYTHING
        )
    keys = ["num_hidden_layers", "n_layer"]
    assume(not any(isinstance(config.get(key), int) and config[key] > 500 for key in keys))
    found = built(lambda: hugging_face_model(config, "fuzzed"))
    assert isinstance(found, FormatError) or flops_per_token(found, 128)["causal"] > 0


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "hidden",
                "layers",
                "vocabulary",
                "attention",
                "mlp",
                "experts",
                "norm",
                "name",
                "tied",
                "x",
            ]
        ),
        ANYTHING,
    )
)
def test_any_own_description_is_a_model_or_refused(changes):
    text = yaml.safe_dump({**yaml.safe_load(OWN), **changes})
    found = built(lambda: parse_model(text, "fuzzed.yaml"))
    assert isinstance(found, FormatError) or found.parameters > 0


@pytest.mark.parametrize(
    ("keys", "share", "scaling"),
    [
        ({}, 1.0, {}),
        ({"partial_rotary_factor": 0.5}, 0.5, {}),
        ({"rope_scaling": {"rope_type": "default"}}, 1.0, {}),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 1.0,
         {"rope_type": "linear", "factor": 2}),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}}, 1.0,
         {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}),
        ({"rope_parameters": {
            "full_attention": {"rope_type": "yarn", "factor": 4},
            "sliding_attention": {"rope_type": "default"}}}, 1.0,
         {"rope_type": "yarn", "factor": 4}),
    ],
)  # fmt: skip
def test_rotary_positions_are_read_with_their_share_and_scaling(keys, share, scaling):
    config = json.loads(shipped_text("qwen3-8b")) | keys
    model = hugging_face_model(config, "one")
    assert (model.rope_share, model.rope_scaling) == (share, scaling)


def shipped_text(name):
    folder = resources.files("debubble.planner.model") / "shipped"
    return (folder / f"{name}.json").read_text(encoding="utf-8")


def test_our_own_description_may_stretch_positions():
    text = (
        "{hidden: 64, vocabulary: 100, attention: {heads: 4, kv_heads: 4, head_dim: 16}, "
        "mlp: {width: 128}, layers: 2, rope_share: 0.25, "
        "rope_scaling: {rope_type: llama3, factor: 8}}"
    )
    model = parse_model(text, "own.yaml")
    assert (model.rope_share, model.rope_scaling["factor"]) == (0.25, 8)
    with pytest.raises(FormatError, match="rope_scaling is 'llama3'"):
        parse_model(text.replace("{rope_type: llama3, factor: 8}", "llama3"), "own.yaml")
