"""NDTimeline of veScale, as ByteDance publishes it: one Chrome trace of all workers.

A process is a data-parallel rank. Threads are named ``PP rank 1, TP rank 0, compute`` or
``…, pp-comm``. Events named ``forward-compute`` and ``backward-compute`` have their step, chunk and
microbatch in ``args``. Events of transfers have numbers of calls. Times are in microseconds.
Workers align their clocks before they write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.core.kind_relations import transfer_of
from debubble.core.kinds import KINDS, Kind
from debubble.diagnosis.observed import ALONE, PAUSES, Columns, Location, Observed, Whole
from debubble.diagnosis.readers.chunks import Calls, is_v_shaped, placed, rank_of, stage_of
from debubble.diagnosis.readers.collected import MICROSECONDS, NAN, Collected
from debubble.diagnosis.readers.events import EventFile, numbers, whole, wholes
from debubble.diagnosis.readers.messages import grouped
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import LeftOut

NAME = "ndtimeline"
MARKS: tuple[bytes, ...] = ()

_WORDS = (
    "forward-compute", "backward-compute", "forward-send", "forward-recv", "backward-send",
    "backward-recv", "gc",
)  # fmt: skip
NAMES = {name: place for place, name in enumerate(_WORDS)}
"""Numbers of the names of events."""

WORK = {0: Kind.F, 1: Kind.B}
TRANSFERS = {2: Kind.SEND_F, 3: Kind.RECV_F, 4: Kind.SEND_B, 5: Kind.RECV_B}
GC = 6

WANTED = re.compile(rb'"name"\s*:\s*"(?:' + "|".join((*_WORDS, "thread_name")).encode() + rb')"')
MOST_THREAD = 1 << 50
NO_THREAD = -MOST_THREAD

_THREAD = re.compile(r"PP rank (\d{1,6}), TP rank (\d{1,6}), ([\w-]{1,40})", re.ASCII)
_COMPUTE = re.compile(rb"PP rank \d{1,6}, TP rank \d{1,6}, compute")

NO_WORKER = "events of threads that are not called 'PP rank 0, TP rank 0, …'"
TENSOR = "events of tensor-parallel ranks other than the first of each worker"
NO_NUMBERS = "events without whole numbers as step, model_chunk and mb_id"
NO_TIME = "events without numbers as ts and dur"
MORE_CALLS = "steps of a worker with another number of transfers than its actions need"


class _WorkerArguments(msgspec.Struct, gc=False):
    """Arguments of an event; `name` is that of a thread."""

    step: Any = None
    model_chunk: Any = None
    mb_id: Any = None
    name: Any = None


class _WorkerEvent(msgspec.Struct, gc=False):
    """An event as written; times in microseconds."""

    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: _WorkerArguments | None = None


@dataclass(frozen=True, eq=False)
class _WorkerEvents(Columns):
    """Events as columns; times in seconds.

    `name` indexes :data:`NAMES`; `worker` is the number of a process and thread.
    """

    name: Whole
    worker: Whole
    step: Whole
    chunk: Whole
    unit: Whole
    start: NDArray[np.float64]
    end: NDArray[np.float64]


Worker = tuple[int, int, int]
"""Copy, rank and tensor-parallel rank of a worker."""


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    work = b'-compute"' in head and b'"mb_id"' in head
    return work or _COMPUTE.search(head) is not None


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read one file, or several with some of the workers; raise FormatError without actions."""
    named, paths, events = _read_files(files, left_out)
    events = _first_tensor_ranks(named, events, left_out)
    if not len(events.name):
        raise FormatError(f"{where}: no thread is called 'PP rank 0, TP rank 0, compute'")
    ranks = int(named[:, 1].max()) + 1
    works = _works(events, left_out)
    # The first copy shows a V-shaped placement of chunks.
    copy, rank, _ = named[events.worker[works]].T
    mine = events.take(works[copy == 0])
    kind = np.array([*WORK.values()])[mine.name]
    v_shaped = is_v_shaped(
        Calls(mine.step, rank[copy == 0], kind, mine.chunk, mine.unit, mine.start, mine.end), ranks
    )
    places = map(tuple, named[:, :2].tolist())
    locations = {place: Location(file=path) for place, path in zip(places, paths, strict=True)}
    collected = Collected(where, left_out)
    _add(collected, named, events, works, ranks, v_shaped)
    # The rows now contain all data.
    del events, works, mine
    return collected.observed(
        NAME,
        {
            "rank": "names of threads",
            "copy": "process",
            "stage": f"model_chunk and rank, {placed(v_shaped)}",
            "microbatch": "mb_id of actions; transfers in order of their calls",
            "step": "step of the event",
            "clock": "of every worker, aligned by the writer",
        },
        unit=MICROSECONDS, locations=locations, clocks="hosts",
    )  # fmt: skip


