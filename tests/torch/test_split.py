"""Stages of decoder models compute what the whole models do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from debubble.core.errors import ParameterError
from debubble.torch.data.batch import added_losses
from debubble.torch.models.split import find_layers, split

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers", reason="cuts models of transformers")

VOCABULARY, LAYERS, ROWS, TOKENS = 61, 4, 3, 10
LLAMA = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
EXPERTS = {
    "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.1,
    "experts_implementation": "eager",
}  # fmt: skip
GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": 16, "n_layer": LAYERS, "n_head": 4, "n_positions": 32,
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
QUIET = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2 | QUIET),
    "gpt2-untied": ("gpt2", GPT2 | QUIET | {"tie_word_embeddings": False}),
    "llama": ("llama", LLAMA),
    "llama-tied": ("llama", LLAMA | {"tie_word_embeddings": True}),
    "mistral": ("mistral", LLAMA | {"sliding_window": 4}),
    "qwen2": ("qwen2", LLAMA | WINDOW),
    "qwen3": ("qwen3", LLAMA | {"head_dim": 8}),
    "qwen3_moe": (
        "qwen3_moe", LLAMA | EXPERTS | {"num_experts": 4, "moe_intermediate_size": 8,
                                        "head_dim": 8, "decoder_sparse_step": 2},
    ),
    "mixtral": ("mixtral", LLAMA | EXPERTS | {"num_local_experts": 4}),
    "mixtral-without-loss": (
        "mixtral", LLAMA | EXPERTS | {"num_local_experts": 4, "output_router_logits": False},
    ),
}  # fmt: skip


def built(name: str, **more: Any) -> Any:
    kind, values = CONFIGS[name]
    config = transformers.AutoConfig.for_model(kind, **values | more)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64)


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Iterator[Any]:
    return built(request.param)


@pytest.fixture(params=[False, True], ids=["whole", "padded"])
def mask(request: pytest.FixtureRequest) -> Tensor | None:
    if not request.param:
        return None
    mask = torch.ones(ROWS, TOKENS, dtype=torch.long)
    mask[0, 7:] = 0
    mask[1, :3] = 0
    return mask


def tokens() -> Tensor:
    source = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (ROWS, TOKENS), generator=source)


def composed(stages: Sequence[nn.Module], x: Any, **kwargs: Any) -> Any:
    for stage in stages:
        x = stage(*(x if isinstance(x, tuple) else (x,)), **kwargs)
    return x


def gradients(model: nn.Module, *, some: bool = False) -> dict[str, Tensor]:
    found = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    if some:
        return {name: gradient for name, gradient in found.items() if gradient is not None}
    assert all(gradient is not None for gradient in found.values())
    return found


@pytest.mark.parametrize("cut", [1, 3, LAYERS, [1, 0, 3]])
def test_stages_together_are_the_model(model: Any, mask: Tensor | None, cut: Any) -> None:
    x = tokens()
    labels = x if mask is None else x.masked_fill(mask == 0, -100)
    whole = model(x, attention_mask=mask, labels=labels)
    whole.loss.backward()
    wanted = gradients(model)
    stages = split(model, cut)
    with added_losses() as added:
        logits = composed(stages, x, attention_mask=mask)
    loss = model.loss_function(logits, labels, VOCABULARY) + sum(added)
    loss.backward()
    torch.testing.assert_close(logits, whole.logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(loss, whole.loss, rtol=0, atol=1e-12)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=1e-12, msg=name)
    assert len(added) == model.config.__dict__.get("output_router_logits", False)


def test_weights_are_the_models_own(model: Any) -> None:
    stages = split(model, 3)
    found = {name: weight for stage in stages for name, weight in stage.named_parameters()}
    own = dict(model.named_parameters(remove_duplicate=False))
    assert found.keys() == own.keys()
    assert all(found[name] is own[name] for name in own)
    assert [stage.config for stage in stages] == [model.config] * 3
    tied = {id(p) for p in stages[0].parameters()} & {id(p) for p in stages[-1].parameters()}
    assert bool(tied) == model.config.tie_word_embeddings


def test_layers_of_a_stage_are_its_own() -> None:
    stages = split(built("llama"), [1, 3])
    assert [len(find_layers(stage)) for stage in stages] == [1, 3]
    assert stages[1].training


def test_positions_and_packed_sequences() -> None:
    model = built("llama")
    x = tokens()
    positions = torch.arange(TOKENS).repeat(ROWS, 1)
    positions[:, 6:] -= 6
    wanted = model(x, position_ids=positions, use_cache=False).logits
    found = composed(split(model, 2), x, position_ids=positions)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(found, composed(split(model, 2), x))


def test_dropout_and_checkpointing_are_the_models() -> None:
    kind, values = "gpt2", GPT2
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **values), dtype=torch.float64
    )
    model.activation_checkpointing_enable()
    model.train()
    x = tokens()
    torch.manual_seed(3)
    wanted = model(x, use_cache=False).logits
    wanted.square().mean().backward()
    of_model = gradients(model)
    torch.manual_seed(3)
    composed(split(model, 2), x).square().mean().backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, of_model[name], rtol=0, atol=1e-12, msg=name)


def names(*groups: Sequence[int]) -> list[list[str]]:
    return [[f"model.layers.{layer}" for layer in group] for group in groups]


def test_stages_by_names_of_modules() -> None:
    model = built("llama")
    first, second = names([0], [1, 2, 3])
    stages = split(
        model,
        [
            ["model.embed_tokens"],
            [*first, "model.rotary_emb"],
            [*second, "model.norm"],
            ["lm_head"],
        ],
    )
    assert [stage.is_last for stage in stages] == [False, False, False, True]
    x = tokens()
    torch.testing.assert_close(composed(stages, x), model(x).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (0, "stages is 0; the model has 4 layers, give a number from 1 to 4"),
        (5, "stages is 5; the model has 4 layers"),
        ([2, 3], r"stages have 2\+3 = 5 layers; the model has 4"),
        ("two", "stages is 'two'; give their number"),
        ([["model.embed_tokens", "model.layer.0"]], "the model has no part 'model.layer.0'; did"),
        ([["model.embed_tokens", "model.layers.1"]], "the next part is model.layers.0"),
        ([["model.embed_tokens"], *names([0, 1])], "no stage has model.layers.2"),
    ],
)
def test_what_is_no_cut(cut: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        split(built("llama"), cut)


class SharedBlock(transformers.LlamaModel):
    """Runs one of its parts after every layer, which no stage alone has."""

    def forward(self, input_ids: Any = None, inputs_embeds: Any = None, **_: Any) -> Any:
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        for layer in self.layers:
            x = self.norm(layer(x))
        return transformers.modeling_outputs.BaseModelOutputWithPast(last_hidden_state=x)


class OnlyWhole(transformers.LlamaModel):
    """Reads the weights of its layers itself."""

    def forward(self, input_ids: Any = None, **kwargs: Any) -> Any:
        assert self.layers[0].mlp.up_proj.weight is not None
        return super().forward(input_ids, **kwargs)


@pytest.mark.parametrize(("body", "reason"), [
    (SharedBlock, "in its model norm runs between its layers; write its stages as modules, and"),
    (OnlyWhole, r"its model does not run without its layers \(AttributeError: .*mlp'\); write its"),
])  # fmt: skip
def test_a_model_that_cannot_be_cut_has_a_reason_and_a_way_out(body: Any, reason: str) -> None:
    model = built("llama")
    model.model.__class__ = body
    with pytest.raises(ParameterError, match=f"type 'llama' cannot be cut: {reason}"):
        split(model, 2)


def test_models_that_are_not_known_are_refused() -> None:
    with pytest.raises(ParameterError, match="a model of type 'Linear' cannot be cut"):
        split(nn.Linear(2, 2), 2)
    body = built("llama").model
    with pytest.raises(ParameterError, match="LlamaModel has no output layer; give the model for"):
        split(body, 2)


MOE = EXPERTS | {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "n_shared_experts": 1,
    "moe_intermediate_size": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "output_router_logits": False,
}  # fmt: skip
DENSE = {"head_dim": 8, "sliding_window": 4, "pad_token_id": 0}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
OTHERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["cohere2", "exaone4", "gemma2", "gemma3_text", "granite"], DENSE),
    **dict.fromkeys(["olmo3", "phi3", "seed_oss", "starcoder2", "stablelm"], DENSE),
    "gpt_neox": {},
    "phi": {},
    "bloom": {"n_layer": LAYERS, "n_head": 4},
    "falcon": {},
    "opt": {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "llama4_text": {
        "head_dim": 8, "intermediate_size_mlp": 32, "num_local_experts": 4,
        "attention_chunk_size": 4, "interleave_moe_layer_step": 2, "pad_token_id": 0,
    },
    "gpt_oss": MOE | {"head_dim": 8, "rope_parameters": ROPE},
    "glm4_moe": MOE | {"head_dim": 8},
    "minimax_m2": MOE | {"head_dim": 8},
    "qwen2_moe": MOE | {"shared_expert_intermediate_size": 8},
    "ernie4_5_moe": MOE | {"moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1},
    "deepseek_v3": MOE | {
        "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
        "v_head_dim": 8, "head_dim": 4, "num_key_value_heads": 4,
    },
    "qwen3_next": MOE | {
        "head_dim": 8, "shared_expert_intermediate_size": 8, "linear_num_value_heads": 2,
        "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_other_decoders_are_cut_where_that_changes_no_bit(kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind, **LLAMA | OTHERS[kind])
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    stages = split(model, [1, 2, 1])
    assert all(weight.grad is None for weight in model.parameters())
    x = tokens()
    wanted = model(x, use_cache=False).logits
    wanted.square().mean().backward()
    of_model = gradients(model, some=True)
    found = composed(stages, x)
    assert torch.equal(found, wanted)
    found.square().mean().backward()
    for name, gradient in gradients(model, some=True).items():
        assert torch.equal(gradient, of_model[name]), name


@pytest.mark.parametrize(("kind", "sizes"), [
    ("opt", {"ffn_dim": 32, "word_embed_proj_dim": 8, "do_layer_norm_before": False}),
    ("falcon", {"alibi": True, "new_decoder_architecture": False}),
    ("bloom", {"n_layer": LAYERS, "n_head": 4, "hidden_dropout": 0.5}),
    ("phi", {"embd_pdrop": 0.5}),
])  # fmt: skip
def test_dropout_before_the_layers_and_parts_after_them_are_on_one_stage(
    kind: str, sizes: dict[str, Any]
) -> None:
    config = transformers.AutoConfig.for_model(kind, **LLAMA | sizes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    stages, x = split(model, [1, 2, 1]), tokens()
    torch.manual_seed(3)
    wanted = model(x, use_cache=False).logits
    torch.manual_seed(3)
    assert torch.equal(composed(stages, x), wanted)


@pytest.mark.parametrize("kind", ["llama", "llama4_text", "deepseek_v3"])
def test_a_router_loss_that_a_type_does_not_have_is_none_of_its_stages(kind: str) -> None:
    sizes = LLAMA | OTHERS.get(kind, {}) | {"output_router_logits": True}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **sizes)
    )
    with added_losses() as added:
        logits = composed(split(model, 2), tokens())
    assert torch.equal(logits, model(tokens(), use_cache=False).logits)
    assert not added


def test_a_body_that_drops_out_by_itself_would_do_so_on_every_stage() -> None:
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "ffn_dim": 32, "num_layers": LAYERS}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model("xglm", **sizes, attention_heads=4, dropout=0.1)
    )
    with pytest.raises(ParameterError, match="in training it changes hidden states outside of its"):
        split(model, 2)
    assert len(split(model, 1)) == 1
    model.model.dropout = 0.0
    assert len(split(model, 2)) == 2
    assert all(part.training for part in model.modules())


class ScaledBody(transformers.LlamaModel):
    """Computes something between embeddings and layers, and so in every stage."""

    def forward(self, input_ids: Any = None, inputs_embeds: Any = None, **kwargs: Any) -> Any:
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return super().forward(inputs_embeds=x * 2, **kwargs)


def test_what_a_model_does_beside_its_parts_is_noticed() -> None:
    model = built("llama")
    model.model.__class__ = ScaledBody
    words = r"type 'llama' cannot be cut: the logits of its stages are \d\S+ from that of the whole"
    with pytest.raises(ParameterError, match=words):
        split(model, 2, check=True)
    meta = built("llama").to("meta")
    with pytest.raises(ParameterError, match="on the device 'meta', without numbers; give a mod"):
        split(meta, 2, check=True)
    assert len(split(meta, 2, check=False)) == 2


@pytest.mark.filterwarnings("default::FutureWarning")  # PEFT reads an older name
def test_adapters_in_layers_are_cut_with_them() -> None:
    peft = pytest.importorskip("peft", reason="cuts models with adapters")
    whole = peft.get_peft_model(
        built("llama"), peft.LoraConfig(target_modules=["q_proj", "up_proj"], r=2)
    )
    stages = split(whole, 2, check=True)
    assert torch.equal(composed(stages, tokens()), whole(tokens()).logits)
    trained = {name for stage in stages for name, w in stage.named_parameters() if w.requires_grad}
    assert "model.layers.3.self_attn.q_proj.lora_B.default.weight" in trained
    adapter = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    with pytest.raises(ParameterError, match="the adapter adds tokens to the input"):
        split(peft.get_peft_model(built("llama"), adapter), 2)
