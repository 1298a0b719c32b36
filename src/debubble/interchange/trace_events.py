"""Trace Event JSON: tracks, slices and arrows of actions, whatever their times come from.

A rank is a process. Its streams are threads, as the table of kinds names them; the second halves of
overlapped pairs have one of their own, as slices of one thread may not overlap. An arrow leads from
every action to what waits for it on another rank.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    WHOLE_STAGE_KINDS,
    begins_group,
    code_text,
    kinds_of,
    microbatches_of,
    stages_of,
)
from debubble.core.atomic_write import atomic_file
from debubble.core.kinds import KINDS, STREAM_TITLES, Kind, Stream
from debubble.core.schedule import Schedule, sizes
from debubble.core.waits import waits_for
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


@dataclass(frozen=True, eq=False)
class Tracks:
    """Actions of a schedule at some times, in a group of processes."""

    schedule: Schedule
    """Whose actions."""
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
        schedule = self.schedule
        ranks = schedule.ranks_of_actions
        return ranks + self.first_process

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
        """The same with times such that no slices of a thread overlap when they are rounded.

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
        """All events: names, slices and arrows."""
        yield from self.names()
        yield from self.slices()
        yield from self.arrows()

    def names(self) -> Iterator[str]:
        """Names and sort indices of processes and threads."""
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
        """A complete event for every action."""
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
        """A flow for every wait between ranks, called after what the producer does."""
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
    """Metadata of a schedule that the names of a trace's slices lack."""
    about: dict[str, Any] = {
        "schedule": schedule.name,
        **sizes(schedule, "ranks", "stages", "microbatches", "iterations"),
    }
    if schedule.placement.copies > 1:
        about["placement"] = {"table": [list(row) for row in schedule.placement.table]}
    if schedule.vocabulary:
        about["vocabulary"] = schedule.vocabulary
    if schedule.iterations > 1:
        about |= {"sync": schedule.sync, "weight_versions": list(schedule.versions)}
    return about


def document(about: dict[str, Any], events: Iterable[str]) -> Iterator[str]:
    """A trace as pieces of JSON text."""
    head = {"displayTimeUnit": "ms", "otherData": about}
    yield f'{json.dumps(head, ensure_ascii=False)[:-1]}, "traceEvents": [\n'
    for number, event in enumerate(events):
        yield f",\n{event}" if number else event
    yield "\n]}\n"


def write(pieces: Iterable[str], path: str | Path) -> None:
    """Write pieces of text to a file, compressed when its name ends in ``.gz``.

    Raises
    ------
    FormatError
        When the file cannot be written.
    """
    with writing(path), atomic_file(path) as file:
        if str(path).lower().endswith(".gz"):
            # Without a time stamp equal timelines give equal files.
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                packed.writelines(piece.encode() for piece in pieces)
        else:
            file.writelines(piece.encode() for piece in pieces)


def _named(event: str, process: int, thread: int, key: str, value: str | int) -> str:
    return json.dumps(
        {"ph": "M", "name": event, "pid": process, "tid": thread, "args": {key: value}},
        ensure_ascii=False,
    )
