"""Rules of NeMo Automodel 0.7."""

from __future__ import annotations

from debubble.planner.case import Case
from debubble.planner.frameworks.rule import DEGREES, ORDER, STATE, Refusal, Rule
from debubble.planner.frameworks.torch import rules as shared


def copies(case: Case) -> Refusal | None:
    """Check that FSDP2 shards over something: replicas alone (ZeRO 0) are refused."""
    d = case.degrees
    if case.candidate.zero > 0 or d.dp == 1:
        return None
    text = f"dp_replicate_size {d.dp} has to be less than dp {d.dp} (ZeRO 0)"
    return Refusal(text, {"zero": 2})


def products(case: Case) -> Refusal | None:
    """Check that products in 8 bits have one scale for a tensor; there are none in 4 bits."""
    if case.training.precision not in ("mxfp8", "nvfp4"):
        return None
    return Refusal(f"precision {case.training.precision}", {"precision": "fp8"})


def filled_pipeline(case: Case) -> Refusal | None:
    """Check that there are at least as many microbatches as ranks."""
    count, ranks = case.candidate.microbatches, case.degrees.pp
    if ranks == 1 or count >= ranks:
        return None
    return Refusal(f"{count} microbatches for pp {ranks}", {"microbatches": ranks})


RULES = (
    Rule("placement", "pp_schedule", ORDER, shared.placement, of_order=True),
    Rule("split-kv-heads", "tp_size", DEGREES, shared.kv_heads),
    Rule("split-sequence", "cp_size", DEGREES, shared.split_sequence),
    Rule("replicas", "dp_replicate_size", STATE, copies),
    Rule("modules", "module_fqns_per_model_part", ORDER, shared.filled),
    Rule("tied", "tie_word_embeddings", DEGREES, shared.tied),
    Rule("mtp", "module_fqns_per_model_part", DEGREES, shared.mtp),
    Rule("state", "distributed.mp_policy", DEGREES, shared.wide_state),
    Rule("products", "fp8", DEGREES, products),
    Rule("split-weights", "reshard_after_forward", STATE, shared.gathered),
    Rule("recompute-layers", "activation_checkpointing", STATE, shared.whole_recompute),
    Rule("microbatches", "step_scheduler.local_batch_size", ORDER, filled_pipeline),
)
