"""Traces in Trace Event JSON whose slices are called like actions: their order and times.

:mod:`debubble.interchange.trace_events` writes such files, plain or compressed, and so do other
tools that call their slices ``3F7``.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.check import check
from debubble.core.actions import (
    COMPUTE_KINDS,
    MAX_MICROBATCHES,
    Action,
    Program,
    cell_of,
    kinds_of,
    pairs_of,
)
from debubble.core.costs import Costs
from debubble.core.errors import CostError, DebubbleError, FormatError
from debubble.core.kind_relations import PASS_KINDS
from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS, STEP_KINDS
from debubble.core.schedule import SYNCS, Schedule
from debubble.core.schedule_fields import VOCABULARIES
from debubble.engine.measured_timeline import measured_timeline
from debubble.engine.timeline import Timeline
from debubble.interchange.cells import check_size, read_cells
from debubble.interchange.schedule_json import read_placement
from debubble.interchange.text import plain, read_bytes, shown
from debubble.interchange.torch_csv import placement_of
from debubble.interchange.trace_events import GROUP, MICROSECONDS, PAIRED

MILLISECOND = 1e3
MAX_BYTES = 64 << 20
"""Bytes of a trace file when it is unpacked."""

MAX_EVENTS = 4_000_000
MAX_STAGES_PER_RANK = 256
"""Stages of a rank: an event named 1048575F0 is no stage of a small pipeline."""

MAX_VERSIONS = 1 << 20


@dataclass(frozen=True, eq=False)
class Recording:
    """One group of a trace: a schedule and the times of its actions."""

    group: str
    """Name in the trace, for instance ``"measured"``; empty where it has one group."""
    schedule: Schedule
    start: NDArray[np.float64]
    """Start of every action from the first start on, shape ``(n,)``, in `time_unit`."""
    end: NDArray[np.float64]
    time_unit: str
    """``"ms"``; empty in a trace of times without a unit."""

    @property
    def label(self) -> str:
        """Name of the recording in pictures."""
        name = self.schedule.name
        return f"{name}, {self.group}" if self.group else f"{name} (trace)"

    def timeline(self, costs: Costs | None = None) -> Timeline:
        """Return the recorded times as a timeline, called like the recording.

        `costs` have the memory of activations; costs that do not fit the schedule are left out.
        Raises ScheduleError when the order cannot run.
        """
        named = replace(self.schedule, name=self.label)
        try:
            return measured_timeline(named, self.start, self.end, costs)
        except CostError:
            return measured_timeline(named, self.start, self.end)

    def rank_times(self) -> dict[str, float | list[float]]:
        """Return the mean time of a microbatch on a rank: one number, or one per rank that differ.

        A rank runs each of its stages, and those of one copy of the model.
        """
        schedule, durations = self.schedule, self.end - self.start
        actions = schedule.actions
        halves, kinds = pairs_of(actions), kinds_of(actions)
        passes = schedule.stages / schedule.ranks
        found: dict[str, float | list[float]] = {}
        for kind in PASS_KINDS:
            mine = (kinds == kind) & (halves == 0)
            if not mine.any():
                continue
            at, least = schedule.ranks_of_actions[mine], schedule.ranks
            counts = np.bincount(at, minlength=least)
            sums = np.bincount(at, durations[mine], minlength=least)
            # A rank without such an action gets the mean of all others.
            usual = durations[mine].mean()
            means = passes * np.where(counts, sums / np.maximum(counts, 1), usual)
            short = [_short(x) for x in means]
            found[kind.name] = short[0] if len(set(short)) == 1 else short
        if np.any(halves == 1):
            found["O"] = _short(passes * durations[halves == 1].mean())
        return found


def is_trace(text: str) -> bool:
    """Return whether a JSON text looks like a trace, without reading all of it."""
    head = text[:4096].lstrip()
    return head.startswith("[") or '"traceEvents"' in head


def is_trace_file(path: str) -> bool:
    """Return whether a path names a trace: packed JSON, or JSON that begins like one."""
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
    """Read a trace file, unpacked or not; raise FormatError when it cannot be read."""
    content = read_bytes(path, MAX_BYTES)
    if str(path).lower().endswith(".gz"):
        content = unpacked(content, str(path))
    try:
        return read_trace(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text; a trace is JSON") from None


def unpacked(content: bytes, where: str, limit: int = MAX_BYTES) -> bytes:
    """Unpack a gzip file, up to a limit of bytes."""
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
    """Return the recordings in a trace, one for every group of processes, in their order.

    Complete events that are called like actions, ``3F7``, count; their process is their rank, in
    groups of 10,000 where a trace has several. Two that begin together on two threads are an
    overlapped pair. Raises FormatError when there is no such event, ranks are not numbered from 0,
    or actions are missing.
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


