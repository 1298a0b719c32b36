"""Small decoder models of Hugging Face's transformers; weights are random, nothing is downloaded.

gpt2 has one weight as embedding and head, on the first and the last stage; qwen3-moe has a loss of
its routers, to which every stage adds.
"""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

CONFIGS = {path.stem: path for path in Path(__file__).parent.glob("*.json")}
TOKENS = 64


def build(name, dtype=torch.float32):
    """A model, the same every time."""
    config = AutoConfig.for_model(**json.loads(CONFIGS[name].read_text()))
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def loss_fn(logits, targets):
    """Mean cross-entropy of a microbatch."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