def _read_files(files: Sequence[Path], left_out: LeftOut) -> tuple[Whole, list[str], _WorkerEvents]:
    """Return copy, rank and tensor-parallel rank of all workers, their files, and their events."""
    named: list[Worker] = []
    paths: list[str] = []
    found: list[_WorkerEvents] = []
    for path, (workers, events) in read_each(_read_file, files, left_out):
        number = np.where(events.worker >= 0, events.worker + len(named), -1)
        found.append(replace(events, worker=number))
        named += workers
        paths += [str(path)] * len(workers)
    events = _WorkerEvents.joined(found)
    known = events.worker >= 0
    if spare := len(known) - int(np.count_nonzero(known)):
        left_out[NO_WORKER] += spare
        events = events.take(known)
    return np.array(named, np.int64).reshape(-1, 3), paths, events


def _read_file(path: Path, left_out: LeftOut) -> tuple[list[Worker], _WorkerEvents]:
    """Return the workers of a file by the names of its threads, and its events.

    The worker of an event is its place among these, −1 for a thread without such a name.
    """
    threads: dict[tuple[int, int], re.Match[str]] = {}
    names: dict[str, int] = {}
    places: dict[tuple[int, int], int] = {}
    found: list[_WorkerEvents] = []
    for block in EventFile(path, _WorkerEvent, left_out, wanted=WANTED).blocks():
        found.append(_columns(block, names, places, left_out))
        for event in block:
            if event.name == "thread_name" and event.args is not None:
                match = _THREAD.match(str(event.args.name))
                thread = _thread(event.tid, names)
                if match and thread != NO_THREAD:
                    threads[whole(event.pid), thread] = match
    named: list[Worker] = []
    number = np.full(len(places), -1, np.int32)
    for (process, thread), place in places.items():
        if (match := threads.get((process, thread))) is not None:
            number[place] = len(named)
            named.append((process, int(match[1]), int(match[2])))
    events = _WorkerEvents.joined(found)
    return named, replace(events, worker=number[events.worker])


def _columns(
    block: Sequence[_WorkerEvent], names: dict[str, int], places: dict[tuple[int, int], int],
    left_out: LeftOut,
) -> _WorkerEvents:  # fmt: skip
    """Return the used events of a block; `places` numbers processes and threads."""
    rows = [(event, event.args) for event in block if event.name in NAMES and event.args]
    events = [event for event, _ in rows]
    process = wholes([event.pid for event in events])
    thread = np.array([_thread(event.tid, names) for event in events], np.int64)
    start, length = numbers([e.ts for e in events]), numbers([e.dur for e in events])
    place, timed = (process >= 0) & (thread != NO_THREAD), ~np.isnan(start + length)
    if untimed := int(np.count_nonzero(place & ~timed)):
        left_out[NO_TIME] += untimed
    sound = place & timed
    process, thread = process[sound], thread[sound]
    first, group = grouped([process, thread])
    workers = zip(process[first].tolist(), thread[first].tolist(), strict=True)
    number = np.array([places.setdefault(each, len(places)) for each in workers], np.int32)
    columns = (
        np.array([NAMES[event.name] for event in events], np.int32),
        wholes([args.step for _, args in rows]),
        wholes([args.model_chunk for _, args in rows]),
        wholes([args.mb_id for _, args in rows]),
    )
    name, step, chunk, unit = (column[sound].astype(np.int32) for column in columns)
    start, end = start[sound], (start + length)[sound]
    return _WorkerEvents(
        name.astype(np.int8), number[group], step, chunk, unit, start * MICROSECONDS,
        end * MICROSECONDS,
    )  # fmt: skip


