"""Rules that torchtitan 0.3 and NeMo Automodel 0.7 share."""

from __future__ import annotations

from debubble.interchange.layouts import in_loop, in_v
from debubble.planner.candidate import recomputed_layers
from debubble.planner.case import Case
from debubble.planner.frameworks.any_rules import tensor_degrees
from debubble.planner.frameworks.rule import Refusal, nearest_multiple, nearest_of
from debubble.planner.plannable import first_cut, splits_backwards


def placement(case: Case) -> Refusal | None:
    """Check that stages are in a loop, or a V of two chunks; any schedule runs from a CSV."""
    if in_loop(case.placement) or in_v(case.placement):
        return None
    name = case.candidate.schedule
    text = f"'{name}' places its stages as '{case.placement.name}', not in a loop or a V"
    return Refusal(text, {"schedule": "interleaved-1f1b"})


def kv_heads(case: Case) -> Refusal | None:
    """Check that heads of keys and values are split, never repeated."""
    tp = case.degrees.tp
    for count in sorted({one.kv_heads for one in case.model.attentions}):
        if count % tp:
            near = nearest_of(tp, tensor_degrees(case, whole_groups=True))
            return Refusal(f"tp {tp} does not divide {count} heads of keys and values",
                           {"tp": near})  # fmt: skip
    return None


def split_sequence(case: Case) -> Refusal | None:
    """Check that tensor-parallel ranks share the tokens of context-parallel pieces."""
    d, training = case.degrees, case.training
    unit = (d.tp if training.sequence_parallel else 1) * (2 * d.cp if d.cp > 1 else 1)
    if training.sequence % unit == 0:
        return None
    text = f"a sequence of {training.sequence} tokens is no multiple of {unit} (tp, twice cp)"
    return Refusal(text, {"sequence": nearest_multiple(training.sequence, unit)})


def filled(case: Case) -> Refusal | None:
    """Check that no stage is without a module: a layer, the embedding or the head."""
    cut = case.candidate.layers
    empty = [stage for stage, count in enumerate(cut[1:-1], 1) if count == 0]
    if not empty:
        return None
    near = first_cut(len(case.model.layers), len(cut), case.model.mtp)
    if 0 in near[1:-1]:
        return Refusal(f"stage {empty[0]} has no modules", {"pp": 1, "chunks": 1,
                       "schedule": "1f1b"})  # fmt: skip
    return Refusal(f"stage {empty[0]} has no modules", {"layers": near})


def tied(case: Case) -> Refusal | None:
    """Check that one matrix for embedding and head is on one pipeline rank."""
    if not case.model.tied or case.degrees.pp == 1:
        return None
    text = f"tied embeddings with pp {case.degrees.pp}"
    return Refusal(text, {"pp": 1, "chunks": 1, "schedule": "1f1b"})


def mtp(case: Case) -> Refusal | None:
    """Check that multi-token prediction is cut neither into stages nor over sequences."""
    d = case.degrees
    if not case.model.mtp or d.pp == d.cp == 1:
        return None
    count = case.model.mtp
    layers = "layer" if count == 1 else "layers"
    text = f"{count} {layers} of multi-token prediction with pp {d.pp} and cp {d.cp}"
    return Refusal(text, {"mtp": 0})


WIDE_STATE = {
    "gradient_bytes": (4, "gradients in bf16"),
    "moment_bytes": (4, "moments in less than fp32"),
    "offload_optimizer": (False, "an optimizer that alone is offloaded"),
    "graph_pools": (0.0, "CUDA graphs"),
}
"""Fields of a training with the only value that FSDP2 has, and any other one in words."""


def wide_state(case: Case) -> Refusal | None:
    """Check that gradients and moments are in fp32, as FSDP2 keeps them, and all on the GPU."""
    for name, (only, other) in WIDE_STATE.items():
        if getattr(case.training, name) != only:
            return Refusal(other, {name: only})
    return None


def whole_recompute(case: Case) -> Refusal | None:
    """Check that all layers are recomputed, or none: classes take no number of layers."""
    recompute = case.candidate.recompute
    if recomputed_layers(recompute) is None:
        return None
    return Refusal(f"recompute {recompute}, of some layers of a stage", {"recompute": "full"})


def gathered(case: Case) -> Refusal | None:
    """Check that a W finds the weights of its forward: PyTorch gives resharded ones no gradient."""
    own = case.candidate
    if case.degrees.pp == 1 or own.zero < 3 or not splits_backwards(own.schedule):
        return None
    text = f"ZeRO 3 with the split backwards of '{own.schedule}', whose weights get no gradient"
    return Refusal(text, {"zero": 2})
