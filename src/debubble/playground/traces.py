"""Traces in which slices are called like actions: the order they show, and mean times."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from debubble.core.actions import Action, Kind
from debubble.core.errors import FormatError
from debubble.playground.limits import MAX_ACTIONS
from debubble.playground.state import File

TIMED = (Kind.F, Kind.I, Kind.W, Kind.B)
MICROSECONDS = 1e3
"""Of the unit that times are given in: a millisecond, as :mod:`debubble.interchange.chrome_trace`
shows one unit of time."""


def read_trace(data: Any, where: str) -> tuple[File, File]:
    """The schedule of a trace as a CSV, and a cost file with the mean time per kind and stage.

    Parameters
    ----------
    data
        Trace Event JSON. Complete events that are called like actions, ``3F7``, count; their
        process is their rank. Two that begin together on two threads are an overlapped pair.
    where
        Name of the file, for messages.

    Raises
    ------
    FormatError
        When there is no such event, or ranks are not numbered from 0.
    """
    ranks: dict[int, list[tuple[float, float, Action]]] = defaultdict(list)
    for rank, start, duration, action in _slices(data, where):
        ranks[rank].append((start, duration, action))
    if not ranks:
        raise FormatError(f"{where}: no event is called like an action, for instance 3F7")
    if sorted(ranks) != list(range(len(ranks))):
        raise FormatError(f"{where}: processes are ranks, and go from 0 to {len(ranks) - 1}")
    lines, pairs = [], []
    times: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for rank in range(len(ranks)):
        cells: list[str] = []
        slices = sorted(ranks[rank], key=lambda s: (s[0], s[2].kind))
        at = 0
        while at < len(slices):
            start, duration, action = slices[at]
            paired = at + 1 < len(slices) and slices[at + 1][0] == start and duration > 0
            if paired and action.kind == Kind.F and slices[at + 1][2].kind in (Kind.I, Kind.B):
                cells.append(f"({action};{slices[at + 1][2]})OVERLAP_F_B")
                pairs.append(duration)
                at += 2
                continue
            times[action.kind, action.stage].append(duration)
            cells.append(str(action))
            at += 1
        lines.append(",".join(cells))
    stem = where.removesuffix(".json").removesuffix(".trace") or "trace"
    costs = json.dumps({"name": f"times of {where}", "time_unit": "ms",
                        "times": _mean_times(times, pairs)})  # fmt: skip
    return (
        File(name=f"{stem}.csv"[-80:], text="\n".join(lines) + "\n"),
        File(name=f"{stem} times.json"[-80:], text=costs),
    )


def _slices(data: Any, where: str) -> Iterator[tuple[int, float, float, Action]]:
    """Rank, start, duration and action of the events that count."""
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list) or len(events) > 8 * MAX_ACTIONS:
        raise FormatError(f"{where}: traceEvents is no list of events")
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        try:
            action = Action.parse(str(event.get("name", ""))[:40])
        except FormatError:
            continue
        if action.kind not in TIMED:
            continue
        rank: Any = event.get("pid")
        start: Any = event.get("ts")
        duration: Any = event.get("dur", 0)
        if type(rank) is not int or not _finite(start) or not _finite(duration):
            raise FormatError(f"{where}: {action} needs numbers as pid, ts and dur")
        yield rank, float(start), float(duration) / MICROSECONDS, action


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e15


def _mean_times(
    times: dict[tuple[Kind, int], list[float]], pairs: list[float]
) -> dict[str, float | list[float]]:
    """One number per kind where all stages agree, else one per stage."""
    stages = 1 + max((stage for _, stage in times), default=0)
    found: dict[str, float | list[float]] = {}
    for kind in TIMED:
        known = [times.get((kind, stage)) for stage in range(stages)]
        every = [value for values in known if values for value in values]
        if not every:
            continue
        overall = sum(every) / len(every)
        means = [_short(sum(v) / len(v) if v else overall) for v in known]
        found[kind.name] = means[0] if len(set(means)) == 1 else means
    if pairs:
        found["O"] = _short(sum(pairs) / len(pairs))
    return found


def _short(value: float) -> float:
    return float(f"{value:.9g}")
