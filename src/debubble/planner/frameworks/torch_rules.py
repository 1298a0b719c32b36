"""What torchtitan 0.3 and NeMo Automodel 0.7 refuse; both run PyTorch's pipelines on FSDP2."""

from __future__ import annotations

from debubble.interchange.layouts import in_loop, in_v
from debubble.planner.candidate import recomputed_layers
from debubble.planner.frameworks.any_rules import tensor_degrees
from debubble.planner.frameworks.case import (
    DEGREES,
    ORDER,
    STATE,
    Case,
    Problem,
    Rule,
    nearest_multiple,
    nearest_of,
)
from debubble.planner.plannable import first_cut


def schedule(case: Case) -> Problem | None:
    """Any order runs from a CSV, but stages go round, or in a V of two chunks."""
    if in_loop(case.placement) or in_v(case.placement):
        return None
    name = case.candidate.schedule
    text = f"'{name}' places its stages as '{case.placement.name}', not in a loop or a V"
    return Problem(text, {"schedule": "interleaved-1f1b"})


def kv_heads(case: Case) -> Problem | None:
    """Heads of keys and values are split, never repeated."""
    tp = case.degrees.tp
    for count in sorted({one.kv_heads for one in case.model.attentions}):
        if count % tp:
            near = nearest_of(tp, tensor_degrees(case, whole_groups=True))
            return Problem(f"tp {tp} does not divide {count} heads of keys and values",
                           {"tp": near})  # fmt: skip
    return None


def split_sequence(case: Case) -> Problem | None:
    """Tensor-parallel ranks share the tokens of context-parallel pieces."""
    d, training = case.degrees, case.training
    unit = (d.tp if training.sequence_parallel else 1) * (2 * d.cp if d.cp > 1 else 1)
    if training.sequence % unit == 0:
        return None
    text = f"a sequence of {training.sequence} tokens is no multiple of {unit} (tp, twice cp)"
    return Problem(text, {"sequence": nearest_multiple(training.sequence, unit)})


def sharded_experts(case: Case) -> Problem | None:
    """Expert-parallel groups are made of ranks that shard weights, not of copies (ZeRO 0)."""
    d = case.degrees
    if case.candidate.zero > 0 or (d.cp * d.tp) % d.ep == 0:
        return None
    text = f"ep {d.ep} does not divide cp × tp = {d.cp * d.tp}, and ZeRO 0 shards nothing over dp"
    return Problem(text, {"zero": 2})


def copies(case: Case) -> Problem | None:
    """Its FSDP2 has to shard over something: replicas alone (ZeRO 0) are refused."""
    d = case.degrees
    if case.candidate.zero > 0 or d.dp == 1:
        return None
    text = f"dp_replicate_size {d.dp} has to be less than dp {d.dp} (ZeRO 0)"
    return Problem(text, {"zero": 2})


def filled(case: Case) -> Problem | None:
    """A stage is a list of modules, so that it has a layer, the embedding or the head."""
    cut = case.candidate.layers
    empty = [stage for stage, count in enumerate(cut[1:-1], 1) if count == 0]
    if not empty:
        return None
    near = first_cut(len(case.model.layers), len(cut), case.model.mtp)
    if 0 in near[1:-1]:
        return Problem(f"stage {empty[0]} has no modules", {"pp": 1, "chunks": 1,
                       "schedule": "1f1b"})  # fmt: skip
    return Problem(f"stage {empty[0]} has no modules", {"layers": near})


def tied(case: Case) -> Problem | None:
    """One matrix for embedding and head would be on two pipeline ranks."""
    if not case.model.tied or case.degrees.pp == 1:
        return None
    text = f"tied embeddings with pp {case.degrees.pp}"
    return Problem(text, {"pp": 1, "chunks": 1, "schedule": "1f1b"})


def mtp(case: Case) -> Problem | None:
    """Multi-token prediction is neither cut into stages nor over sequences."""
    d = case.degrees
    if not case.model.mtp or d.pp == d.cp == 1:
        return None
    count = case.model.mtp
    layers = "layer" if count == 1 else "layers"
    text = f"{count} {layers} of multi-token prediction with pp {d.pp} and cp {d.cp}"
    return Problem(text, {"mtp": 0})


def precision(case: Case) -> Problem | None:
    """Parameters are computed with in bfloat16 or float32."""
    if case.training.precision != "fp16":
        return None
    return Problem("precision fp16", {"precision": "bf16"})


def whole_recompute(case: Case) -> Problem | None:
    """Every layer is recomputed, or none: their classes take no number of layers."""
    recompute = case.candidate.recompute
    if recomputed_layers(recompute) is None:
        return None
    return Problem(f"recompute {recompute}, of some layers of a stage", {"recompute": "full"})


def filled_pipeline(case: Case) -> Problem | None:
    """There are at least as many microbatches as ranks."""
    count, ranks = case.candidate.microbatches, case.degrees.pp
    if ranks == 1 or count >= ranks:
        return None
    return Problem(f"{count} microbatches for pp {ranks}", {"microbatches": ranks})


T, A = "torchtitan", "automodel"
TORCH_RULES = (
    Rule("placement", {T: "pipeline_parallel_schedule", A: "pp_schedule"}, ORDER, schedule),
    Rule("split-kv-heads", {T: "tensor_parallel_degree", A: "tp_size"}, DEGREES, kv_heads),
    Rule("split-sequence", {T: "seq_len", A: "cp_size"}, DEGREES, split_sequence),
    Rule("sharded-experts", {T: "expert_parallel_degree"}, STATE, sharded_experts),
    Rule("replicas", {A: "dp_replicate_size"}, STATE, copies),
    Rule("modules", {T: "module_fqns_per_model_part", A: "module_fqns_per_model_part"}, ORDER,
         filled),
    Rule("tied", {T: "enable_weight_tying", A: "tie_word_embeddings"}, DEGREES, tied),
    Rule("mtp", {T: "mtp_layers", A: "module_fqns_per_model_part"}, DEGREES, mtp),
    Rule("precision", {T: "mixed_precision_param"}, DEGREES, precision),
    Rule("recompute-layers", {T: "activation_checkpoint", A: "activation_checkpointing"}, STATE,
         whole_recompute),
    Rule("microbatches", {A: "step_scheduler.local_batch_size"}, ORDER, filled_pipeline),
)  # fmt: skip
