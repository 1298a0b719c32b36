"""Settings that make other programs run a schedule: torchtitan and Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode
from debubble.schedules import registry

V_SCHEDULE = "ZBVZeroBubble"


def torchtitan(schedule: Schedule, path: str) -> list[str]:
    """The settings with which torchtitan runs a compute-only CSV, one per line.

    Parameters
    ----------
    schedule
        The schedule in the CSV.
    path
        The CSV as the training job sees it.

    Raises
    ------
    ParameterError
        When torchtitan cannot place the stages like this; the message says why.

    Notes
    -----
    torchtitan takes the order from the file and the placement from the *name* of a schedule: one
    stage per rank, stage s on rank s mod p, or the V of two chunks.
    """
    ranks, stages = schedule.ranks, schedule.stages
    lines = [
        "[parallelism]",
        f"pipeline_parallel_degree = {ranks}",
        f'pipeline_parallel_schedule = "{_placing_name(schedule)}"',
        f'pipeline_parallel_schedule_csv = "{path}"',
        "pipeline_parallel_microbatch_size = 1",
    ]
    if stages > ranks:
        lines.append(f"# set pipeline_parallel_layers_per_stage so that there are {stages} stages")
    lines += ["", "[training]"]
    lines.append(f"local_batch_size = {schedule.microbatches}  # microbatches × microbatch size")
    return lines


def _placing_name(schedule: Schedule) -> str:
    """The name by which torchtitan places stages as the schedule has them."""
    placement = schedule.placement
    where = f"torchtitan cannot run '{schedule.name}':"
    if placement.copies > 1:
        raise ParameterError(
            f"{where} it has {placement.copies} copies of the model, and torchtitan gives each "
            "stage to one rank"
        )
    ranks, chunks = placement.ranks, placement.chunks
    if placement.stages == ranks * chunks:
        if placement.table == Placement.loop(ranks, chunks).table:
            return "PipelineScheduleSingle" if chunks == 1 else "PipelineScheduleMulti"
        if chunks == 2 and placement.table == Placement.v(ranks).table:
            return V_SCHEDULE
    raise ParameterError(
        f"{where} its placement is '{placement.name}', and torchtitan places stage s on rank "
        f"s mod {ranks}, or two stages a rank in a V"
    )


def megatron(schedule: Schedule, mode: P2PMode = "overlapped") -> list[str]:
    """The arguments with which Megatron-LM runs a schedule, one per line.

    Parameters
    ----------
    schedule
        Any schedule; what counts is its order, not its name.
    mode
        The p2p mode: overlapped, or blocking.

    Raises
    ------
    ParameterError
        When Megatron-LM has no such schedule.

    Notes
    -----
    Megatron-LM implements 1F1B, whose transfers block, interleaved 1F1B, and interleaved 1F1B with
    forward and backward overlapped for expert parallelism.
    """
    for name, group in _candidates(schedule):
        if not _same_order(schedule, name, group):
            continue
        lines = [f"--pipeline-model-parallel-size {schedule.ranks}"]
        if name != "1f1b":
            lines += [
                f"--num-virtual-stages-per-pipeline-rank {schedule.chunks}",
                f"--microbatch-group-size-per-virtual-pipeline-stage {group}",
            ]
            if mode == "blocking":
                lines.append("--no-overlap-p2p-communication")
        if name == "interleaved-overlap":
            lines.append("--overlap-moe-expert-parallel-comm")
        return [
            *lines,
            "--micro-batch-size 1",
            f"--global-batch-size {schedule.microbatches}",
            "# global batch size = microbatches × micro batch size × data-parallel size",
        ]
    raise ParameterError(
        f"Megatron-LM has no schedule with the order of '{schedule.name}'; it has 1f1b, "
        "interleaved-1f1b and interleaved-overlap"
    )


def _candidates(schedule: Schedule) -> Iterator[tuple[str, int | None]]:
    """Megatron-LM schedules that an order could be: names and group sizes."""
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
