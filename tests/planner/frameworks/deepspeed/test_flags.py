"""Arguments and configuration of Megatron-DeepSpeed: known names that agree with each other."""

from __future__ import annotations

import json
import subprocess

import pytest

from debubble.planner.case import Case
from debubble.planner.frameworks.table import FRAMEWORKS, broken, flags
from tests.planner.cases import case, dense, sampled
from tests.planner.megatron import script_words

GOOD = [
    case(dense(), tp=8, dp=4),
    case(dense(), tp=4, dp=2, pp=4, b=2, m=8, recompute="full"),
    case(dense(), pp=4, zero=0),
    case(dense(), dp=8, zero=3),
    case(dense(tied=True, positions=8192, norm="layer"), dp=2, pp=2, precision="fp16"),
]

NAMES = {
    "tensor-model-parallel-size", "sequence-parallel", "pipeline-model-parallel-size",
    "no-pipeline-parallel", "micro-batch-size", "global-batch-size", "seq-length", "bf16", "fp16",
    "use-flash-attn-v2", "checkpoint-activations", "deepspeed-activation-checkpointing",
    "deepspeed", "deepspeed_config", "zero-stage", "num-layers", "hidden-size", "ffn-hidden-size",
    "num-attention-heads", "num-key-value-heads", "kv-channels", "swiglu", "disable-bias-linear",
    "normalization", "untie-embeddings-and-output-weights", "max-position-embeddings",
    "use-rotary-position-embeddings", "rotary-position-embeddings-theta", "attention-dropout",
    "hidden-dropout", "data-path", "tokenizer-type", "tokenizer-model", "train-iters", "lr",
    "lr-decay-style", "log-interval", "eval-iters",
}  # fmt: skip
"""Arguments of megatron/arguments.py of Megatron-DeepSpeed (commit 207b2d5a) and of DeepSpeed."""


@pytest.mark.parametrize("one", [*GOOD, *sampled("deepspeed", 2)])
def test_scripts_have_known_arguments_and_a_configuration_that_agrees(one: Case) -> None:
    assert not broken(one, "deepspeed")
    text = FRAMEWORKS["deepspeed"].files[".sh"](one)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    words = script_words(text)
    assert {word[2:] for word in words if word.startswith("--")} <= NAMES
    plain = flags(one, "deepspeed").split()
    start = words.index(plain[0])
    assert words[start : start + len(plain)] == plain
    content = FRAMEWORKS["deepspeed"].files[".json"](one)
    assert content in text
    config, own = json.loads(content), one.candidate
    size, pieces = (
        config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"],
    )  # fmt: skip
    assert config["train_batch_size"] == size * pieces * one.degrees.dp == one.training.batch
    assert str(size) == words[words.index("--micro-batch-size") + 1]
    assert config["zero_optimization"]["stage"] == own.zero
    assert str(own.zero) == words[words.index("--zero-stage") + 1]
    assert config[one.training.precision]["enabled"]
    assert ("--no-pipeline-parallel" in words) == (own.zero > 1)


def test_activations_and_positions_are_those_of_the_model() -> None:
    write = FRAMEWORKS["deepspeed"].files[".sh"]
    plain = write(case(dense(activation="silu", rope_theta=500000.0), dp=2))
    assert "  --rotary-position-embeddings-theta 500000\n" in plain
    assert "  --swiglu\n" in plain
    text = write(case(dense(activation="gelu"), dp=2))
    assert "--rotary-position-embeddings-theta 10000  # fill in: the model's rope_theta" in text
    assert "--swiglu  # fill in: the activation of the model's gate is gelu" in text
    assert "# These arguments do not describe all of the model, fill in: a gate of GeLU." in text
