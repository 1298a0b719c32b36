"""Rules of Megatron-LM as of Megatron Core 0.19: arguments, config classes, schedules."""

from __future__ import annotations

from debubble.interchange.layouts import in_loop
from debubble.planner.case import Case
from debubble.planner.frameworks.any_rules import expert_degrees
from debubble.planner.frameworks.rule import DEGREES, ORDER, STATE, Refusal, Rule, nearest_multiple

SCHEDULES = ("1f1b", "interleaved-1f1b", "interleaved-overlap")
"""The schedules that Megatron-LM has."""

OVERLAP = "interleaved-overlap"
OVERLAP_FLAG = "--overlap-moe-expert-parallel-comm"


def schedule(case: Case) -> Refusal | None:
    """Check that a schedule is 1F1B or interleaved; Megatron-LM takes no other."""
    name, d = case.candidate.schedule, case.degrees
    if name in SCHEDULES:
        return None
    where = "" if in_loop(case.placement) else f" and no placement '{case.placement.name}'"
    near = "1f1b" if d.chunks == 1 else "interleaved-1f1b"
    return Refusal(f"no schedule '{name}'{where}; it has {', '.join(SCHEDULES)}",
                   {"schedule": near})  # fmt: skip


def split_sequence(case: Case) -> Refusal | None:
    """Check that tensor-parallel ranks can share a context-parallel rank's tokens."""
    d, length = case.degrees, case.training.sequence
    if not case.training.sequence_parallel or d.tp == 1 or length % (d.cp * d.tp) == 0:
        return None
    text = f"a sequence of {length} tokens is no multiple of cp × tp = {d.cp * d.tp}"
    return Refusal(text, {"sequence": nearest_multiple(length, 2 * d.cp * d.tp)})


def experts_and_tensors(case: Case) -> Refusal | None:
    """Check that layers of experts take tensor parallelism with sequence parallelism alone."""
    tp = case.degrees.tp
    if not case.model.experts or tp == 1 or case.training.sequence_parallel:
        return None
    return Refusal(f"experts with tp {tp} without sequence parallelism",
                   {"sequence_parallel": True})  # fmt: skip


def interleaving(case: Case) -> Refusal | None:
    """Check that microbatches come in groups of as many as ranks.

    The remainder is zero, or at least one microbatch for each rank.
    """
    own, ranks = case.candidate, case.degrees.pp
    if case.degrees.chunks == 1 or own.schedule not in SCHEDULES:
        return None
    count = own.microbatches
    if count >= ranks and count % ranks == 0:
        return None
    text = f"{count} microbatches are no multiple of pp {ranks}, in whose groups chunks take turns"
    return Refusal(text, {"microbatches": nearest_multiple(count, ranks)})


def overlap_experts(case: Case) -> Refusal | None:
    """Check that there is an exchange between experts to overlap."""
    if case.candidate.schedule != OVERLAP or case.degrees.ep > 1:
        return None
    allowed = expert_degrees(case)[1:]
    text = f"'{OVERLAP}' ({OVERLAP_FLAG}) with ep 1 has nothing to overlap"
    if allowed:
        return Refusal(text, {"ep": allowed[0]})
    return Refusal(text, {"schedule": "interleaved-1f1b"})


def overlap_recompute(case: Case) -> Refusal | None:
    """Check that overlapped passes have no full recompute."""
    if case.candidate.schedule != OVERLAP or not case.candidate.recompute.startswith("full"):
        return None
    text = f"'{OVERLAP}' ({OVERLAP_FLAG}) takes no full recompute"
    return Refusal(text, {"recompute": "selective"})


def overlap_mtp(case: Case) -> Refusal | None:
    """Check that overlapped passes have at most one layer of multi-token prediction."""
    if case.candidate.schedule != OVERLAP or case.model.mtp <= 1:
        return None
    text = f"'{OVERLAP}' ({OVERLAP_FLAG}) takes one MTP layer, not {case.model.mtp}"
    return Refusal(text, {"mtp": 1})


def mtp_stage(case: Case) -> Refusal | None:
    """Check that multi-token prediction is in its rank's last chunk, and not on the first rank."""
    at, d = case.candidate.mtp_at, case.degrees
    first = d.pp > 1 and at % d.pp == 0
    if not case.model.mtp or (at // d.pp == d.chunks - 1 and not first):
        return None
    where = "is on the first rank"
    if not first:
        where = f"is not in the last of its rank's {d.chunks} chunks"
    text = f"multi-token prediction on stage {at} {where}"
    return Refusal(text, {"mtp_stage": d.stages - 1})


def overlap_sharding(case: Case) -> Refusal | None:
    """Check that overlapped passes of several chunks do not run on Megatron-FSDP."""
    if case.candidate.schedule != OVERLAP or case.candidate.zero < 2:
        return None
    text = f"'{OVERLAP}' does not run on Megatron-FSDP (ZeRO {case.candidate.zero})"
    return Refusal(text, {"zero": 1})


def small_moments(case: Case) -> Refusal | None:
    """Check that narrow moments are kept by the distributed optimizer alone."""
    if case.training.moment_bytes == 4 or case.candidate.zero >= 1:
        return None
    text = f"moments of {case.training.moment_bytes} bytes without distributed optimizer (ZeRO 0)"
    return Refusal(text, {"zero": 1})


def narrow_weights(case: Case) -> Refusal | None:
    """Check that narrow weights are gathered by the distributed optimizer."""
    kind = case.training.weights
    if kind in (None, "bf16") or case.candidate.zero >= 1:
        return None
    return Refusal(f"weights in {kind} without distributed optimizer (ZeRO 0)", {"zero": 1})


def offload(case: Case) -> Refusal | None:
    """Check that an offloaded optimizer is split, and updates weights in 16 bits."""
    training = case.training
    if not training.offload_optimizer:
        return None
    if case.candidate.zero < 1:
        return Refusal("an offloaded optimizer that is not split (ZeRO 0)", {"zero": 1})
    if not training.narrow_weights:
        return None
    text = f"an offloaded optimizer with weights in {training.weights}"
    return Refusal(text, {"weights": "bf16"})


def graphs(case: Case) -> Refusal | None:
    """Check that CUDA graphs have no full recompute."""
    if not case.training.graph_pools or not case.candidate.recompute.startswith("full"):
        return None
    return Refusal("CUDA graphs with full recompute", {"recompute": "selective"})


RULES = (
    Rule("megatron-schedule", "get_forward_backward_func", ORDER, schedule, of_order=True),
    Rule("sequence-parallel", "--sequence-parallel", DEGREES, split_sequence),
    Rule("expert-sequence-parallel", "--sequence-parallel", DEGREES, experts_and_tensors),
    Rule("interleaving", "--microbatch-group-size-per-virtual-pipeline-stage", ORDER,
         interleaving),
    Rule("overlap-experts", OVERLAP_FLAG, ORDER, overlap_experts),
    Rule("overlap-recompute", OVERLAP_FLAG, STATE, overlap_recompute),
    Rule("overlap-mtp", OVERLAP_FLAG, ORDER, overlap_mtp),
    Rule("mtp-stage", "--pipeline-model-parallel-layout", ORDER, mtp_stage),
    Rule("overlap-sharding", OVERLAP_FLAG, STATE, overlap_sharding),
    Rule("small-moments", "--use-precision-aware-optimizer", STATE, small_moments),
    Rule("narrow-weights", "--fp8-param-gather", STATE, narrow_weights),
    Rule("offload", "--optimizer-cpu-offload", STATE, offload),
    Rule("graphs", "--cuda-graph-impl", STATE, graphs),
)  # fmt: skip
