"""Traces of PyTorch's profiler (Kineto), one file a rank.

The multi-stage runtime of torch.distributed.pipelining names its ranges like actions, ``PP:0F3``.
GPipe names them ``Forward 3`` and ``Backward 3``. Its 1F1B has no named ranges, and is detected
from autograd's events. On a GPU an action lasts from its first to its last kernel; on gloo it
starts when its input is complete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.core.kinds import FORWARD_KINDS, KINDS
from debubble.core.units import counted
from debubble.diagnosis.observed import ALONE, PAUSES, Location, Observed
from debubble.diagnosis.readers.collected import (
    MAX_RANKS,
    MICROSECONDS,
    NAN,
    NANOSECONDS,
    Collected,
)
from debubble.diagnosis.readers.kineto_file import UNKNOWN, KinetoFile, read_file, recognizes
from debubble.diagnosis.readers.kineto_places import Place, pipeline_of, places
from debubble.diagnosis.readers.kineto_rank import RankTrace, Step, trace_of
from debubble.diagnosis.readers.kineto_unnamed import (
    add_ranges,
    add_staged_ranges,
    backwards_of_profiled_step,
    unnamed_actions,
)
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.refusals import TABLE, seen_in
from debubble.diagnosis.readers.stream import LeftOut
from debubble.diagnosis.readers.unnamed_order import UnnamedAction, assumed_order

__all__ = ["MARKS", "NAME", "read", "recognizes"]

NAME = "kineto"
MARKS = (b'"traceEvents"',)
ALLOCATES = PAUSES.index("memory")

BRIEF = 0.03
"""Minimum length of a pause by an allocation or release, as a share of a usual action."""

MAX_MATCHED_STEPS = 4_000
"""Maximum number of steps to match by time between ranks with different numbers of steps."""

NO_RANK = "files that do not say their rank"
NO_ACTIONS = "files in which nothing tells of a pipeline"
REPEATED = "files of a rank and time of which there is another file"
NO_DEVICE = "files of an NCCL run without kernels: ranges of the host are no durations"


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the files of all ranks; several files of a rank are several windows of one run.

    Raise FormatError when no file has both a rank and a pipeline.
    """
    traces: dict[int, list[RankTrace]] = defaultdict(list)
    unnamed: list[tuple[KinetoFile, list[UnnamedAction]]] = []
    for _, content in read_each(_read_file, files, left_out):
        if isinstance(content, RankTrace):
            traces[content.file.rank].append(content)
        elif content is not None:
            unnamed.append(content)
    assumed = "" if traces else _name_unnamed(unnamed)
    for file, _ in unnamed:
        if (trace := _kept(file, left_out)) is not None:
            traces[trace.file.rank].append(trace)
    if not traces:
        raise FormatError(_nothing(where, files, left_out))
    traces = {rank: _apart(each, left_out) for rank, each in traces.items()}
    stages = {rank: frozenset().union(*(t.stages for t in each)) for rank, each in traces.items()}
    groups = {rank: each[0].file.groups for rank, each in traces.items()}
    found = places(stages, groups, left_out)
    collected = Collected(where, left_out)
    origin = min(_begin(trace) for each in traces.values() for trace in each)
    numbers = _numbered({rank: traces[rank] for rank in found})
    pair = 0
    for rank, place in found.items():
        for trace, steps in zip(traces[rank], numbers[rank], strict=True):
            base = trace.file.base - origin
            for number, step in zip(steps, trace.steps, strict=True):
                pair = _add(collected, number, place, step, base, pair)
            computed = [one.end - one.start for step in trace.steps for one in step[0]]
            brief = BRIEF * float(np.median(computed))
            for start, end, cause in trace.file.pauses.sorted().T.tolist():
                if cause == ALLOCATES and end - start < brief:
                    continue
                begin, last = (base + start) * NANOSECONDS, (base + end) * NANOSECONDS
                collected.each("pauses", [(place.copy, place.rank, cause, begin, last)])
    return _observed(collected, traces, found, assumed)


def _read_file(
    path: Path, left_out: LeftOut
) -> RankTrace | tuple[KinetoFile, list[UnnamedAction]] | None:
    """Read a file: its trace, or events and forwards and backwards if no range is an action."""
    file = read_file(path, left_out)
    moves = len(file.sends.values) or len(file.receives.values)
    if not file.numbers and not moves:
        left_out[NO_ACTIONS] += 1
    if file.rank < 0:
        left_out[NO_RANK] += 1
    elif file.numbers:
        return _kept(file, left_out)
    elif moves:
        return file, unnamed_actions(path, file)
    return None


