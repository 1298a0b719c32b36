"""Timelines as Trace Event JSON, which ui.perfetto.dev and chrome://tracing open.

One process per rank with threads of complete events for compute, transfers and copies of
activations, arrows for results that go to another rank, and a counter track for activation memory.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    COPY_KINDS,
    SHARDING_KINDS,
    WHOLE_STAGE_KINDS,
    Action,
    Kind,
    begins_group,
    computes,
    kinds_of,
    microbatches_of,
    stages_of,
)
from debubble.core.errors import FormatError
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline

MICROSECONDS = {"s": 1e6, "sec": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ns": 1e-3}
"""Length of the units that cost files may name; any other unit is shown as a millisecond."""

LEAST = 0.1
"""Microseconds of the shortest action from which on times are written in whole nanoseconds."""

COMPUTE = 0
PAIRED, TRANSFERS, COPIES, COLLECTIVES = range(1_000_001, 1_000_005)
# Perfetto takes thread 0 of a process for its main thread, whose number is that of the process, a
# rank's. So the others have numbers that no rank has.
THREADS = {
    COMPUTE: "compute", PAIRED: "compute, second half of a pair", TRANSFERS: "transfers",
    COPIES: "host copy", COLLECTIVES: "collectives",
}  # fmt: skip


def save_trace(timeline: Timeline, path: str | Path, time_unit: str = "") -> None:
    """Write a trace file, compressed when its name ends in ``.gz``.

    Parameters
    ----------
    timeline
        What to write.
    path
        The file.
    time_unit
        Unit of the costs; see :func:`trace_text`.

    Raises
    ------
    FormatError
        When the file cannot be written.
    """
    try:
        with open(path, "wb") as file:
            if str(path).lower().endswith(".gz"):
                # Without a time stamp equal timelines give equal files.
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                    packed.writelines(t.encode() for t in trace_text(timeline, time_unit))
            else:
                file.writelines(t.encode() for t in trace_text(timeline, time_unit))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"cannot write '{path}': {reason}") from None


def trace_text(timeline: Timeline, time_unit: str = "") -> Iterator[str]:
    """The trace as pieces of JSON text.

    Parameters
    ----------
    timeline
        What to write.
    time_unit
        ``"s"``, ``"ms"``, ``"us"`` or ``"ns"`` when costs are in one of these. One unit of
        anything else is shown as one millisecond; ``otherData`` in the file says so.
    """
    scale = MICROSECONDS.get(time_unit.strip().lower(), 1e3)
    head = {"displayTimeUnit": "ms", "otherData": _about(timeline, time_unit)}
    yield f'{json.dumps(head, ensure_ascii=False)[:-1]}, "traceEvents": [\n'
    first = True
    for events in (_tracks(timeline), _slices(timeline, scale), _arrows(timeline, scale),
                   _memory(timeline, scale)):  # fmt: skip
        for event in events:
            yield event if first else f",\n{event}"
            first = False
    yield "\n]}\n"


def _about(timeline: Timeline, time_unit: str) -> dict[str, Any]:
    schedule = timeline.schedule
    known = time_unit.strip().lower() in MICROSECONDS
    costs = timeline.table.costs
    return {
        **described(schedule),
        "makespan": timeline.makespan,
        "time_unit": time_unit if known else f"one {time_unit or 'unit of the costs'} is shown as "
        "1 ms",
        "costs": "per action" if costs.basis == "action" else "per rank, divided by chunks",
        "p2p_mode": timeline.mode,
        "memory_unit": "unit of the activation cost" if costs.activation is not None
        else "activation units: what one microbatch leaves on one rank",
    }  # fmt: skip


def described(schedule: Schedule) -> dict[str, Any]:
    """What the names of a trace's slices do not say about their schedule."""
    about: dict[str, Any] = {
        "schedule": schedule.name,
        "ranks": schedule.ranks,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "iterations": schedule.iterations,
    }
    if schedule.placement.copies > 1:
        about["placement"] = {"table": [list(row) for row in schedule.placement.table]}
    if schedule.vocabulary:
        about["vocabulary"] = schedule.vocabulary
    if schedule.iterations > 1:
        about |= {"sync": schedule.sync, "weight_versions": list(schedule.versions)}
    return about


