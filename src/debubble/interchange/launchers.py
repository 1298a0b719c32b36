"""Flags with which torchtitan, NeMo Automodel and Megatron-LM run a schedule."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.kind_relations import SPLIT_KINDS
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.engine.validate import has
from debubble.interchange.layouts import (
    AUTOMODEL,
    TORCHTITAN,
    Layout,
    in_loop,
    in_v,
)
from debubble.schedules import registry

V_SCHEDULE = "ZBVZeroBubble"

DEFAULT_CHUNKS = 2
"""Stages that torchtitan and NeMo Automodel give a rank where they give it several."""

RESHARDED = "# PyTorch gives weights no gradient that are resharded between I and W, silently"
"""Comment on a flag that keeps weights whole."""


def torchtitan(schedule: Schedule, path: str, cut: Sequence[int] | None = None) -> list[str]:
    """Return the flags with which torchtitan runs a compute-only CSV, one per line.

    `path` is that of the CSV as the training job sees it, and `cut` the number of layers of every
    stage; None leaves it to torchtitan, which takes the order from the file and the placement from
    the *name* of a schedule: one stage per rank, stage s on rank s mod p, or the V of two chunks.
    Raises ParameterError for another placement. Flags are those of version 0.3.0.
    """
    lines = [
        f"--parallelism.pipeline_parallel_degree={schedule.ranks}",
        f"--parallelism.pipeline_parallel_schedule={_placing_name(schedule, 'torchtitan')}",
        f"--parallelism.pipeline_parallel_schedule_csv={path}",
        "--parallelism.pipeline_parallel_microbatch_size=1",
        f"--training.local_batch_size={schedule.microbatches}",
        "# local batch size = microbatches × microbatch size; where there is a flag",
        f"# --parallelism.num_pp_microbatches={schedule.microbatches}, it is in place of both",
    ]
    if has(schedule, SPLIT_KINDS):
        lines += [
            "--parallelism.fsdp_reshard_after_forward=never",
            RESHARDED,
            "# (ChunkedLoss does; debubble.torch.titan.pipelining_fn keeps those backwards whole)",
        ]
    if cut is not None:
        lines += [
            "# in the config, since no flag takes lists of lists:",
            f"# parallelism.module_fqns_per_model_part = {json.dumps(TORCHTITAN.of(cut))}",
        ]
    elif schedule.chunks > DEFAULT_CHUNKS:
        lines += [
            "# and --parallelism.pipeline_parallel_layers_per_stage=N, where (layers + 2) / N,",
            f"# rounded up, is {schedule.stages} stages",
        ]
    return lines


def automodel(schedule: Schedule, path: str, cut: Sequence[int] | None = None) -> list[str]:
    """Return the flags with which NeMo Automodel runs a compute-only CSV, one per line.

    Parameters, errors and placement are those of :func:`torchtitan`.
    """
    lines = [
        f"--distributed.pp_size {schedule.ranks}",
        f"--distributed.pipeline.pp_schedule {_placing_name(schedule, 'NeMo Automodel')}",
        f"--distributed.pipeline.pp_schedule_csv {path}",
        "--distributed.pipeline.pp_microbatch_size 1",
        f"--step_scheduler.local_batch_size {schedule.microbatches}",
    ]
    if has(schedule, SPLIT_KINDS):
        lines += ["--distributed.reshard_after_forward false", RESHARDED]
    if cut is not None:
        modules = json.dumps(AUTOMODEL.of(cut))
        lines += [f"# in the YAML: module_fqns_per_model_part: {modules}"]
    elif schedule.chunks > DEFAULT_CHUNKS:
        lines += [
            "# and --distributed.pipeline.layers_per_stage N, where layers / N, rounded up,",
            f"# is {schedule.stages} stages",
        ]
    return lines


def placing_name(placement: Placement) -> str | None:
    """Return the name of a PyTorch schedule with this placement; None when there is none."""
    if in_loop(placement):
        return "PipelineScheduleSingle" if placement.chunks == 1 else "PipelineScheduleMulti"
    return V_SCHEDULE if in_v(placement) else None


def _placing_name(schedule: Schedule, program: str) -> str:
    """Return the name by which a program places stages as the schedule does."""
    placement = schedule.placement
    where = f"{program} cannot run '{schedule.name}':"
    _refuse_carries(schedule, where)
    if placement.copies > 1:
        raise ParameterError(
            f"{where} it has {placement.copies} copies of the model, and {program} gives each "
            "stage to one rank"
        )
    name = placing_name(placement)
    if name is None:
        raise ParameterError(
            f"{where} its placement is '{placement.name}', and {program} places stage s on rank "
            f"s mod {placement.ranks}, or two stages a rank in a V"
        )
    return name


def _refuse_carries(schedule: Schedule, where: str) -> None:
    if schedule.carries:
        source, target = schedule.carries[0]
        raise ParameterError(
            f"{where} stage {source} carries something to stage {target}, and its stages hand on "
            "to the next alone; leave carry out, and return it from every stage in between"
        )


def megatron(
    schedule: Schedule, mode: P2PMode = "overlapped", layout: Layout | None = None
) -> list[str]:
    """Return the arguments with which Megatron-LM runs a schedule, one per line.

    The order of actions counts, not the name. `layout` has the layers of every stage; None is an
    even cut. Megatron-LM implements 1F1B, whose transfers block, interleaved
    1F1B, and interleaved 1F1B with forward and backward overlapped for expert parallelism; others
    run with a line in the training script. ParameterError is raised for those that do not.
    """
    _refuse_carries(schedule, f"Megatron-LM cannot run '{schedule.name}':")
    for name, group in _candidates(schedule):
        if not _same_order(schedule, name, group):
            continue
        lines = _megatron_stages(schedule, layout)
        if name != "1f1b":
            lines.append(f"--microbatch-group-size-per-virtual-pipeline-stage {group}")
            if mode == "blocking":
                lines.append("--no-overlap-p2p-communication")
        if name == "interleaved-overlap":
            lines.append("--overlap-moe-expert-parallel-comm")
        return [*lines, *_megatron_batch(schedule)]
    if schedule.placement.copies > 1 or schedule.slices > 1 or max(schedule.versions) > 1:
        raise ParameterError(
            f"Megatron-LM has no schedule with the order of '{schedule.name}'; it has 1f1b, "
            "interleaved-1f1b and interleaved-overlap, and with debubble.megatron all with one "
            "copy of the model, whole microbatches and one version of the weights"
        )
    return [
        *_megatron_stages(schedule, layout),
        *_megatron_batch(schedule),
        "# Megatron-LM has no such schedule; in the training script, before pretrain():",
        f"# import debubble.megatron as dm; dm.install({json.dumps(schedule.name)})",
    ]


def _megatron_stages(schedule: Schedule, layout: Layout | None) -> list[str]:
    lines = [f"--pipeline-model-parallel-size {schedule.ranks}"]
    if layout is not None:
        # Megatron-LM lists stages in sequence; debubble.megatron places them.
        lines.append(f"--pipeline-model-parallel-layout '{layout}'")
        if layout.mtp:
            lines.append(f"--mtp-num-layers {layout.mtp}")
    elif schedule.chunks > 1:
        lines.append(f"--num-virtual-stages-per-pipeline-rank {schedule.chunks}")
    return lines


def _megatron_batch(schedule: Schedule) -> list[str]:
    return [
        "--micro-batch-size 1",
        f"--global-batch-size {schedule.microbatches}",
        "# global batch size = microbatches × micro batch size × data-parallel size",
    ]


def _candidates(schedule: Schedule) -> Iterator[tuple[str, int | None]]:
    """Yield names and group sizes of Megatron-LM schedules that could have the same order."""
    if schedule.chunks == 1:
        yield "1f1b", None
        return
    groups = [schedule.options.get("group_size"), schedule.ranks, schedule.microbatches]
    for group in dict.fromkeys(int(group) for group in groups if group):
        yield "interleaved-1f1b", group
        yield "interleaved-overlap", group


def _same_order(schedule: Schedule, name: str, group: int | None) -> bool:
    options: dict[str, Any] = {}
    if group is not None:
        options = {"chunks": schedule.chunks, "group_size": group}
    try:
        same = registry.make(
            name, ranks=schedule.ranks, microbatches=schedule.microbatches, **options
        )
        return same == schedule
    except DebubbleError:
        return False
