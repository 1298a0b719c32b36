"""Megatron-LM's arguments for our models, and its own verdict on lists of arguments."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from debubble.planner.case import Case
from debubble.planner.frameworks.table import flags
from debubble.planner.model.mixers import LatentAttention
from debubble.planner.model.transformer import Model
from tests import wheels
from tests.patience import patience

VERSION = "0.19.2"
OF_ANOTHER_PYTHON = ("--python-version", "3.12", "--only-binary", ":all:")
"""It asks for 3.12; what is run of it needs less."""

SECONDS = 900


def fetch(folder: Path) -> Path:
    """The wheel of Megatron Core, which has Megatron-LM's parser and checks."""
    return wheels.fetch(folder, "megatron-core", VERSION, *OF_ANOTHER_PYTHON)


def verdicts(wheel: Path, cases: list[tuple[Case, str]]) -> list[dict[str, Any]]:
    """What Megatron-LM makes of texts of flags, one for each case."""
    jobs = []
    for case, text in cases:
        name = "CUDA_DEVICE_MAX_CONNECTIONS"
        one = f"{name}=1" in text
        shape = [] if text.startswith("#!") else model_words(case.model)
        words = script_words(text) if text.startswith("#!") else shlex.split(text, comments=True)
        jobs.append({
            "words": [*shape, *words, *TRAINING],
            "gpus": case.cluster.gpus, "environment": {name: "1"} if one else {},
        })  # fmt: skip
    asked = json.dumps({"wheel": str(wheel), "jobs": jobs})
    words = [sys.executable, "-m", "tests.planner.megatron_job"]
    done = subprocess.run(
        words, input=asked, capture_output=True, text=True, timeout=patience(SECONDS), check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def script_words(text: str) -> list[str]:
    """The words of a script's arrays, as the shell makes them."""
    arrays = text[text.index("MODEL=(") : text.index("torchrun")]
    shown = 'printf "%s\\0" "${MODEL[@]}" "${PLAN[@]}" "${TRAINING[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{arrays}\n{shown}"], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\0")[:-1]


def text_of(case: Case) -> str:
    """Our flags."""
    return flags(case, "megatron")


TRAINING = [
    "--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "10", "--lr", "1e-4",
    "--transformer-impl", "local", "--no-gradient-accumulation-fusion", "--no-rope-fusion",
    "--max-position-embeddings", "1048576", "--position-embedding-type", "rope",
]  # fmt: skip
"""What a job says that no plan is about."""


def model_words(model: Model) -> list[str]:
    """The model's shape."""
    layer = model.layers[-1]
    attention, experts = layer.attention, layer.experts
    words = {
        "num-layers": len(model.layers),
        "hidden-size": model.hidden,
        "num-attention-heads": attention.heads,
        "vocab-size": model.vocabulary,
        "ffn-hidden-size": layer.mlp.width,
    }
    flags = ["--swiglu"] + ["--untie-embeddings-and-output-weights"] * (not model.tied)
    if isinstance(attention, LatentAttention):
        flags.append("--multi-latent-attention")
    elif attention.kv_heads != attention.heads:
        flags.append("--group-query-attention")
        words["num-query-groups"] = attention.kv_heads
    if experts is not None:
        words |= {"num-experts": experts.count, "moe-ffn-hidden-size": experts.width}
        flags.append("--disable-bias-linear")
    if model.mtp:
        words["mtp-num-layers"] = model.mtp
    return [*flags, *(f"--{name}={value}" for name, value in words.items())]
