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
    """Check that parameters are in bfloat16 or float32, and products in 16 or 8 bits."""
    near = {"fp16": "bf16", "nvfp4": "mxfp8"}.get(case.training.precision)
    if near is None:
        return None
    return Refusal(f"precision {case.training.precision}", {"precision": near})


def wide_gather(case: Case) -> Refusal | None:
    """Check that weights are stored and gathered in 16 bits, as since version 0.3."""
    if not case.training.narrow_weights:
        return None
    return Refusal(f"weights in {case.training.weights}", {"weights": "bf16"})


RULES = (
    Rule("placement", "pipeline_parallel_schedule", ORDER, shared.placement, of_order=True),
    Rule("split-kv-heads", "tensor_parallel_degree", DEGREES, shared.kv_heads),
    Rule("split-sequence", "seq_len", DEGREES, shared.split_sequence),
    Rule("sharded-experts", "expert_parallel_degree", STATE, sharded_experts),
    Rule("modules", "module_fqns_per_model_part", ORDER, shared.filled),
    Rule("tied", "enable_weight_tying", DEGREES, shared.tied),
    Rule("mtp", "mtp_layers", DEGREES, shared.mtp),
    Rule("precision", "mixed_precision_param", DEGREES, precision),
    Rule("wide-gather", "Float8LinearConverter", DEGREES, wide_gather),
    Rule("state", "training.mixed_precision_reduce", DEGREES, shared.wide_state),
    Rule("split-weights", "fsdp_reshard_after_forward", STATE, shared.gathered),
    Rule("recompute-layers", "activation_checkpoint", STATE, shared.whole_recompute),
)
