"""Timelines as Trace Event JSON, which ui.perfetto.dev and chrome://tracing open.

One process per rank with a thread for each of its streams, arrows for waits between ranks, and a
counter track for activation memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from debubble.engine.timeline import Timeline
from debubble.interchange.trace_events import Tracks, described, document, write

MICROSECONDS = {"s": 1e6, "sec": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ns": 1e-3}
"""Length of the units that cost files may name; any other unit is shown as a millisecond."""

LEAST = 0.1
"""Microseconds of the shortest action from which on times are written in whole nanoseconds."""


def save_trace(timeline: Timeline, path: str | Path, time_unit: str = "") -> None:
    """Write a trace file, see :func:`trace_text`; errors and compression as of :func:`write`."""
    write(trace_text(timeline, time_unit), path)


def trace_text(timeline: Timeline, time_unit: str = "") -> Iterator[str]:
    """Return the trace as pieces of JSON text.

    `time_unit` is ``"s"``, ``"ms"``, ``"us"`` or ``"ns"`` when costs are in one of these. One unit
    of anything else is shown as one millisecond; see ``otherData`` in the file.
    """
    scale = MICROSECONDS.get(time_unit.strip().lower(), 1e3)
    tracks = Tracks(timeline.schedule, timeline.start * scale, timeline.duration * scale)
    if tracks.duration[tracks.duration > 0].min(initial=np.inf) >= LEAST:
        tracks = tracks.in_whole_nanoseconds()
    events = chain(tracks.events(), _memory(timeline, scale))
    return document(_about(timeline, time_unit), events)


def _about(timeline: Timeline, time_unit: str) -> dict[str, Any]:
    schedule = timeline.schedule
    known = time_unit.strip().lower() in MICROSECONDS
    costs = timeline.table.costs
    return {
        **described(schedule),
        "makespan": timeline.makespan,
        "time_unit": time_unit if known else f"one {time_unit or 'unit of the costs'} is shown as "
        "1 ms",
        "costs": "per rank, divided by chunks" if costs.times_per_rank else "per action",
        "p2p_mode": timeline.mode,
        "memory_unit": "unit of the activation cost" if costs.activation is not None
        else "activation units: what one microbatch leaves on one rank",
    }  # fmt: skip


def _memory(timeline: Timeline, scale: float) -> Iterator[str]:
    for rank in range(timeline.schedule.ranks):
        times, levels = timeline.memory_curve(rank)
        last = np.append(np.diff(times) > 0, True)[: len(times)]
        for time, level in zip((times[last] * scale).tolist(), levels[last].tolist(), strict=True):
            yield (
                f'{{"ph": "C", "name": "activation", "pid": {rank}, "ts": {time:.6f}, '
                f'"args": {{"memory": {level:.12g}}}}}'
            )
