"""Runtimes by the names that published measurements give, with those that have no flags here."""

from __future__ import annotations

from debubble.core.errors import ParameterError, did_you_mean
from debubble.planner.frameworks.deepspeed.runtime import DEEPSPEED
from debubble.planner.frameworks.habits import Habits
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.torch.runtime import TORCH

NANOTRON = Habits(
    "nanotron", "nanotron", keeps_outputs=True, portable_attention=True,
    plain_gates=True, memory_error=0.33, launch=11e-6, collective=(0.1e-3, 0.6e-3),
    collective_launch=0.44e-3, piped_layers=(0.0, 8e-3, 14e-3, 22e-3, 50e-3, 150e-3),
    loss_bytes=(38.0, 18.0), adds_gradients=True, hides_replicas=False, end_network=0.4,
    balances_head=True,
)  # fmt: skip
"""Habits of nanotron, on which the Ultra-Scale Playbook measured 4,000 plans.

The memory's error is that of their peaks: with degrees from 16 on, some runs store inputs that
others gather anew. A layer takes at least 4.6 ms with a tensor-parallel group of one node, 8.3 ms
over two and 15 ms over four, whatever its size: 98 kernels of 11 us, and 8 collectives of 0.44 ms
per node. In pipelines over several nodes it takes what :attr:`Habits.piped_layers` says, at 1B as
at 8B. Some pipelines without ZeRO wait about a second for every microbatch: not explained.
"""
AA_SCALING = Habits(
    "aa-scaling", "AA-Scaling", portable_attention=True, logit_bytes=16.0, plain_gates=True,
    gradient_bytes=2, launch=11e-6, keeps_outputs=True,
    gathered_inputs=True, whole_logits=True, attention_copies=3.0, reduces_whole=True,
)  # fmt: skip
"""Habits of AA-Scaling, on which arXiv 2311.05610 measured layouts on A100, by its code.

Every tensor-parallel rank gathers the logits of the whole vocabulary, and keeps those of two
microbatches; the loss is PyTorch's, in fp32: 16 bytes per logit. Queries, keys and values before
their rotation stay with the one tensor that holds them, and attention's output is copied once.
Gradients are bf16, and summed whole in fp32."""
LLM_FOUNDRY = Habits(
    "llm-foundry", "LLM Foundry", fsdp=True, gathered_inputs=True, portable_attention=True,
    attention_share=0.7,
)  # fmt: skip
"""Habits of MosaicML's LLM Foundry, on PyTorch's FSDP; its attention is a Triton kernel."""

PUBLISHED_RUNTIMES: dict[str, Habits] = {
    "megatron": MEGATRON, "nemo": MEGATRON, "bridge": MEGATRON, "megatron-bridge": MEGATRON,
    "primus": MEGATRON, "torchtitan": TORCH, "automodel": TORCH, "torch": TORCH,
    "llm-foundry": LLM_FOUNDRY, "megatron-deepspeed": DEEPSPEED, "deepspeed": DEEPSPEED,
    "nanotron": NANOTRON, "aa-scaling": AA_SCALING,
}  # fmt: skip
"""Runtimes by the framework of a row of measurements; NeMo, Megatron-Bridge and Primus run on
Megatron-LM."""


def runtime_of(framework: str) -> Habits:
    """Return the runtime of a framework in any case; an unknown one is refused."""
    name = framework.strip().lower()
    if name not in PUBLISHED_RUNTIMES:
        raise ParameterError(
            f"framework is '{framework}'; {did_you_mean(name, PUBLISHED_RUNTIMES)}"
        )
    return PUBLISHED_RUNTIMES[name]