class _Slice(NamedTuple):
    process: int
    thread: Any
    start: float
    duration: float
    action: Action
    part: int
    """Slice of the microbatch, −1 where the name has none."""

    @property
    def end(self) -> float:
        """End of the slice."""
        return self.start + self.duration

    @property
    def text(self) -> str:
        """Cell of the action."""
        return f"{self.action}" if self.part < 0 else f"{self.action}.{self.part}"


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
    programs, times = [], []
    for rank in range(len(ranks)):
        cells, of_rank = _program(ranks[rank])
        programs.append(read_cells(cells, lambda _, rank=rank: f"{where}: rank {rank}", slices))  # type: ignore[misc]
        times += of_rank
    units = 1 + max(
        (s.action.microbatch for s in every if s.action.kind not in STEP_KINDS), default=0
    )
    check_size(len(times), stages, units * slices, where)
    schedule = _schedule(about, programs, stages, units, slices, where)
    report = check(schedule)
    if not report.ok:
        raise FormatError(f"{where}: {report.problems[0]}; the trace lacks a part of the run")
    written = about.get("time_unit")
    measured = written is None or (isinstance(written, str) and written in MICROSECONDS)
    start, duration = np.array(times).T
    start -= start.min()
    return Recording(
        name, schedule, start / MILLISECOND, (start + duration) / MILLISECOND,
        "ms" if measured else "",
    )  # fmt: skip


def _schedule(
    about: Mapping[str, Any],
    programs: list[Program],
    stages: int,
    units: int,
    slices: int,
    where: str,
) -> Schedule:
    """Make the schedule of programs; metadata that cannot be used is left out."""
    claimed: Any = about.get("iterations")
    iterations = claimed if _is_count(claimed, units) and units % claimed == 0 else 1
    fields: dict[str, Any] = {"iterations": iterations, "slices": slices}
    for key, known in (("vocabulary", VOCABULARIES), ("sync", SYNCS)):
        if about.get(key) in known:
            fields[key] = about[key]
    versions = about.get("weight_versions")
    if isinstance(versions, list) and all(_is_count(v, MAX_VERSIONS) for v in versions):
        fields["weight_versions"] = tuple(versions)
    if isinstance(about.get("carries"), list):
        fields["carries"] = about["carries"]
    title = about.get("schedule")
    title = plain(title) if isinstance(title, str) and title else Path(where).name
    if "placement" in about:
        placement = read_placement(about["placement"], len(programs), where)
        if placement.stages != stages:
            raise FormatError(
                f"{where}: placement has {placement.stages:,} stages, the actions {stages:,}"
            )
    else:
        placement = placement_of(programs, stages, where)
    try:
        return Schedule.from_programs(title, placement, units // iterations, programs, **fields)
    except DebubbleError as error:
        raise FormatError(f"{where}: {error}") from None


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _program(slices: list[_Slice]) -> tuple[list[str], list[tuple[float, float]]]:
    """Return the cells of one rank in order of time, and start and duration of every action."""
    ordered = sorted(slices, key=lambda s: (s.start, s.end))
    cells: list[str] = []
    times: list[tuple[float, float]] = []
    while len(times) < len(ordered):
        one, *rest = ordered[len(times) : len(times) + 2]
        if rest and _are_pair(one, rest[0]):
            first, second = (
                (rest[0], one) if rest[0].action.kind in FORWARD_KINDS else (one, rest[0])
            )
            cells.append(cell_of((first.text, second.text)))
            times += [(first.start, max(first.duration, second.duration))] * 2
        else:
            cells.append(one.text)
            times.append((one.start, one.duration))
    return cells, times


def _are_pair(one: _Slice, two: _Slice) -> bool:
    kinds = {one.action.kind, two.action.kind}
    # Halves that were measured begin a moment apart.
    shared = min(one.end, two.end) - max(one.start, two.start)
    together = 2 * shared > min(one.duration, two.duration) > 0
    kind_of_pair = not (kinds.isdisjoint(FORWARD_KINDS) or kinds.isdisjoint(GRADIENT_KINDS))
    return together and PAIRED in (one.thread, two.thread) and kind_of_pair


def _slices(data: Any, where: str) -> Iterator[_Slice]:
    """Yield the events that are called like actions."""
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
