"""Checks of what torchtitan 0.3 and NeMo Automodel 0.7 both refuse."""

from __future__ import annotations

from debubble.interchange.layouts import in_loop, in_v
from debubble.planner.candidate import recomputed_layers
from debubble.planner.frameworks.any_rules import tensor_degrees
from debubble.planner.frameworks.case import (
    Case,
    Problem,
    nearest_multiple,
    nearest_of,
)
from debubble.planner.plannable import first_cut


def placement(case: Case) -> Problem | None:
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


def whole_recompute(case: Case) -> Problem | None:
    """Every layer is recomputed, or none: their classes take no number of layers."""
    recompute = case.candidate.recompute
    if recomputed_layers(recompute) is None:
        return None
    return Problem(f"recompute {recompute}, of some layers of a stage", {"recompute": "full"})
