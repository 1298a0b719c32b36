"""Parameter counts against transformers' own models, built without memory for their weights."""

import json

import pytest

from debubble.planner.model.files import parse_model, read_model, shipped_models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow


def counted(config):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


SMALL = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 100, "vocab_size": 500},
    "llama": {"attention_bias": True, "mlp_bias": True, "head_dim": 24},
    "mistral": {"sliding_window": 32},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 32},
    "qwen2_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56, "decoder_sparse_step": 2,
    },
    "qwen3": {"head_dim": 24, "attention_bias": True},
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "mlp_only_layers": [1], "head_dim": 24,
    },
    "deepseek_v2": {
        "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2,
        "moe_intermediate_size": 40, "first_k_dense_replace": 1, "q_lora_rank": None,
        "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20,
        "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
    },
    "deepseek_v3": {
        "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 40, "first_k_dense_replace": 2, "q_lora_rank": 24,
        "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20,
        "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
    },
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 24},
}  # fmt: skip
"""What is unusual about a small model of each family."""

COMMON = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 1000,
}  # fmt: skip


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("tied", [False, True])
def test_small_models_of_every_family(family, tied):
    shared = {} if family == "gpt2" else COMMON
    values = {**shared, **SMALL[family], "tie_word_embeddings": tied}
    config = transformers.AutoConfig.for_model(family, **values)
    # All keys that transformers writes, defaults included, are known.
    model = parse_model(json.dumps(config.to_dict(), default=str), "config.json")
    router_biases = sum(
        layer.experts.count for layer in model.layers if layer.experts is not None
    ) * (family == "deepseek_v3")  # a buffer there
    assert model.parameters - router_biases == counted(config)
    written = parse_model(json.dumps({**values, "model_type": family}), "config.json")
    assert written.parameters == model.parameters
    assert written.layers == model.layers


@pytest.mark.parametrize("name", [name for name in shipped_models() if "-3-175b" not in name])
def test_shipped_models(name):
    from importlib import resources

    path = resources.files("debubble.planner.model") / "shipped" / f"{name}.json"
    if not path.is_file():
        pytest.skip("not a config.json")
    values = json.loads(path.read_text())
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    model = read_model(name)
    experts = [layer.experts for layer in model.layers if layer.experts is not None]
    buffers = sum(one.count for one in experts) if name == "deepseek-v3" else 0
    assert model.parameters - buffers == counted(config)
