"""A real run as Trace Event JSON: predicted and measured times, one group of processes each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import computes, kinds_of
from debubble.core.schedule import Schedule
from debubble.interchange.trace_events import Tracks, described, document, write

GROUP = 10_000
"""Distance of the process numbers of two groups; more than there are ranks."""

MICROSECONDS = 1e6

Times = Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]


def save_run_trace(schedule: Schedule, times: Times, path: str | Path) -> None:
    """Write a trace file, compressed when its name ends in ``.gz``.

    Parameters
    ----------
    schedule
        The schedule that was run.
    times
        By name of the group: start and end of every action in seconds, shape ``(n,)``.
    path
        The file.

    Raises
    ------
    FormatError
        When the file cannot be written.
    """
    write(run_trace(schedule, times), path)


def run_trace(schedule: Schedule, times: Times) -> Iterator[str]:
    """The trace as pieces of JSON text: what ranks compute, and which results it waits for."""
    return document({**described(schedule), "groups": list(times)}, _events(schedule, times))


def _events(schedule: Schedule, times: Times) -> Iterator[str]:
    shown = computes(kinds_of(schedule.actions))
    arrows = 0
    for number, (name, (start, end)) in enumerate(times.items()):
        tracks = Tracks(
            schedule, start * MICROSECONDS, (end - start) * MICROSECONDS, name, number * GROUP,
            arrows, shown,
        ).in_whole_nanoseconds()  # fmt: skip
        yield from tracks.events()
        arrows = tracks.last_arrow