def _name_unnamed(unnamed: Sequence[tuple[KinetoFile, list[UnnamedAction]]]) -> str:
    """Add ranges to files without named actions; return the assumed schedule, empty for none."""
    present = sorted({file.rank for file, _ in unnamed})
    # Ranks may be missing, so the size of the job counts, not the ranks with files.
    world = max((file.world for file, _ in unnamed), default=0)
    every = range(world) if present and present[-1] < world else present
    pipelines = {file.rank: pipeline_of(file.rank, file.groups) or every for file, _ in unnamed}
    ranks = max(map(len, pipelines.values()), default=0)
    at = {rank: pipeline.index(rank) for rank, pipeline in pipelines.items()}
    only_last = ranks > 1 and set(at.values()) == {ranks - 1}
    calls = max(backwards_of_profiled_step(*each) for each in unnamed) if only_last else 0
    order = assumed_order(((at[file.rank], runs) for file, runs in unnamed), ranks, calls)
    if order is None:
        return ""
    for file, runs in unnamed:
        if order.chunks == 1:
            add_ranges(file, runs, order.microbatches)
        else:
            add_staged_ranges(file, runs, order, at[file.rank], ranks)
    return order.name


def _kept(file: KinetoFile, left_out: LeftOut) -> RankTrace | None:
    """Return the trace of a file, or None without a pipeline."""
    trace = trace_of(file, left_out)
    if not any(computed for computed, _ in trace.steps):
        left_out[NO_ACTIONS] += 1
    elif "nccl" in file.backend and not trace.on_device and not len(file.arrivals.values):
        left_out[NO_DEVICE] += 1
    else:
        file.forget()
        return trace
    return None


