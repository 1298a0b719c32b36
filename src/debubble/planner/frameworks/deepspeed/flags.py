"""Arguments of Megatron-DeepSpeed, and the configuration of DeepSpeed."""

from __future__ import annotations

import json
from typing import Any

from debubble.planner.case import Case
from debubble.planner.frameworks.launch import about, comment, nodes
from debubble.planner.frameworks.megatron.model_arguments import (
    activation_arguments,
    rope_argument,
    said_missing,
)
from debubble.planner.frameworks.megatron.script import LAUNCHER, PRETRAIN, TORCHRUN, array
from debubble.planner.model.mixers import Attention

CONFIG = "ds_config.json"
"""File with the configuration of DeepSpeed."""

BUCKET = 500_000_000
"""Numbers in a bucket of gradients or weights that replicas exchange."""

TRAINING = (
    "--data-path DATA  # fill in: the prefix of the indexed data set",
    "--tokenizer-type HFTokenizer",
    "--tokenizer-model TOKENIZER  # fill in: a model on Hugging Face, or its folder",
    "--train-iters 100",
    "--lr 1e-4",
    "--lr-decay-style constant",
    "--log-interval 1",
    "--eval-iters 0",
)
"""Arguments that no plan is about."""


def deepspeed_lines(case: Case) -> list[str]:
    """Return the arguments with which Megatron-DeepSpeed runs a plan that breaks no rule."""
    own, d, training = case.candidate, case.degrees, case.training
    return [
        f"--tensor-model-parallel-size {d.tp}",
        *["--sequence-parallel"] * (d.tp > 1 and training.sequence_parallel),
        f"--pipeline-model-parallel-size {d.pp}",
        *["--no-pipeline-parallel"] * (own.zero > 1),
        f"--micro-batch-size {own.microbatch_size}",
        f"--global-batch-size {training.batch}",
        f"--seq-length {training.sequence}",
        f"--{training.precision}",
        *["--use-flash-attn-v2"] * training.flash,
        *(
            ["--checkpoint-activations", "--deepspeed-activation-checkpointing"]
            if own.recompute == "full"
            else []
        ),
        "--deepspeed",
        f"--deepspeed_config {CONFIG}",
        f"--zero-stage {own.zero}",
    ]


def deepspeed_config(case: Case) -> dict[str, Any]:
    """Return the configuration of DeepSpeed for a plan."""
    own, training = case.candidate, case.training
    zero: dict[str, Any] = {"stage": own.zero}
    if own.zero:
        zero |= {"reduce_bucket_size": BUCKET, "overlap_comm": True}
    if own.zero in (1, 2):
        zero |= {"allgather_bucket_size": BUCKET}
    found: dict[str, Any] = {
        "train_batch_size": training.batch,
        "train_micro_batch_size_per_gpu": own.microbatch_size,
        "gradient_accumulation_steps": own.microbatches,
        "zero_optimization": zero,
        training.precision: {"enabled": True},
        "gradient_clipping": 1.0,
        "steps_per_print": 1,
    }
    if training.precision == "bf16":
        gradients = "fp32" if training.gradient_bytes == 4 else "bf16"
        found["data_types"] = {"grad_accum_dtype": gradients}
    return found


def deepspeed_json(case: Case) -> str:
    """Return the configuration of DeepSpeed as JSON."""
    return json.dumps(deepspeed_config(case), indent=2) + "\n"


def deepspeed_script(case: Case) -> str:
    """Return the script that writes DeepSpeed's configuration and runs a plan."""
    hosts, each = nodes(case)
    head = comment(about(case)) + comment(said_missing(case.model))
    return (
        f"#!/bin/bash\n{head}set -euo pipefail\n\n"
        "MEGATRON=${MEGATRON:-.}                  # fill in: the folder of Megatron-DeepSpeed\n"
        f"{LAUNCHER.format(nodes=hosts, gpus=each)}export CUDA_DEVICE_MAX_CONNECTIONS=1\n\n"
        f"cat > {CONFIG} <<'END'\n{deepspeed_json(case)}END\n\n"
        f"{array('MODEL', _model(case))}\n{array('PLAN', deepspeed_lines(case))}\n"
        f"{array('TRAINING', TRAINING)}\n"
        f"{TORCHRUN}{PRETRAIN}"
    )


def _model(case: Case) -> list[str]:
    """Return the arguments of the model's shape."""
    model = case.model
    layer, one = model.layers[-1], model.layers[-1].attention
    assert isinstance(one, Attention)
    lines = [
        f"--num-layers {len(model.layers)}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {max(each.mlp.width for each in model.layers)}",
        f"--num-attention-heads {one.heads}",
        f"--num-key-value-heads {one.kv_heads}",
        f"--kv-channels {one.head_dim}",
        *activation_arguments(model, ["--swiglu"]),
        *["--disable-bias-linear"] * (not layer.mlp.bias),
        f"--normalization {'layernorm' if model.norm == 'layer' else 'rmsnorm'}",
        *["--untie-embeddings-and-output-weights"] * (not model.tied),
        f"--max-position-embeddings {model.positions or case.training.sequence}",
    ]
    if not model.positions:
        lines += [
            "--use-rotary-position-embeddings",
            rope_argument("--rotary-position-embeddings-theta", model),
        ]
    if not model.dropout:
        lines += ["--attention-dropout 0.0", "--hidden-dropout 0.0"]
    return lines
