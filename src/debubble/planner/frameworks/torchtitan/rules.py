"""Rules of torchtitan 0.3."""

from __future__ import annotations

from debubble.planner.case import Case
from debubble.planner.frameworks.rule import DEGREES, ORDER, STATE, Refusal, Rule
from debubble.planner.frameworks.torch import rules as shared


def sharded_experts(case: Case) -> Refusal | None:
    """Check that expert-parallel groups are ranks that shard weights, not copies (ZeRO 0)."""
    d = case.degrees
    if case.candidate.zero > 0 or (d.cp * d.tp) % d.ep == 0:
        return None
    text = f"ep {d.ep} does not divide cp × tp = {d.cp * d.tp}, and ZeRO 0 shards nothing over dp"
    return Refusal(text, {"zero": 2})


def precision(case: Case) -> Refusal | None:
    """Check that parameters are in bfloat16 or float32."""
    if case.training.precision != "fp16":
        return None
    return Refusal("precision fp16", {"precision": "bf16"})


RULES = (
    Rule("placement", "pipeline_parallel_schedule", ORDER, shared.placement, of_order=True),
    Rule("split-kv-heads", "tensor_parallel_degree", DEGREES, shared.kv_heads),
    Rule("split-sequence", "seq_len", DEGREES, shared.split_sequence),
    Rule("sharded-experts", "expert_parallel_degree", STATE, sharded_experts),
    Rule("modules", "module_fqns_per_model_part", ORDER, shared.filled),
    Rule("tied", "enable_weight_tying", DEGREES, shared.tied),
    Rule("mtp", "mtp_layers", DEGREES, shared.mtp),
    Rule("precision", "mixed_precision_param", DEGREES, precision),
    Rule("recompute-layers", "activation_checkpoint", STATE, shared.whole_recompute),
)