def whole_nanoseconds(
    start: NDArray[np.float64], duration: NDArray[np.float64], track: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times such that slices of one track do not overlap when they are rounded to nanoseconds.

    Perfetto does so with starts and durations, and of two slices that then overlap it drops one.

    Parameters
    ----------
    start, duration
        In microseconds, shape ``(n,)``.
    track
        Which slices follow each other, shape ``(n,)``.

    Returns
    -------
    tuple
        Start and duration in microseconds.
    """
    begin, end = np.round(start, 3), np.round(start + duration, 3)
    order = np.lexsort((begin, track))
    before, after = order[:-1], order[1:]
    follows = track[before] == track[after]
    end[before] = np.where(follows, np.minimum(end[before], begin[after]), end[before])
    return begin, end - begin


def _spans(timeline: Timeline, scale: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and duration of every action in microseconds."""
    start, duration = timeline.start * scale, timeline.duration * scale
    if duration[duration > 0].min(initial=np.inf) < LEAST:
        return start, duration
    ranks = np.repeat(np.arange(timeline.schedule.ranks), np.diff(timeline.schedule.offsets))
    return whole_nanoseconds(start, duration, ranks * 2 * PAIRED + _threads(timeline))


def _threads(timeline: Timeline) -> NDArray[np.int64]:
    """Thread of every action: halves of a pair run at the same time and take one each."""
    actions = timeline.schedule.actions
    kinds = kinds_of(actions)
    threads = np.where(begins_group(actions), COMPUTE, PAIRED)
    threads = np.where(computes(kinds), threads, TRANSFERS)
    threads = np.where(np.isin(kinds, SHARDING_KINDS), COLLECTIVES, threads)
    return np.where(np.isin(kinds, COPY_KINDS), COPIES, threads)


def _tracks(timeline: Timeline) -> Iterator[str]:
    schedule = timeline.schedule
    threads = _threads(timeline)
    for rank in range(schedule.ranks):
        part = threads[schedule.offsets[rank] : schedule.offsets[rank + 1]]
        yield _named("process_name", rank, COMPUTE, "name", f"rank {rank}")
        yield _named("process_sort_index", rank, COMPUTE, "sort_index", rank)
        for thread in sorted({COMPUTE, *np.unique(part).tolist()}):
            target = schedule.copy_targets[rank]
            name = THREADS[thread]
            if thread == COPIES and target is not None:
                name = f"copies to rank {target}"
            yield _named("thread_name", rank, thread, "name", name)
            yield _named("thread_sort_index", rank, thread, "sort_index", thread)


def _named(event: str, rank: int, thread: int, key: str, value: str | int) -> str:
    return json.dumps({"ph": "M", "name": event, "pid": rank, "tid": thread, "args": {key: value}})


def _slices(timeline: Timeline, scale: float) -> Iterator[str]:
    schedule = timeline.schedule
    ranks = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets))
    start, duration = _spans(timeline, scale)
    columns = zip(
        kinds_of(schedule.actions).tolist(),
        stages_of(schedule.actions).tolist(),
        microbatches_of(schedule.actions).tolist(),
        ranks.tolist(),
        _threads(timeline).tolist(),
        start.tolist(),
        duration.tolist(),
        strict=True,
    )
    names = [kind.name for kind in Kind]
    slices = schedule.slices
    for kind, stage, unit, rank, thread, begin, length in columns:
        name = names[kind]
        microbatch, text, part = unit, f"{stage}{name}{unit}", ""
        if slices > 1 and kind not in WHOLE_STAGE_KINDS:
            microbatch, text = unit // slices, Action(stage, Kind(kind), unit).text(slices)
            part = f', "slice": {unit % slices}'
        yield (
            f'{{"ph": "X", "name": "{text}", "cat": "{name}", "pid": {rank}, '
            f'"tid": {thread}, "ts": {begin:.6f}, "dur": {length:.6f}, "args": {{"stage": '
            f'{stage}, "kind": "{name}", "microbatch": {microbatch}{part}}}}}'
        )


def _arrows(timeline: Timeline, scale: float) -> Iterator[str]:
    """A flow from every producer to its consumer on another rank."""
    schedule = timeline.schedule
    actions = schedule.actions
    ranks = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets))
    threads = _threads(timeline)
    start, duration = _spans(timeline, scale)
    kinds, stages, units = kinds_of(actions), stages_of(actions), microbatches_of(actions)
    number = 0
    for name, step, members in (
        ("forward", 1, kinds == Kind.F),
        ("backward", -1, (kinds == Kind.I) | (kinds == Kind.B)),
    ):
        here = np.flatnonzero(members)
        where = np.full(schedule.stages * schedule.units, -1)
        where[stages[here] * schedule.units + units[here]] = here
        target = stages[here] + step
        inside = (target >= 0) & (target < schedule.stages)
        sources = here[inside]
        sinks = where[target[inside] * schedule.units + units[sources]]
        crosses = (sinks >= 0) & (ranks[sources] != ranks[sinks])
        a, b = sources[crosses], sinks[crosses]
        # A flow belongs to the slice around its time: the producer's is not its end, where the
        # next slice begins.
        leaves = start[a] + 0.999 * duration[a]
        columns = (ranks[a], threads[a], leaves, ranks[b], threads[b], start[b])
        for rank, thread, begin, other, lane, end in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            both = f'"name": "{name}", "cat": "p2p", "id": {number}'
            yield f'{{"ph": "s", {both}, "pid": {rank}, "tid": {thread}, "ts": {begin:.6f}}}'
            yield (
                f'{{"ph": "f", "bp": "e", {both}, "pid": {other}, "tid": {lane}, "ts": {end:.6f}}}'
            )
            number += 1


def _memory(timeline: Timeline, scale: float) -> Iterator[str]:
    for rank in range(timeline.schedule.ranks):
        times, levels = timeline.memory_curve(rank)
        last = np.append(np.diff(times) > 0, True)[: len(times)]
        for time, level in zip((times[last] * scale).tolist(), levels[last].tolist(), strict=True):
            yield (
                f'{{"ph": "C", "name": "activation", "pid": {rank}, "ts": {time:.6f}, '
                f'"args": {{"memory": {level:.12g}}}}}'
            )
