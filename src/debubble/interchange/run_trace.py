"""A real run as Trace Event JSON: predicted and measured times, one group of processes each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    COMPUTE_KINDS,
    Action,
    Kind,
    begins_group,
    kinds_of,
    microbatches_of,
    stages_of,
)
from debubble.core.errors import FormatError
from debubble.core.schedule import Schedule
from debubble.interchange.chrome_trace import COMPUTE, PAIRED, described, whole_nanoseconds

GROUP = 10_000
"""Distance of the process numbers of two groups; more than there are ranks."""

MICROSECONDS = 1e6

Times = Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]


def save_run_trace(schedule: Schedule, times: Times, path: str | Path) -> None:
    """Write a trace file, compressed when its name ends in ``.gz``.

    Parameters
    ----------
    schedule
        What was run.
    times
        By name of the group: start and end of every action in seconds, shape ``(n,)``.
    path
        The file.

    Raises
    ------
    FormatError
        When the file cannot be written.
    """
    text = "".join(run_trace(schedule, times)).encode()
    try:
        with open(path, "wb") as file:
            packed = str(path).lower().endswith(".gz")
            file.write(gzip.compress(text, 6, mtime=0) if packed else text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"cannot write '{path}': {reason}") from None


def run_trace(schedule: Schedule, times: Times) -> Iterator[str]:
    """The trace as pieces of JSON text."""
    about = {**described(schedule), "groups": list(times)}
    yield f'{json.dumps({"displayTimeUnit": "ms", "otherData": about})[:-1]}, "traceEvents": [\n'
    first = True
    for number, (name, (start, end)) in enumerate(times.items()):
        events = [*_processes(schedule, name, number), *_slices(schedule, number, start, end)]
        for event in events:
            yield event if first else f",\n{event}"
            first = False
    yield "\n]}\n"


def _processes(schedule: Schedule, name: str, number: int) -> Iterator[str]:
    for rank in range(schedule.ranks):
        process = number * GROUP + rank
        for event, key, value in (
            ("process_name", "name", f"{name} · rank {rank}"),
            ("process_sort_index", "sort_index", process),
        ):
            yield json.dumps(
                {"ph": "M", "name": event, "pid": process, "tid": 0, "args": {key: value}},
                ensure_ascii=False,
            )


def _slices(
    schedule: Schedule, number: int, start: NDArray[np.float64], end: NDArray[np.float64]
) -> Iterator[str]:
    actions = schedule.actions
    ranks = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets))
    compute = np.flatnonzero(np.isin(kinds_of(actions), COMPUTE_KINDS))
    actions, ranks = actions[compute], ranks[compute]
    threads = np.where(begins_group(actions), COMPUTE, PAIRED)
    begins, lengths = whole_nanoseconds(
        start[compute] * MICROSECONDS,
        (end - start)[compute] * MICROSECONDS,
        ranks * 2 * PAIRED + threads,
    )
    columns = (
        kinds_of(actions), stages_of(actions), microbatches_of(actions), ranks, threads,
        begins, lengths,
    )  # fmt: skip
    for kind, stage, unit, rank, thread, begin, length in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        name = Kind(kind).name
        text = Action(stage, Kind(kind), unit).text(schedule.slices)
        yield (
            f'{{"ph": "X", "name": "{text}", "cat": "{name}", "pid": '
            f'{number * GROUP + rank}, "tid": {thread}, "ts": {begin:.3f}, '
            f'"dur": {length:.3f}}}'
        )
