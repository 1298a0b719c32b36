"""NDTimeline of veScale, as ByteDance publishes it: one Chrome trace of all workers.

A process is a data-parallel rank. Threads are called ``PP rank 1, TP rank 0, compute`` or
``…, pp-comm``. Events called ``forward-compute`` and ``backward-compute`` have their step, chunk
and microbatch in ``args``; those of transfers count calls. Times are in microseconds; workers have
aligned their clocks before they wrote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.core.kind_relations import transfer_of
from debubble.core.kinds import KINDS, Kind
from debubble.diagnosis.observed import ALONE, PAUSES, Observed
from debubble.diagnosis.readers.chunks import (
    Calls,
    first_units,
    is_v_shaped,
    placed,
    rank_of,
    stage_of,
)
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.messages import grouped
from debubble.diagnosis.readers.pool import Workers
from debubble.diagnosis.readers.scan import Scan, decode_all, events_of, number, whole
from debubble.diagnosis.readers.stream import LeftOut

NAME = "ndtimeline"
Times = NDArray[np.float64]
Whole = NDArray[np.integer[Any]]
MICROSECONDS = 1e-6

_WORDS = (
    b"forward-compute", b"backward-compute", b"forward-send", b"forward-recv", b"backward-send",
    b"backward-recv", b"gc",
)  # fmt: skip
NAMES = {name: place for place, name in enumerate(_WORDS)}
"""Numbers of the names of events."""

WORK = {0: Kind.F, 1: Kind.B}
TRANSFERS = {2: Kind.SEND_F, 3: Kind.RECV_F, 4: Kind.SEND_B, 5: Kind.RECV_B}
GC = 6

_LETTERS = np.full(1 << 16, GC, np.int8)
"""Names by their ninth and tenth letter, which are the same in no two."""
for _word, _number in NAMES.items():
    _LETTERS[int.from_bytes(_word[8:10], "big")] = _number

WANTED = re.compile(rb'"name"\s*:\s*"(?:' + b"|".join(_WORDS) + rb')"')
_NAME = b'"thread_name"'


def _usual(comma: bytes, colon: bytes) -> re.Pattern[bytes]:
    """An event as the writer has it, from its name to its microbatch.

    That is several times as fast as JSON. Of an event written in another way it has the name alone.
    """
    texts = [rb'"cat":"[^"]*+"', rb'"pid":\d++', rb'"tid":\d++', rb'"ts":\d++\.\d++',
             rb'"dur":\d++\.\d++', rb'"ph":"X"', rb'"args":\{"step":\d++', rb'"model_chunk":-?\d++',
             rb'"mb_id":-?\d++']  # fmt: skip
    rest = comma.join(text.replace(b'":', b'"' + colon) for text in texts)
    names = b"|".join(_WORDS)
    return re.compile(rb'"name"\s*:\s*"((?:' + names + rb')"(?:' + comma + rest + rb"[,}])?)")


_USUAL = _usual(b",", b":"), _usual(b", ", b": ")

MOST = np.array([1 << 31, 1 << 50, *4 * [np.inf], 1 << 31, 1 << 31, 1 << 31])[:, None]
"""Least numbers that no usual event has: process, thread, start and its fraction, length and its
fraction, step, chunk, microbatch."""

MOST_DIGITS = 18
_POWERS = 10.0 ** np.arange(MOST_DIGITS + 1)

_THREAD = re.compile(r"PP rank (\d{1,6}), TP rank (\d{1,6}), ([\w-]{1,40})", re.ASCII)

_COMPUTE = re.compile(rb"PP rank \d{1,6}, TP rank \d{1,6}, compute")

NO_WORKER = "events of threads that are not called 'PP rank 0, TP rank 0, …'"
TENSOR = "events of tensor-parallel ranks other than the first of each worker"
NO_NUMBERS = "events without whole numbers as step, model_chunk and mb_id"
NO_TIME = "events without numbers as ts and dur"
MORE_CALLS = "steps of a worker with another number of transfers than its actions need"


class _Events(NamedTuple):
    """Columns of events; times in seconds.

    `name` indexes :data:`NAMES`; `worker` is where a thread has been read, and what that is.
    """

    name: Whole
    worker: Whole
    step: Whole
    chunk: Whole
    unit: Whole
    start: Times
    end: Times

    @classmethod
    def of(cls, columns: Sequence[Times], worker: Whole) -> _Events:
        """From name, process, thread, start, length, step, chunk and microbatch."""
        name, _, _, start, length, *numbers = columns
        step, chunk, unit = (column.astype(np.int32) for column in numbers)
        end = (start + length) * MICROSECONDS
        return cls(name.astype(np.int8), worker, step, chunk, unit, start * MICROSECONDS, end)

    def taken(self, rows: NDArray[Any]) -> _Events:
        """Some of the events."""
        return _Events(*(column[rows] for column in self))


_ByThread = tuple[list[tuple[int, int]], _Events]
"""Processes and threads, and events of which `worker` tells which of those."""


def recognizes(head: bytes) -> bool:
    """Whether this is such a file, by its beginning."""
    work = b'-compute"' in head and b'"mb_id"' in head
    return work or _COMPUTE.search(head) is not None


def read(where: str, files: Sequence[Path], left_out: LeftOut, workers: Workers) -> Observed:
    """Read one file, or several with some of the workers each.

    Raises
    ------
    FormatError
        When no event tells of an action.
    """
    named, events = _read_files(files, left_out, workers)
    events = _first_tensor_ranks(named, events, left_out)
    if not len(events.name):
        raise FormatError(f"{where}: no thread is called 'PP rank 0, TP rank 0, compute'")
    ranks = int(named[:, 1].max()) + 1
    works = _works(events, left_out)
    v_shaped = is_v_shaped(_first_copy(named, events, works, ranks), ranks)
    collected = Collected(where, left_out)
    _add(collected, named, events, works, ranks, v_shaped)
    # All is in the rows by now.
    del events, works
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
        unit=MICROSECONDS, clocks="hosts",
    )  # fmt: skip


def _read_files(
    files: Sequence[Path], left_out: LeftOut, workers: Workers
) -> tuple[Whole, _Events]:
    """Copy, rank and tensor-parallel rank of all that work, and the events of those."""
    named: list[tuple[int, int, int]] = []
    found: list[_Events] = []
    for path in files:
        _read_file(path, named, found, left_out, workers)
    found = found or [_Events.of(list(np.zeros((8, 0))), np.zeros(0, np.int32))]
    events = _Events(*map(np.concatenate, zip(*found, strict=True)))
    known = events.worker >= 0
    if spare := len(known) - int(np.count_nonzero(known)):
        left_out[NO_WORKER] += spare
        events = events.taken(known)
    return np.array(named, np.int64).reshape(-1, 3), events


def _read_file(
    path: Path, named: list[tuple[int, int, int]], found: list[_Events], left_out: LeftOut,
    workers: Workers,
) -> None:  # fmt: skip
    """Add the events of a file, and who works by its names; the worker of others is -1."""
    # It runs ahead of what is counted here.
    scan = Scan(path, LeftOut())
    threads: dict[tuple[int, int], re.Match[str]] = {}
    names: dict[Any, int] = {}
    places: dict[tuple[int, int], int] = {}
    first = len(found)
    for block, told in workers.each(_read_block, scan.blocks(), left_out):
        pairs, events = told or _by_thread(_decoded(block, names, left_out))
        place = np.array([places.setdefault(pair, len(places)) for pair in pairs], np.int32)
        found.append(events._replace(worker=place[events.worker]))
        if _NAME in block:
            texts = [text for text in events_of(block) if _NAME in text]
            for event in decode_all(texts, left_out):
                process, thread = whole(event.get("pid")), _thread(event.get("tid"), names)
                args = event.get("args")
                match = _THREAD.match(str(args.get("name"))) if isinstance(args, dict) else None
                if match and thread is not None:
                    threads[process, thread] = match
    number = np.full(len(places), -1, np.int32)
    for (process, thread), place_of in places.items():
        if (match := threads.get((process, thread))) is not None:
            number[place_of] = len(named)
            named.append((process, int(match[1]), int(match[2])))
    found[first:] = [each._replace(worker=number[each.worker]) for each in found[first:]]
    left_out.update(scan.left_out)


def _read_block(block: bytes, _: LeftOut) -> _ByThread | None:
    """What a text of whole events tells; None where some are written in another way."""
    columns = _columns(block)
    return None if columns is None else _by_thread(columns)


def _by_thread(columns: Sequence[Times]) -> _ByThread:
    rows, group = grouped([column.astype(np.int64) for column in columns[1:3]])
    threads = (columns[place][rows].astype(int).tolist() for place in (1, 2))
    return list(zip(*threads, strict=True)), _Events.of(columns, group.astype(np.int32))


def _columns(block: bytes) -> Sequence[Times] | None:
    """Columns of events as the writer has them; None where some are written in another way."""
    for pattern in _USUAL:
        texts = pattern.findall(block)
        if not texts:
            return list(np.zeros((8, 0)))
        letters = np.frombuffer(b" " + b" ".join(texts), np.uint8)
        values, digits = _numbers(letters)
        if len(values) == len(MOST) * len(texts):
            break
    else:
        return None
    values, digits = values.reshape(-1, len(MOST)).T, digits.reshape(-1, len(MOST)).T
    if (values >= MOST).any() or digits.max() > MOST_DIGITS:
        return None
    start, length = (values[at] + values[at + 1] / _POWERS[digits[at + 1]] for at in (2, 4))
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    begin = np.cumsum(lengths + 1) - lengths
    names = _LETTERS[(letters[begin + 8].astype(int) << 8) + letters[begin + 9]]
    return names, *values[:2], start, length, *values[6:]


def _numbers(text: NDArray[np.uint8]) -> tuple[Times, Whole]:
    """All whole numbers of a text that begins with none, and how many digits each has."""
    digit = text - ord("0")
    place = np.flatnonzero(digit < 10)
    first = np.flatnonzero(np.diff(place, prepend=-1) > 1)
    begin, lengths = place[first], np.diff(first, append=len(place))
    power = np.repeat(begin + lengths - 1, lengths) - place
    values = np.add.reduceat(digit[place] * _POWERS.take(power, mode="clip"), first)
    return np.where(text[begin - 1] == ord("-"), -values, values), lengths


def _decoded(block: bytes, names: dict[Any, int], left_out: LeftOut) -> Sequence[Times]:
    """The same of events written in another way, one by one."""
    rows = []
    for event in decode_all([text for text in events_of(block) if WANTED.search(text)], left_out):
        process, thread = whole(event.get("pid")), _thread(event.get("tid"), names)
        name, args = NAMES.get(str(event.get("name")).encode()), event.get("args")
        if process < 0 or thread is None or name is None or not isinstance(args, dict):
            continue
        start, length = number(event.get("ts")), number(event.get("dur"))
        if start != start or length != length:
            left_out[NO_TIME] += 1
            continue
        numbers = (whole(args.get(key)) for key in ("step", "model_chunk", "mb_id"))
        rows.append((name, process, thread, start, length, *numbers))
    return list(np.array(rows, dtype=np.float64).reshape(-1, 8).T)


def _thread(value: Any, names: dict[Any, int]) -> int | None:
    """A number for a thread, negative where it has a name; None for what is none."""
    if isinstance(value, str):
        return names.setdefault(value, -1 - len(names))
    return value if type(value) is int and abs(value) < 1 << 50 else None


def _first_tensor_ranks(named: Whole, events: _Events, left_out: LeftOut) -> _Events:
    """Events of the first tensor-parallel rank of each worker: all of them do the same."""
    here = np.unique(events.worker)
    first: dict[tuple[int, int], int] = {}
    for copy, rank, tensor in named[here].tolist():
        first[copy, rank] = min(tensor, first.get((copy, rank), tensor))
    is_first = [first.get((copy, rank)) == tensor for copy, rank, tensor in named.tolist()]
    keep = np.array(is_first, bool)[events.worker]
    if spare := len(keep) - int(np.count_nonzero(keep)):
        left_out[TENSOR] += spare
        events = events.taken(keep)
    return events


def _works(events: _Events, left_out: LeftOut) -> Whole:
    """The rows that are actions with all of their numbers."""
    works = np.flatnonzero(np.isin(events.name, list(WORK)))
    sound = np.minimum.reduce([events.step, events.chunk, events.unit])[works] >= 0
    if spare := len(works) - int(np.count_nonzero(sound)):
        left_out[NO_NUMBERS] += spare
    found: Whole = works[sound]
    return found


def _first_copy(named: Whole, events: _Events, works: Whole, ranks: int) -> Calls:
    """Actions of the first copy that show whether chunks are placed in a V."""
    works = works[events.unit[works] == 0]
    copy, rank, _ = named[events.worker[works]].T
    works, rank = works[copy == 0], rank[copy == 0]
    kind = np.array([*WORK.values()])[events.name[works]]
    calls = Calls(
        events.step[works], rank, kind, events.chunk[works], events.unit[works],
        events.start[works], events.end[works],
    )  # fmt: skip
    return first_units([calls], ranks)


def _add(
    collected: Collected, named: Whole, events: _Events, works: Whole, ranks: int, v_shaped: bool
) -> None:
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
    for at in gc.tolist():
        collected.pause(int(copy[at]), int(rank[at]), cause, float(start[at]), float(end[at]))
