"""Flags of torchtitan 0.3.0, with their newer names on its main branch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil

from debubble.interchange.launchers import DEFAULT_CHUNKS, placing_name
from debubble.planner.case import Case
from debubble.planner.frameworks.launch import layers_text
from debubble.planner.frameworks.torch.flags import CSV, csv_command, own_name

RESHARD = {1: "never", 2: "never", 3: "always"}
"""torchtitan's policy of freeing gathered weights after a forward, by level of ZeRO."""


def torchtitan_lines(case: Case) -> list[str]:
    """Return the flags that make torchtitan run a plan that breaks none of its rules."""
    own, d = case.candidate, case.degrees
    values = parallelism(case) | training(case)
    sequence_parallel = values.pop("parallelism.enable_sequence_parallel", True)
    lines = [f"--{name}={value}" for name, value in values.items()]
    if not sequence_parallel:
        lines.append("--parallelism.no_enable_sequence_parallel")
    if d.pp > 1:
        lines += [f"--{name}={value}" for name, value in schedule_values(case).items()]
        lines += [f"# {csv_command(case)}"] * (own_name(case) is None)
        lines += split_lines(own.layers, d.pp, d.chunks)
        lines.append("--training.disable_cuda_graphs")
    lines += [f"--{name}" for name in compiling(case)]
    lines += _notes(case)
    # A subcommand: last, since flags after it would be its own.
    return [*lines, f"activation_checkpoint:{own.recompute}"]


def parallelism(case: Case) -> dict[str, int | str]:
    """Return the values of torchtitan's section on parallelism, but for the schedule."""
    own, d = case.candidate, case.degrees
    copies = own.zero == 0
    values: dict[str, int | str] = {
        "parallelism.data_parallel_replicate_degree": d.dp if copies else 1,
        "parallelism.data_parallel_shard_degree": 1 if copies else d.dp,
        "parallelism.tensor_parallel_degree": d.tp,
        "parallelism.context_parallel_degree": d.cp,
        "parallelism.expert_parallel_degree": d.ep,
    }
    if not copies:
        values["parallelism.fsdp_reshard_after_forward"] = RESHARD[own.zero]
    if d.pp > 1:
        values |= {
            "parallelism.pipeline_parallel_degree": d.pp,
            "parallelism.pipeline_parallel_microbatch_size": own.microbatch_size,
        }
    if d.tp > 1 and not case.training.sequence_parallel:
        values["parallelism.enable_sequence_parallel"] = False
    return values


def compiling(case: Case) -> dict[str, bool]:
    """Return the values of the section on compiling that are on.

    Compiling fuses elementwise operations, as casts to 8 bits need it, and cuts collectives into
    pieces.
    """
    fused = case.training.fused or case.training.precision in ("fp8", "mxfp8")
    values = {"enable": fused, "enable_async_tensor_parallel": fused and case.hides_tensors}
    return {f"compile.{name}": True for name, on in values.items() if on}


def training(case: Case) -> dict[str, int | str]:
    """Return the values of torchtitan's section on training: sequence and batches."""
    own, training = case.candidate, case.training
    pieces = own.microbatches if case.degrees.pp > 1 else 1
    return {
        "training.seq_len": training.sequence,
        "training.global_batch_size": training.batch,
        "training.local_batch_size": own.microbatch_size * pieces,
    }


def schedule_values(case: Case) -> dict[str, int | str]:
    """Return the values of the schedule: its name, or a CSV and a name with its placement."""
    name = own_name(case)
    if name is not None:
        return {"parallelism.pipeline_parallel_schedule": name}
    return {
        "parallelism.pipeline_parallel_schedule": str(placing_name(case.placement)),
        "parallelism.pipeline_parallel_schedule_csv": CSV,
    }


def split_lines(cut: Sequence[int], ranks: int, chunks: int) -> list[str]:
    """Return the flags that cut layers into stages, or the list of modules for the config."""
    weights = even_weights(cut)
    if weights is None:
        return [
            "# no flag takes the modules of every stage: -o plan.py writes a configuration with",
            f"# them, {layers_text(cut)} layers",
        ]
    first, last = weights
    lines = [
        f"--parallelism.pipeline_parallel_first_stage_less_layers={first}",
        f"--parallelism.pipeline_parallel_last_stage_less_layers={last}",
    ]
    if chunks > DEFAULT_CHUNKS:
        each = ceil((sum(cut) + first + last) / (ranks * chunks))
        lines.append(f"--parallelism.pipeline_parallel_layers_per_stage={each}")
    return lines


def even_weights(cut: Sequence[int]) -> tuple[int, int] | None:
    """Return the layers that embedding and head count for where torchtitan's own cut is this one.

    It spreads layers and weights evenly, the remainder to the first stages, and takes the
    weights off the first and last. Its default is one layer each.
    """
    count, stages = sum(cut), len(cut)
    if stages == 1:
        return None
    some = range(max(cut) + 1)
    for first, last in ((1, 1), *product(some, some)):
        each, extra = divmod(count + first + last, stages)
        if each < max(first, last, 1):
            continue
        own = [each + (stage < extra) for stage in range(stages)]
        own[0] -= first
        own[-1] -= last
        # Stages are counted from a number of layers: it has to lead back to this many.
        back = ceil((count + first + last) / ceil((count + first + last) / stages))
        if own == list(cut) and back == stages:
            return first, last
    return None


def _notes(case: Case) -> list[str]:
    """Return comments on differences from the plan, and on newer names of flags."""
    own, d, training = case.candidate, case.degrees, case.training
    notes = []
    if own.zero == 1:
        notes.append("# FSDP2 shards gradients, too: it has ZeRO 2 and 3, not 1")
    if training.precision in ("fp8", "mxfp8"):
        module = {"fp8": "float8", "mxfp8": "mx"}[training.precision]
        notes += [
            "# no flag takes converters of the model: -o plan.py writes a configuration with that",
            f"# of torchtitan.components.quantization.{module} for linear layers",
        ]
    if own.schedule in ("1f1b-overlap", "dualpipe-v", "interleaved-overlap"):
        notes.append("# pairs of forward and backward run one after the other")
    tokens = own.microbatch_size * training.sequence
    newer = {
        "training.num_tokens_per_microbatch_per_dp_rank": tokens,
        "training.num_tokens_per_train_step": training.tokens,
        "training.max_context_length": training.sequence,
    }
    if d.pp > 1:
        newer["parallelism.num_pp_microbatches"] = own.microbatches
    older = ["local_batch_size", "global_batch_size", "seq_len"]
    older += ["pipeline_parallel_microbatch_size"] * (d.pp > 1)
    return [
        *notes,
        f"# since 0.3.0, in place of {', '.join(older[:3])}{' and' * (d.pp > 1)}",
        *[f"# {one}" for one in older[3:]],
        *[f"#   --{name}={value}" for name, value in newer.items()],
    ]