def _thread(value: Any, names: dict[str, int]) -> int:
    """Return a number for a thread, negative if it has a name; NO_THREAD for anything else."""
    if isinstance(value, str):
        return names.setdefault(value, -1 - len(names))
    return value if type(value) is int and abs(value) < MOST_THREAD else NO_THREAD


def _first_tensor_ranks(named: Whole, events: _WorkerEvents, left_out: LeftOut) -> _WorkerEvents:
    """Return events of the first tensor-parallel rank of each worker; its peers do the same."""
    here = np.unique(events.worker)
    first: dict[tuple[int, int], int] = {}
    for copy, rank, tensor in named[here].tolist():
        first[copy, rank] = min(tensor, first.get((copy, rank), tensor))
    is_first = [first.get((copy, rank)) == tensor for copy, rank, tensor in named.tolist()]
    keep = np.array(is_first, bool)[events.worker]
    if spare := len(keep) - int(np.count_nonzero(keep)):
        left_out[TENSOR] += spare
        events = events.take(keep)
    return events


def _works(events: _WorkerEvents, left_out: LeftOut) -> Whole:
    """Return the rows of actions with complete numbers."""
    works = np.flatnonzero(np.isin(events.name, list(WORK)))
    sound = np.minimum.reduce([events.step, events.chunk, events.unit])[works] >= 0
    if spare := len(works) - int(np.count_nonzero(sound)):
        left_out[NO_NUMBERS] += spare
    found: Whole = works[sound]
    return found


def _add(
    collected: Collected, named: Whole, events: _WorkerEvents, works: Whole, ranks: int,
    v_shaped: bool,
) -> None:  # fmt: skip
    copy, rank = (named[:, place].astype(np.int32)[events.worker] for place in (0, 1))
    start, end = events.start, events.end
    chunks = 1 + int(events.chunk[works].max(initial=0))
    rank_at = rank_of(np.arange(ranks * chunks), ranks, v_shaped)
    stage = np.full(len(rank), -1, np.int32)
    stage[works] = stage_of(rank[works], events.chunk[works], ranks, v_shaped)
    kind = np.array([WORK.get(name, TRANSFERS.get(name, 0)) for name in range(len(NAMES))])
    kind = kind[events.name[works]]
    collected.many(
        "actions", events.step[works], copy[works], rank[works], kind, stage[works],
        events.unit[works], 0, ALONE, start[works], end[works], NAN, NAN, NAN,
    )  # fmt: skip
    last = ranks * chunks - 1
    rows, group = grouped([copy, rank, np.maximum(events.step, 0)])
    for name, transfer in TRANSFERS.items():
        forward = transfer in transfer_of(Kind.F)
        spec = KINDS[transfer]
        # A step's k-th call belongs to the k-th action that needs one.
        done = works[kind == (Kind.F if forward else Kind.B)]
        other = stage[done] + (1 if forward == spec.sends else -1)
        there = (other >= 0) & (other <= last)
        there[there] = rank_at[other[there]] != rank[done[there]]
        needs = done[there]
        calls = np.flatnonzero((events.name == name) & (events.step >= 0))
        needs = needs[np.lexsort((events.unit[needs], stage[needs], start[needs], group[needs]))]
        calls = calls[np.lexsort((end[calls], start[calls], group[calls]))]
        needed, called = (np.bincount(group[each], minlength=len(rows)) for each in (needs, calls))
        alike = needed == called
        if wrong := int(np.count_nonzero(~alike & (called > 0))):
            collected.left_out[MORE_CALLS] += wrong
        whose, which = needs[alike[group[needs]]], calls[alike[group[calls]]]
        key = (
            events.step[which], copy[which], forward, stage[whose] + spec.away * spec.receives,
            events.unit[whose], 0, rank[which],
        )  # fmt: skip
        if spec.sends:
            collected.many("sends", *key, start[which])
        else:
            collected.many("receives", *key, start[which], start[which], end[which])
    gc = np.flatnonzero((events.name == GC) & (end > start))
    cause = PAUSES.index("garbage-collection")
    collected.many("pauses", copy[gc], rank[gc], cause, start[gc], end[gc])
