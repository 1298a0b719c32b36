"""Rules of any plan, mostly on divisibility."""

from __future__ import annotations

from math import gcd

from debubble.core.units import counted
from debubble.planner.case import Case
from debubble.planner.frameworks.rule import (
    DEGREES,
    ORDER,
    Refusal,
    Rule,
    divisors,
    nearest_multiple,
    nearest_of,
)
from debubble.planner.plannable import first_cut, plannable, why_not
from debubble.schedules import registry


def gpus(case: Case) -> Refusal | None:
    """Check that the product of the degrees is the number of GPUs."""
    d = case.degrees
    if d.gpus == case.cluster.gpus:
        return None
    text = f"tp {d.tp} × cp {d.cp} × dp {d.dp} × pp {d.pp} are {d.gpus} GPUs of {case.cluster.gpus}"
    model = d.tp * d.cp * d.pp
    if case.cluster.gpus % model == 0:
        return Refusal(text, {"dp": case.cluster.gpus // model})
    return Refusal(text, {"gpus": d.gpus})


def batch(case: Case) -> Refusal | None:
    """Check that the batch is replicas × microbatches × microbatch size."""
    dp, size, count = case.degrees.dp, case.candidate.microbatch_size, case.candidate.microbatches
    total = case.training.batch
    if dp * size * count == total:
        return None
    text = (
        f"dp {dp} × {counted(count, 'microbatch')} of {size} are {dp * size * count} sequences of "
        f"a batch of {total}"
    )
    if total % dp:
        return Refusal(text, {"batch": dp * size * count})
    if total // dp % size == 0:
        return Refusal(text, {"microbatches": total // dp // size})
    near = nearest_of(size, divisors(total // dp))
    return Refusal(text, {"microbatch_size": near, "microbatches": total // dp // near})


def tensor_degrees(case: Case, whole_groups: bool) -> tuple[int, ...]:
    """Return the tensor-parallel degrees that divide heads, and heads of keys and values."""
    attentions = case.model.attentions
    allowed = divisors(gcd(*(one.heads for one in attentions)))
    return tuple(
        tp
        for tp in allowed
        if all(
            one.kv_heads % tp == 0 or (not whole_groups and tp % one.kv_heads == 0)
            for one in attentions
        )
    )


def heads(case: Case) -> Refusal | None:
    """Check that tensor parallelism splits attention by heads."""
    counts = sorted({one.heads for one in case.model.attentions})
    tp = case.degrees.tp
    if not any(count % tp for count in counts):
        return None
    near = nearest_of(tp, tensor_degrees(case, whole_groups=False))
    return Refusal(f"tp {tp} does not divide {counts[0]} heads", {"tp": near})


def kv_heads(case: Case) -> Refusal | None:
    """Check that heads of keys and values are split, or each is repeated equally often."""
    tp = case.degrees.tp
    for count in sorted({one.kv_heads for one in case.model.attentions}):
        if count % tp and tp % count:
            near = nearest_of(tp, tensor_degrees(case, whole_groups=False))
            text = f"tp {tp} neither divides {count} heads of keys and values nor is a multiple"
            return Refusal(text, {"tp": near})
    return None


def sequence(case: Case) -> Refusal | None:
    """Check that a sequence is cut into two pieces per context-parallel rank."""
    cp, length = case.degrees.cp, case.training.sequence
    if cp == 1 or length % (2 * cp) == 0:
        return None
    text = f"a sequence of {length} tokens is no multiple of 2 × cp = {2 * cp}"
    allowed = tuple(one for one in divisors(length) if one == 1 or length % (2 * one) == 0)
    near = nearest_of(cp, allowed)
    if near == 1:
        return Refusal(text, {"sequence": nearest_multiple(length, 2 * cp)})
    return Refusal(text, {"cp": near})


def experts(case: Case) -> Refusal | None:
    """Check that expert parallelism gives every rank the same number of experts."""
    ep, count = case.degrees.ep, case.model.experts
    if ep == 1 or (count and count % ep == 0):
        return None
    if not count:
        return Refusal(f"ep {ep}, and the model has no experts", {"ep": 1})
    near = nearest_of(ep, expert_degrees(case))
    return Refusal(f"ep {ep} does not divide {count} experts", {"ep": near})


def expert_degrees(case: Case) -> tuple[int, ...]:
    """Return expert-parallel degrees that divide the experts and the ranks of a stage."""
    d = case.degrees
    return divisors(gcd(d.tp * d.cp * d.dp, case.model.experts or 1))


def expert_ranks(case: Case) -> Refusal | None:
    """Check that expert-parallel groups are made of whole ranks of a stage."""
    d = case.degrees
    ranks = d.tp * d.cp * d.dp
    if ranks % d.ep == 0:
        return None
    text = f"ep {d.ep} does not divide tp × cp × dp = {ranks} ranks of a pipeline stage"
    return Refusal(text, {"ep": nearest_of(d.ep, expert_degrees(case))})


def layers(case: Case) -> Refusal | None:
    """Check that stages have all layers, and that no stage is empty."""
    cut, count = case.candidate.layers, len(case.model.layers)
    near = {"layers": first_cut(count, len(cut), case.model.mtp)}
    if sum(cut) != count or min(cut) < 0:
        return Refusal(f"stages of {'/'.join(map(str, cut))} layers are not {count}", near)
    at, last = case.candidate.mtp_at, max(stage for stage, own in enumerate(cut) if own)
    if not last <= at < len(cut):
        text = f"multi-token prediction on stage {at} of {len(cut)} is before layers, or nowhere"
        return Refusal(text, {"mtp_stage": len(cut) - 1})
    return None


def sizes(case: Case) -> Refusal | None:
    """Check that a schedule exists for these ranks, chunks and microbatches."""
    own, d = case.candidate, case.degrees
    entry = registry.find(own.schedule)
    if entry.chunks is not None and d.chunks != entry.chunks:
        text = f"'{entry.name}' has chunks = {entry.chunks}, not {d.chunks}"
        return Refusal(text, {"chunks": entry.chunks})
    values = entry.case(ranks=d.pp, chunks=d.chunks, microbatches=own.microbatches)
    for constraint in entry.constraints:
        if not constraint.holds(values):
            for name in ("microbatches", "chunks", "ranks"):
                near = registry.nearest(entry, values, name)
                if near is not None:
                    key = "pp" if name == "ranks" else name
                    return Refusal(f"'{entry.name}' needs {constraint.text}", {key: near})
    return None


def kind_of_schedule(case: Case) -> Refusal | None:
    """Check that a plan trains one copy of the model step by step on whole microbatches."""
    own = registry.find(case.candidate.schedule)
    reason = why_not(own.name)
    if not reason:
        return None
    near = "1f1b" if case.degrees.chunks == 1 else "interleaved-1f1b"
    assert near in plannable()
    return Refusal(f"'{own.name}' is not for plans: {reason}", {"schedule": near})


def rounds(case: Case) -> Refusal | None:
    """Check that several chunks come with several ranks."""
    d = case.degrees
    if d.pp > 1 or d.chunks == 1:
        return None
    return Refusal(
        f"{d.chunks} chunks on pp 1 are one stage in pieces", {"chunks": 1, "schedule": "1f1b"}
    )


ANY_RULES = (
    Rule("gpus", "world size", DEGREES, gpus),
    Rule("heads", "tensor-parallel size", DEGREES, heads),
    Rule("kv-heads", "tensor-parallel size", DEGREES, kv_heads),
    Rule("sequence", "context-parallel size", DEGREES, sequence),
    Rule("experts", "expert-parallel size", DEGREES, experts),
    Rule("expert-ranks", "expert-parallel size", DEGREES, expert_ranks),
    Rule("batch", "global batch size", ORDER, batch),
    Rule("layers", "cut into stages", ORDER, layers),
    Rule("schedule-kind", "schedule", ORDER, kind_of_schedule),
    Rule("schedule-sizes", "schedule", ORDER, sizes),
    Rule("chunks", "virtual stages", ORDER, rounds),
)
