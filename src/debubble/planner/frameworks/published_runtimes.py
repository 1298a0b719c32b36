"""Runtimes by the names that published measurements give, with those that have no flags here."""

from __future__ import annotations

from debubble.core.errors import ParameterError, did_you_mean
from debubble.planner.frameworks.habits import DEEPSPEED, Habits
from debubble.planner.frameworks.megatron.runtime import MEGATRON
from debubble.planner.frameworks.torch.runtime import TORCH

NANOTRON = Habits(
    "nanotron", "nanotron", keeps_outputs=True, portable_attention=True, logit_bytes=16.0,
    plain_gates=True, memory_error=0.33,
)  # fmt: skip
"""Habits of nanotron, on which the Ultra-Scale Playbook measured 4,000 plans. Its loss shifts a
copy of the logits in fp32; the error is that of 559 of their peaks."""
AA_SCALING = Habits(
    "aa-scaling", "AA-Scaling", portable_attention=True, logit_bytes=16.0, plain_gates=True,
    gradient_bytes=2, memory_error=0.7,
)  # fmt: skip
"""Habits of AA-Scaling, on which arXiv 2311.05610 measured layouts on A100. Plans ran that have no
room for gradients in fp32. Its peaks are not published: with sequences of 2,048 tokens, plans run
out at 90 to 100 % of the memory, with 8,192 for no known reason at half of it."""
LLM_FOUNDRY = Habits(
    "llm-foundry", "LLM Foundry", fsdp=True, gathered_inputs=True, portable_attention=True
)
"""Habits of MosaicML's LLM Foundry, on PyTorch's FSDP."""

PUBLISHED_RUNTIMES: dict[str, Habits] = {
    "megatron": MEGATRON, "nemo": MEGATRON, "megatron-bridge": MEGATRON, "primus": MEGATRON,
    "torchtitan": TORCH, "automodel": TORCH, "torch": TORCH, "llm-foundry": LLM_FOUNDRY,
    "megatron-deepspeed": DEEPSPEED, "deepspeed": DEEPSPEED, "nanotron": NANOTRON,
    "aa-scaling": AA_SCALING,
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
