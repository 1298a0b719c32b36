"""Rules of Megatron-DeepSpeed on DeepSpeed 0.19."""

from __future__ import annotations

from debubble.core.units import counted
from debubble.planner.case import Case
from debubble.planner.frameworks.megatron.rules import split_sequence
from debubble.planner.frameworks.rule import DEGREES, ORDER, STATE, Refusal, Rule, divisors
from debubble.planner.frameworks.rule import nearest_of as nearest
from debubble.planner.frameworks.torch.rules import whole_recompute, wide_state
from debubble.planner.model.mixers import Attention


def schedule(case: Case) -> Refusal | None:
    """Check that a schedule is 1F1B of one stage per rank."""
    name = case.candidate.schedule
    if name == "1f1b":
        return None
    return Refusal(f"no schedule '{name}'; it has 1f1b", {"schedule": "1f1b", "chunks": 1})


def ring(case: Case) -> Refusal | None:
    """Check that no sequence is cut over context-parallel ranks."""
    cp = case.degrees.cp
    if cp == 1:
        return None
    text = f"no context parallelism (cp {cp}); its sequence parallelism is Ulysses'"
    return Refusal(text, {"cp": 1, "dp": case.degrees.dp * cp})


def sharded_pipeline(case: Case) -> Refusal | None:
    """Check that replicas of a pipeline split optimizer states at most."""
    zero, pp = case.candidate.zero, case.degrees.pp
    if pp == 1 or zero < 2:
        return None
    return Refusal(f"ZeRO {zero} with pp {pp}", {"zero": 1})


def even_stages(case: Case) -> Refusal | None:
    """Check that stages have the same number of layers."""
    cut = case.candidate.layers
    if len(set(cut)) == 1:
        return None
    count = len(case.model.layers)
    text = f"stages of {'/'.join(map(str, cut))} layers; it cuts them evenly"
    if count % len(cut) == 0:
        return Refusal(text, {"layers": (count // len(cut),) * len(cut)})
    near = nearest(case.degrees.pp, divisors(count))
    return Refusal(text, {"pp": near, "layers": (count // near,) * near})


def model_parts(case: Case) -> Refusal | None:
    """Check that layers are attention and a dense part, which all have."""
    model = case.model
    if model.mtp:
        return Refusal(f"{counted(model.mtp, 'layer')} of multi-token prediction", {"mtp": 0})
    plain = all(isinstance(one, Attention) and not one.window for one in model.attentions)
    if plain and not model.experts:
        return None
    what = "experts" if model.experts else "layers other than full attention"
    return Refusal(f"{what} in the model", {"framework": "megatron"})


def precision(case: Case) -> Refusal | None:
    """Check that products are in 16 bits."""
    if case.training.precision in ("bf16", "fp16"):
        return None
    return Refusal(f"precision {case.training.precision}", {"precision": "bf16"})


def core_recompute(case: Case) -> Refusal | None:
    """Check that layers are not recomputed in part: core attention alone saves nothing."""
    if case.candidate.recompute != "selective":
        return None
    return Refusal("recompute selective, of core attention alone", {"recompute": "full"})


RULES = (
    Rule("deepspeed-schedule", "PipelineEngine", ORDER, schedule, of_order=True),
    Rule("sequence-parallel", "--sequence-parallel", DEGREES, split_sequence),
    Rule("ulysses", "--ds-sequence-parallel-size", DEGREES, ring),
    Rule("zero-pipeline", "zero_optimization.stage", STATE, sharded_pipeline),
    Rule("even-stages", "partition_method", ORDER, even_stages),
    Rule("deepspeed-model", "--num-experts", DEGREES, model_parts),
    Rule("deepspeed-precision", "fp16, bf16", DEGREES, precision),
    Rule("state", "data_types", DEGREES, wide_state),
    Rule("core-recompute", "--recompute-granularity", STATE, core_recompute),
    Rule("recompute-layers", "--recompute-method", STATE, whole_recompute),
)
