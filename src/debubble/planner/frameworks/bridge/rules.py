"""Rules of Megatron-Bridge 0.3, in addition to Megatron-LM's."""

from __future__ import annotations

from debubble.planner.case import Case
from debubble.planner.frameworks.megatron.rules import RULES as MEGATRON_RULES
from debubble.planner.frameworks.rule import DEGREES, Refusal, Rule


def fp4_weights(case: Case) -> Refusal | None:
    """Check that weights are gathered in 8 bits at least."""
    if case.training.weights != "fp4":
        return None
    return Refusal("weights in fp4", {"weights": "bf16"})


RULES = (
    *MEGATRON_RULES,
    Rule("fp4-weights", "mixed_precision.fp4_param_gather", DEGREES, fp4_weights),
)
