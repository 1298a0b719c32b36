"""Trace Event JSON in which slices are called like actions: their order and their times.

That is what :mod:`debubble.interchange.chrome_trace` and :mod:`debubble.interchange.run_trace`
write, plain or compressed, and what other tools write that call their slices ``3F7``.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.check import check
from debubble.core.actions import COMPUTE_KINDS, MAX_MICROBATCHES, Action, Kind, pairs_of, unpack
from debubble.core.costs import Costs
from debubble.core.errors import CostError, DebubbleError, FormatError
from debubble.core.kind_relations import PASS_KINDS
from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS, STEP_KINDS
from debubble.core.schedule import SYNCS, VOCABULARIES, Schedule
from debubble.engine.measured_timeline import measured_timeline
from debubble.engine.timeline import Timeline
from debubble.interchange.cells import check_size, read_cells
from debubble.interchange.chrome_trace import MICROSECONDS
from debubble.interchange.run_trace import GROUP
from debubble.interchange.schedule_json import read_placement
from debubble.interchange.text import plain, read_bytes, shown
from debubble.interchange.torch_csv import placement_of
from debubble.interchange.trace_events import PAIRED

MILLISECOND = 1e3
MAX_BYTES = 64 << 20
"""Bytes of a trace file when it is unpacked."""

MAX_EVENTS = 4_000_000
MAX_STAGES_PER_RANK = 256
"""Stages of a rank: an event named 1048575F0 is no stage of a small pipeline."""

MAX_VERSIONS = 1 << 20


@dataclass(frozen=True, eq=False)
class Recording:
    """One group of a trace: a schedule and when its actions ran.

    Parameters
    ----------
    group
        Name in the trace, for instance ``"measured"``; empty where it has one group.
    schedule
        The order.
    start, end
        Start and end of every action from the first start on, shape ``(n,)``, in `time_unit`.
    time_unit
        ``"ms"``; empty in a trace of times without a unit.
    """

    group: str
    schedule: Schedule
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    time_unit: str

    @property
    def label(self) -> str:
        """Label in pictures."""
        name = self.schedule.name
        return f"{name}, {self.group}" if self.group else f"{name} (trace)"

    def timeline(self, costs: Costs | None = None) -> Timeline:
        """The recorded times as a timeline, called like the recording.

        `costs` say what activations take; those that do not fit the schedule are left out.

        Raises
        ------
        ScheduleError
            When the order cannot run.
        """
        named = replace(self.schedule, name=self.label)
        try:
            return measured_timeline(named, self.start, self.end, costs)
        except CostError:
            return measured_timeline(named, self.start, self.end)

    def mean_times(self) -> dict[str, float | list[float]]:
        """Mean duration of every kind: one number where all stages agree, else one per stage."""
        times: dict[tuple[Kind, int], list[float]] = defaultdict(list)
        pairs = []
        lane = pairs_of(self.schedule.actions)
        for code, half, duration in zip(
            self.schedule.actions, lane.tolist(), (self.end - self.start).tolist(), strict=True
        ):
            action = unpack(int(code))
            if half == 1:
                pairs.append(duration)
            elif half == 0:
                times[action.kind, action.stage].append(duration)
        found: dict[str, float | list[float]] = {}
        for kind in PASS_KINDS:
            known = [times.get((kind, stage)) for stage in range(self.schedule.stages)]
            every = [value for values in known if values for value in values]
            if not every:
                continue
            overall = sum(every) / len(every)
            means = [_short(sum(v) / len(v) if v else overall) for v in known]
            found[kind.name] = means[0] if len(set(means)) == 1 else means
        if pairs:
            found["O"] = _short(sum(pairs) / len(pairs))
        return found


def is_trace(text: str) -> bool:
    """Whether a JSON text looks like a trace, told without reading all of it."""
    head = text[:4096].lstrip()
    return head.startswith("[") or '"traceEvents"' in head


def is_trace_file(path: str) -> bool:
    """Whether a path names a trace: packed JSON, which nothing else is, or JSON that begins so."""
    if path.lower().endswith(".json.gz"):
        return True
    if not path.lower().endswith(".json"):
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(1 << 16)
    except (OSError, ValueError):
        return False
    return is_trace(head.decode("utf-8", "replace"))


def load_trace(path: str | Path) -> list[Recording]:
    """Read a trace file, unpacked or not.

    Raises
    ------
    FormatError
        When it cannot be read; the message has the file and the value.
    """
    content = read_bytes(path, MAX_BYTES)
    if str(path).lower().endswith(".gz"):
        content = unpacked(content, str(path))
    try:
        return read_trace(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text; a trace is JSON") from None


def unpacked(content: bytes, where: str, limit: int = MAX_BYTES) -> bytes:
    """The content of a gzip file, which may claim to be small and is not."""
    reader = zlib.decompressobj(wbits=31)
    try:
        found = reader.decompress(content, limit + 1)
    except zlib.error:
        raise FormatError(f"{where}: no gzip file; rename it if it is not packed") from None
    if len(found) > limit:
        raise FormatError(f"{where}: more than {limit:,} bytes when unpacked, the limit")
    if not reader.eof:
        raise FormatError(f"{where}: the gzip file ends early; copy it again")
    return found


def read_trace(text: str, where: str) -> list[Recording]:
    """The recordings in a trace, one for every group of processes, in their order.

    Complete events that are called like actions, ``3F7``, count; their process is their rank, in
    groups of 10,000 where a trace has several. Two that begin together on two threads are an
    overlapped pair.

    Raises
    ------
    FormatError
        When there is no such event, ranks are not numbered from 0, or actions are missing.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise FormatError(f"{where}: not JSON; a trace is one object with traceEvents") from None
    about = data.get("otherData") if isinstance(data, dict) else None
    about = about if isinstance(about, dict) else {}
    groups: dict[int, dict[int, list[_Slice]]] = defaultdict(lambda: defaultdict(list))
    for slice_ in _slices(data, where):
        groups[slice_.process // GROUP][slice_.process % GROUP].append(slice_)
    if not groups:
        raise FormatError(f"{where}: no event is called like an action, for instance 3F7")
    names = about.get("groups")
    names = names if isinstance(names, list) else []
    found = []
    for number, (group, ranks) in enumerate(sorted(groups.items())):
        name = plain(str(names[number])) if number < len(names) else ""
        if not name and len(groups) > 1:
            name = f"group {group}"
        found.append(_recording(ranks, name, about, where))
    return found


@dataclass(frozen=True)
class _Slice:
    process: int
    thread: Any
    start: float
    duration: float
    action: Action
    part: int
    """Slice of the microbatch, −1 where the name has none."""


def _recording(
    ranks: Mapping[int, list[_Slice]], name: str, about: Mapping[str, Any], where: str
) -> Recording:
    if sorted(ranks) != list(range(len(ranks))):
        raise FormatError(f"{where}: processes are ranks, and go from 0 to {len(ranks) - 1}")
    every = [slice_ for slices in ranks.values() for slice_ in slices]
    stages = 1 + max(slice_.action.stage for slice_ in every)
    if stages > MAX_STAGES_PER_RANK * len(ranks):
        raise FormatError(
            f"{where}: {stages:,} stages on {len(ranks):,} ranks; the limit is "
            f"{MAX_STAGES_PER_RANK} stages a rank"
        )
    slices = 1 + max((slice_.part for slice_ in every), default=0) or 1
    programs, begins, durations = [], [], []
    for rank in range(len(ranks)):
        cells, times = _program(ranks[rank])
        programs.append(read_cells(cells, lambda _, rank=rank: f"{where}: rank {rank}", slices))  # type: ignore[misc]
        begins += [start for start, _ in times]
        durations += [duration for _, duration in times]
    units = 1 + max(
        (s.action.microbatch for s in every if s.action.kind not in STEP_KINDS), default=0
    )
    claimed: Any = about.get("iterations")
    iterations = claimed if _is_count(claimed, units) and units % claimed == 0 else 1
    check_size(len(begins), stages, units * slices, where)
    start = np.array(begins)
    start -= start.min()
    fields: dict[str, Any] = {"iterations": iterations, "slices": slices}
    for key, known in (("vocabulary", VOCABULARIES), ("sync", SYNCS)):
        if about.get(key) in known:
            fields[key] = about[key]
    versions = about.get("weight_versions")
    if isinstance(versions, list) and all(_is_count(v, MAX_VERSIONS) for v in versions):
        fields["weight_versions"] = tuple(versions)
    title = about.get("schedule")
    title = plain(title) if isinstance(title, str) and title else Path(where).name
    if "placement" in about:
        placement = read_placement(about["placement"], len(ranks), where)
        if placement.stages != stages:
            raise FormatError(
                f"{where}: placement has {placement.stages:,} stages, the actions {stages:,}"
            )
    else:
        placement = placement_of(programs, stages, where)
    try:
        schedule = Schedule.from_programs(title, placement, units // iterations, programs, **fields)
    except DebubbleError as error:
        raise FormatError(f"{where}: {error}") from None
    report = check(schedule)
    if not report.ok:
        raise FormatError(f"{where}: {report.problems[0]}; the trace lacks a part of the run")
    written = about.get("time_unit")
    measured = written is None or (isinstance(written, str) and written in MICROSECONDS)
    unit = "ms" if measured else ""
    end = start + np.array(durations)
    return Recording(name, schedule, start / MILLISECOND, end / MILLISECOND, unit)


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _program(slices: list[_Slice]) -> tuple[list[str], list[tuple[float, float]]]:
    """Cells of one rank in order of time, and the times of their actions."""
    ordered = sorted(slices, key=lambda s: (s.start, s.start + s.duration))
    cells, times = [], []
    at = 0
    while at < len(ordered):
        one = ordered[at]
        two = ordered[at + 1] if at + 1 < len(ordered) else None
        if two is not None and _are_pair(one, two):
            if two.action.kind in FORWARD_KINDS:
                one, two = two, one
            cells.append(f"({_text(one)};{_text(two)})OVERLAP_F_B")
            length = max(one.duration, two.duration)
            times += [(one.start, length)] * 2
            at += 2
            continue
        cells.append(_text(one))
        times.append((one.start, one.duration))
        at += 1
    return cells, times


def _are_pair(one: _Slice, two: _Slice) -> bool:
    kinds = {one.action.kind, two.action.kind}
    # Halves that were measured begin a moment apart.
    shared = min(one.start + one.duration, two.start + two.duration) - max(one.start, two.start)
    together = 2 * shared > min(one.duration, two.duration) > 0
    kind_of_pair = not (kinds.isdisjoint(FORWARD_KINDS) or kinds.isdisjoint(GRADIENT_KINDS))
    return together and PAIRED in (one.thread, two.thread) and kind_of_pair


def _text(slice_: _Slice) -> str:
    return f"{slice_.action}" if slice_.part < 0 else f"{slice_.action}.{slice_.part}"


def _slices(data: Any, where: str) -> Iterator[_Slice]:
    """The events that count."""
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise FormatError(f"{where}: traceEvents is no list of events")
    if len(events) > MAX_EVENTS:
        raise FormatError(f"{where}: {len(events):,} events; the limit is {MAX_EVENTS:,}")
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        text, _, part = str(event.get("name", ""))[:40].partition(".")
        try:
            action = Action.parse(text)
        except FormatError:
            continue
        if action.kind not in COMPUTE_KINDS or action.microbatch >= MAX_MICROBATCHES:
            continue
        if part and not (part.isdecimal() and part.isascii() and int(part) < 1 << 10):
            continue
        process: Any = event.get("pid")
        start: Any = event.get("ts")
        duration: Any = event.get("dur", 0)
        if type(process) is not int or process < 0 or not _finite(start) or not _finite(duration):
            raise FormatError(f"{where}: {action} needs numbers as pid, ts and dur")
        if duration < 0:
            raise FormatError(f"{where}: {action} has dur = {shown(duration)}; it is at least 0")
        yield _Slice(
            process, event.get("tid"), float(start), float(duration), action,
            int(part) if part else -1,
        )  # fmt: skip


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e15


def _short(value: float) -> float:
    return float(f"{value:.9g}")