def _observed(
    collected: Collected, traces: dict[int, list[RankTrace]], found: dict[int, Place], assumed: str
) -> Observed:
    every = [trace for rank in found for trace in traces[rank]]
    last = max(trace.last_stage for trace in every)
    chunks = max(len(trace.stages) for trace in every)
    group = max(len(pipeline_of(rank, traces[rank][0].file.groups)) for rank in found)
    ranks = max(1 + max(place.rank for place in found.values()), -(-(last + 1) // chunks), group)
    if last == UNKNOWN and not group:
        ranks = max(ranks, min(every[0].file.world, MAX_RANKS))
    copies = 1 + max(place.copy for place in found.values())
    files = {rank: traces[rank][0].file for rank in found}
    known = any(file.host for file in files.values())
    locations = {
        (place.copy, place.rank): Location(rank, files[rank].host, str(files[rank].path))
        for rank, place in found.items()
    }
    named = {trace.file.named_by for trace in every}
    numbered = all(trace.numbers for trace in every)
    stage = "order of ranks" + (" in the pipeline's group" if group else "; no group is called pp")
    if not any(part.stage == UNKNOWN for part in every[0].steps[0][0][0].parts):
        stage = "names of ranges"
    return collected.observed(
        NAME,
        {
            "rank": " and ".join(sorted(named)),
            "stage": stage,
            "microbatch": "order of backwards, assumed" if assumed else "names of ranges",
            "step": "the profiler's steps" if numbered else "where an action comes again",
            "clock": "of every host, since 1970" if known else "of every rank's host, since 1970",
            "times": (
                "kernels, by where they were launched" if every[0].on_device
                else "the host's ranges, without the wait for input"
            ),
        },
        ranks=ranks, copies=copies, unit=MICROSECONDS, locations=locations,
        clocks="hosts", backend=_backend(every[0]), device="gpu" if every[0].on_device else "cpu",
        waits_inside=any(trace.waits_inside for trace in every), order_assumed=assumed,
    )  # fmt: skip


def _backend(trace: RankTrace) -> str:
    """Return the backend of a trace's device: that of ``cpu:gloo,cuda:nccl`` may be either."""
    parts = [part.rpartition(":") for part in trace.file.backend.split(",")]
    fit = [name for device, _, name in parts if (device == "cpu") != trace.on_device]
    return (fit or [parts[0][2]])[0]


def _add(
    collected: Collected, number: int, place: Place, step: Step, base: int, pair: int
) -> int:  # fmt: skip
    """Add a step of a rank, and return the number of the latest pair."""
    computed, moved = step

    def seconds(time: int) -> float:
        return NAN if time == UNKNOWN else (base + time) * NANOSECONDS

    rows: dict[Literal["actions", "sends", "receives"], list[tuple[float, ...]]] = {
        "actions": [], "sends": [], "receives": [],
    }  # fmt: skip
    for one in computed:
        together = len(one.parts) > 1
        pair += together
        for part, (start, end) in zip(one.parts, one.spans, strict=True):
            rows["actions"].append((
                number, *place, part.kind, place.rank if part.stage == UNKNOWN else part.stage,
                part.microbatch, part.slice, pair if together else ALONE, seconds(start),
                seconds(end), seconds(one.issued), seconds(one.waited),
                NAN if one.busy == UNKNOWN else one.busy * NANOSECONDS,
            ))  # fmt: skip
    for each in moved:
        part, spec = each.end, KINDS[each.end.kind]
        stage = place.rank if part.stage == UNKNOWN else part.stage
        # The stage of a message is the one that produced it.
        carried = (
            number, place.copy, part.kind in FORWARD_KINDS, stage + spec.away * spec.receives,
            part.microbatch, part.slice, place.rank,
        )  # fmt: skip
        if spec.sends:
            rows["sends"].append((*carried, seconds(each.sent)))
        else:
            times = each.posted, each.waited, each.arrived
            rows["receives"].append((*carried, *map(seconds, times)))
    for name, some in rows.items():
        collected.each(name, some)
    return pair


def _numbered(traces: dict[int, list[RankTrace]]) -> dict[int, list[list[int]]]:
    """Return the number of every step of every file: the profiler's, else the index of the step.

    If ranks have different numbers of steps, steps are matched by their overlap in time.
    """
    flat = {rank: [n for trace in each for n in trace.numbers] for rank, each in traces.items()}
    counts = {rank: sum(len(trace.steps) for trace in each) for rank, each in traces.items()}
    if all(len(set(flat[rank])) == counts[rank] for rank in flat):
        return {rank: [trace.numbers for trace in each] for rank, each in traces.items()}
    longest = max(counts, key=lambda rank: counts[rank])
    spans = {
        rank: np.array([_span(trace, step) for trace in each for step in trace.steps])
        for rank, each in traces.items()
    }
    found = {}
    for rank, each in traces.items():
        numbers = list(range(counts[rank]))
        if counts[rank] < counts[longest] <= MAX_MATCHED_STEPS:
            numbers = _matched_steps(spans[rank], spans[longest])
        rows = iter(numbers)
        found[rank] = [[next(rows) for _ in trace.steps] for trace in each]
    return found


def _matched_steps(mine: NDArray[np.float64], others: NDArray[np.float64]) -> list[int]:
    """Return, for each step, the step of another rank with the largest overlap in time."""
    end = np.minimum.outer(mine[:, 1], others[:, 1])
    shared = end - np.maximum.outer(mine[:, 0], others[:, 0])
    # Steps follow each other, even if one is cut off.
    order = np.arange(len(mine))
    numbers: list[int] = (np.maximum.accumulate(shared.argmax(axis=1) - order) + order).tolist()
    return numbers


def _apart(traces: Sequence[RankTrace], left_out: LeftOut) -> list[RankTrace]:
    """Return the windows of a rank by time, without those that repeat a part of another."""
    found: list[RankTrace] = []
    end = -1
    for trace in sorted(traces, key=_begin):
        if _begin(trace) < end:
            left_out[REPEATED] += 1
            continue
        found.append(trace)
        end = trace.file.base + trace.steps[-1][0][-1].end
    return found


def _begin(trace: RankTrace) -> int:
    return trace.file.base + trace.steps[0][0][0].start


def _span(trace: RankTrace, step: Step) -> tuple[float, float]:
    base, computed = trace.file.base, step[0]
    return float(base + computed[0].start), float(base + computed[-1].end)


def _nothing(where: str, files: Sequence[Path], left_out: LeftOut) -> str:
    if left_out[NO_DEVICE]:
        return (
            f"{where}: an NCCL run without kernels, in which the host's ranges are no durations; "
            "profile with ProfilerActivity.CUDA"
        )
    of = counted(len(files), "file")
    nameless = left_out[NO_RANK]
    rename = (
        "say their rank, in distributedInfo or as rank0 in the name; rename them rank0.json, "
        "rank1.json and so on"
    )
    if nameless == len(files) and left_out[NO_ACTIONS] < nameless:
        return f"{where}: none of {of} {rename}"
    rank = f"; {nameless} of {of} do not {rename}" if nameless else ""
    return (
        f"{where}: no pipeline in {of}: no range is called like an action (PP:0F3, Forward 3), and "
        "autograd's events fit neither 1F1B nor Megatron's interleaved 1F1B; seen: "
        f"{seen_in(files[0])}{rank}; profile steps of torch.distributed.pipelining on all ranks, "
        f"or name Megatron's with debubble.megatron.name_steps(); {TABLE}"
    )
