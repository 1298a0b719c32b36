"""Timelines and real runs as Trace Event JSON, which ui.perfetto.dev and chrome://tracing open.

A rank is a process. Its streams are threads, as the table of kinds names them; the second halves of
overlapped pairs have one of their own, as slices of one thread may not overlap. An arrow leads from
every action to those that wait for it on other ranks. A timeline has a counter track for activation
memory. A run has a group of processes each for predicted and measured times, and messages.

Messages are asynchronous slices of the category ``transfer`` on the last group's processes, two for
each, with ``args.transfer`` for their number and ``args.from`` and ``args.to`` for their ranks:

* on the sender, ``0SEND_F1`` from when the send is posted to when it has been;
* on the receiver, ``1RECV_F1`` from when the receive is posted to when the tensors are there;
  ``args.waited`` is the time when the rank began to wait for them, in microseconds as ``ts``.

``otherData.hosts`` has the host of every rank. Times of several hosts are on the clock of rank 0's.
``otherData.global_ranks`` has the number of every rank in the whole job, ``otherData.backend`` that
of messages (``gloo``, ``nccl``) and ``otherData.device`` is ``cpu`` or ``gpu``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    WHOLE_STAGE_KINDS,
    begins_group,
    code_text,
    computes,
    kinds_of,
    microbatches_of,
    stages_of,
)
from debubble.core.atomic_write import atomic_file
from debubble.core.kinds import KINDS, STREAM_TITLES, Kind, Stream
from debubble.core.schedule import Schedule, sizes
from debubble.core.waits import waits_for
from debubble.engine.timeline import Timeline
from debubble.interchange.text import writing

COMPUTE = 0
PAIRED = 1_000_001
# Perfetto takes thread 0 of a process for its main thread, whose number is that of the process, a
# rank's. So the others have numbers that no rank has.
THREADS = np.array([PAIRED + spec.stream if spec.stream else COMPUTE for spec in KINDS])
"""Thread of an action of every kind that is no second half of a pair."""

TITLES = {PAIRED + stream if stream else COMPUTE: STREAM_TITLES[stream] for stream in Stream} | {
    PAIRED: f"{STREAM_TITLES[Stream.COMPUTE]}, second half of a pair"
}
COPIES = PAIRED + Stream.COPY

GROUP = 10_000
"""Distance of the process numbers of two groups; more than there are ranks."""

MICROSECONDS = {"s": 1e6, "sec": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ns": 1e-3}
"""Length of the units that cost files may name; any other unit is shown as a millisecond."""

LEAST = 0.1
"""Microseconds of the shortest action from which on times are written in whole nanoseconds."""

Times = Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]


class Transfer(NamedTuple):
    """One message between two ranks; times in seconds, as those of the actions."""

    send: str
    """The action: ``0SEND_F1``."""
    source: int
    send_start: float
    send_end: float
    """End of posting; the send goes on in the background."""
    receive: str
    target: int
    posted: float
    waited: float
    """Time when the receiver began to wait."""
    there: float


@dataclass(frozen=True, eq=False)
class Tracks:
    """Actions of a schedule at some times, in a group of processes."""

    schedule: Schedule
    start: NDArray[np.float64]
    """Start of every action in microseconds, shape ``(n,)``."""
    duration: NDArray[np.float64]
    """Duration of every action, likewise."""
    group: str = ""
    """Prefix of the names of processes; empty for a trace of one group."""
    first_process: int = 0
    """Number of the process of rank 0."""
    first_arrow: int = 0
    """Number of the first arrow."""
    shown: NDArray[np.bool_] | None = None
    """Mask of the actions to show, shape ``(n,)``; None for all."""

    @cached_property
    def process(self) -> NDArray[np.int64]:
        """Process of every action."""
        return self.schedule.ranks_of_actions + self.first_process

    @cached_property
    def thread(self) -> NDArray[np.int64]:
        """Thread of every action: halves of a pair run at the same time and take one each."""
        actions = self.schedule.actions
        return np.where(begins_group(actions), THREADS[kinds_of(actions)], PAIRED)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Positions in the schedule of the actions that are shown."""
        count = len(self.schedule)
        return np.arange(count) if self.shown is None else np.flatnonzero(self.shown)

    def in_whole_nanoseconds(self) -> Tracks:
        """Return the tracks with times such that no rounded slices of a thread overlap.

        Perfetto does so with starts and durations, and of two slices that then overlap it drops
        one.
        """
        here = self.positions
        begin = np.round(self.start, 3)
        end = np.round(self.start + self.duration, 3)
        order = here[np.lexsort((begin[here], self.thread[here], self.process[here]))]
        before, after = order[:-1], order[1:]
        follows = (self.process[before] == self.process[after]) & (
            self.thread[before] == self.thread[after]
        )
        end[before] = np.where(follows, np.minimum(end[before], begin[after]), end[before])
        return replace(self, start=begin, duration=end - begin)

    def events(self) -> Iterator[str]:
        """Yield all events: names, slices and arrows."""
        yield from self.names()
        yield from self.slices()
        yield from self.arrows()

    def names(self) -> Iterator[str]:
        """Yield names and sort indices of processes and threads."""
        schedule, here = self.schedule, self.positions
        used = np.unique(np.stack([self.process[here], self.thread[here]], axis=1), axis=0)
        by_process: dict[int, set[int]] = {}
        for process, thread in used.tolist():
            by_process.setdefault(process, set()).add(thread)
        for rank in range(schedule.ranks):
            process = rank + self.first_process
            title = f"{self.group} · rank {rank}" if self.group else f"rank {rank}"
            yield _named("process_name", process, COMPUTE, "name", title)
            yield _named("process_sort_index", process, COMPUTE, "sort_index", process)
            for thread in sorted({COMPUTE} | by_process.get(process, set())):
                target = schedule.copy_targets[rank]
                name = TITLES[thread]
                if thread == COPIES and target is not None:
                    name = f"copies to rank {target}"
                yield _named("thread_name", process, thread, "name", name)
                yield _named("thread_sort_index", process, thread, "sort_index", thread)

    def slices(self) -> Iterator[str]:
        """Yield a complete event for every action."""
        schedule, here = self.schedule, self.positions
        actions, slices = schedule.actions[here], schedule.slices
        columns = (
            actions, kinds_of(actions), stages_of(actions), microbatches_of(actions),
            self.process[here], self.thread[here], self.start[here], self.duration[here],
        )  # fmt: skip
        names = [kind.name for kind in Kind]
        sliced = [slices > 1 and kind not in WHOLE_STAGE_KINDS for kind in Kind]
        for code, kind, stage, unit, process, thread, begin, length in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            name, microbatch, part = names[kind], unit, ""
            text = f"{stage}{name}{unit}"
            if sliced[kind]:
                microbatch, text = unit // slices, code_text(code, slices)
                part = f', "slice": {unit % slices}'
            yield (
                f'{{"ph": "X", "name": "{text}", "cat": "{name}", "pid": {process}, '
                f'"tid": {thread}, "ts": {begin:.6f}, "dur": {length:.6f}, "args": {{"stage": '
                f'{stage}, "kind": "{name}", "microbatch": {microbatch}{part}}}}}'
            )

    @cached_property
    def _crossings(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Producers and consumers of every wait between ranks."""
        waits = waits_for(self.schedule)
        drawn = self.process[waits.producer] != self.process[waits.consumer]
        if self.shown is not None:
            drawn &= self.shown[waits.producer] & self.shown[waits.consumer]
        return waits.producer[drawn], waits.consumer[drawn]

    @property
    def last_arrow(self) -> int:
        """Number of the first arrow that another group may have."""
        return self.first_arrow + len(self._crossings[0])

    def arrows(self) -> Iterator[str]:
        """Yield a flow for every wait between ranks, named after the producer's kind."""
        a, b = self._crossings
        # A flow belongs to the slice around its time: the producer's is not its end, where the
        # next slice begins.
        leaves = self.start[a] + 0.999 * self.duration[a]
        titles = [json.dumps(spec.title) for spec in KINDS]
        columns = (
            kinds_of(self.schedule.actions[a]), self.process[a], self.thread[a], leaves,
            self.process[b], self.thread[b], self.start[b],
        )  # fmt: skip
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for number, (kind, process, thread, begin, other, lane, end) in enumerate(
            rows, self.first_arrow
        ):
            both = f'"name": {titles[kind]}, "cat": "p2p", "id": {number}'
            yield f'{{"ph": "s", {both}, "pid": {process}, "tid": {thread}, "ts": {begin:.6f}}}'
            yield (
                f'{{"ph": "f", "bp": "e", {both}, "pid": {other}, "tid": {lane}, "ts": {end:.6f}}}'
            )


def described(schedule: Schedule) -> dict[str, Any]:
    """Return metadata of a schedule that the names of a trace's slices lack."""
    about: dict[str, Any] = {
        "schedule": schedule.name,
        **sizes(schedule, "ranks", "stages", "microbatches", "iterations"),
    }
    if schedule.placement.copies > 1:
        about["placement"] = {"table": [list(row) for row in schedule.placement.table]}
    if schedule.vocabulary:
        about["vocabulary"] = schedule.vocabulary
    if schedule.carries:
        about["carries"] = [list(pair) for pair in schedule.carries]
    if schedule.iterations > 1:
        about |= {"sync": schedule.sync, "weight_versions": list(schedule.versions)}
    return about


def document(about: dict[str, Any], events: Iterable[str]) -> Iterator[str]:
    """Yield a trace as pieces of JSON text."""
    head = {"displayTimeUnit": "ms", "otherData": about}
    yield f'{json.dumps(head, ensure_ascii=False)[:-1]}, "traceEvents": [\n'
    for number, event in enumerate(events):
        yield f",\n{event}" if number else event
    yield "\n]}\n"


def write_trace(pieces: Iterable[str], path: str | Path) -> None:
    """Write pieces of text to a file, compressed when its name ends in ``.gz``."""
    with writing(path), atomic_file(path) as file:
        if str(path).lower().endswith(".gz"):
            # Without a time stamp equal timelines give equal files.
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                packed.writelines(piece.encode() for piece in pieces)
        else:
            file.writelines(piece.encode() for piece in pieces)


def trace_text(timeline: Timeline, time_unit: str = "") -> Iterator[str]:
    """Return the trace of a timeline as pieces of JSON text.

    `time_unit` is ``"s"``, ``"ms"``, ``"us"`` or ``"ns"`` when costs are in one of these. One unit
    of anything else is shown as one millisecond; see ``otherData`` in the file.
    """
    schedule, costs = timeline.schedule, timeline.table.costs
    scale = MICROSECONDS.get(time_unit.strip().lower())
    known, scale = scale is not None, scale or 1e3
    tracks = Tracks(schedule, timeline.start * scale, timeline.duration * scale)
    if tracks.duration[tracks.duration > 0].min(initial=np.inf) >= LEAST:
        tracks = tracks.in_whole_nanoseconds()
    about = {
        **described(schedule),
        "makespan": timeline.makespan,
        "time_unit": time_unit if known else f"one {time_unit or 'unit of the costs'} is shown as "
        "1 ms",
        "costs": "per rank, divided by chunks" if costs.times_per_rank else "per action",
        "p2p_mode": timeline.mode,
        "memory_unit": "unit of the activation cost" if costs.activation is not None
        else "activation units: what one microbatch leaves on one rank",
    }  # fmt: skip
    return document(about, chain(tracks.events(), _memory(timeline, scale)))


def _memory(timeline: Timeline, scale: float) -> Iterator[str]:
    for rank in range(timeline.schedule.ranks):
        times, levels = timeline.memory_curve(rank)
        last = np.append(np.diff(times) > 0, True)[: len(times)]
        for time, level in zip((times[last] * scale).tolist(), levels[last].tolist(), strict=True):
            yield (
                f'{{"ph": "C", "name": "activation", "pid": {rank}, "ts": {time:.6f}, '
                f'"args": {{"memory": {level:.12g}}}}}'
            )


def run_trace(
    schedule: Schedule,
    times: Times,
    *,
    transfers: Iterable[Transfer] = (),
    hosts: Sequence[str] = (),
    job: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Return the trace of a run as pieces of JSON text: computations, waits, and messages.

    `times` are start and end of every action in seconds, shape ``(n,)``, by name of the group;
    `transfers` the messages of the last group, and `hosts` the host of every rank. `job` has
    ``global_ranks``, ``backend`` and ``device`` if known.
    """
    about = {**described(schedule), "groups": list(times), **(job or {})}
    if hosts:
        about["hosts"] = list(hosts)
    return document(about, _run_events(schedule, times, transfers))


def _run_events(schedule: Schedule, times: Times, transfers: Iterable[Transfer]) -> Iterator[str]:
    shown = computes(kinds_of(schedule.actions))
    arrows = 0
    for number, (name, (start, end)) in enumerate(times.items()):
        tracks = Tracks(
            schedule, start * 1e6, (end - start) * 1e6, name, number * GROUP, arrows, shown
        ).in_whole_nanoseconds()
        yield from tracks.events()
        arrows = tracks.last_arrow
    first = (len(times) - 1) * GROUP
    for number, one in enumerate(transfers):
        about = {"transfer": number, "from": one.source, "to": one.target}
        waited = {"waited": _microseconds(one.waited)}
        yield from _message(f"s{number}", one.send, first + one.source, one.send_start,
                            one.send_end, about)  # fmt: skip
        yield from _message(f"r{number}", one.receive, first + one.target, one.posted,
                            one.there, about | waited)  # fmt: skip


def _message(
    key: str, name: str, process: int, start: float, end: float, about: Mapping[str, float]
) -> Iterator[str]:
    """Yield an asynchronous slice: those of one rank may overlap."""
    both = {"cat": "transfer", "id": key, "name": name, "pid": process, "tid": 0}
    yield json.dumps({"ph": "b", **both, "ts": _microseconds(start), "args": about})
    yield json.dumps({"ph": "e", **both, "ts": _microseconds(max(start, end))})


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _named(event: str, process: int, thread: int, key: str, value: str | int) -> str:
    return json.dumps(
        {"ph": "M", "name": event, "pid": process, "tid": thread, "args": {key: value}},
        ensure_ascii=False,
    )
