"""NDTimeline of veScale, as ByteDance publishes it: one Chrome trace of all workers.

A process is a data-parallel rank. Threads are called ``PP rank 1, TP rank 0, compute`` or
``…, pp-comm``. Events called ``forward-compute`` and ``backward-compute`` have their step, chunk
and microbatch in ``args``; those of transfers count calls. Times are in microseconds; workers have
aligned their clocks before they wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.core.kind_relations import transfer_of
from debubble.core.kinds import KINDS, Kind
from debubble.diagnosis.observed import ALONE, PAUSES, Observed
from debubble.diagnosis.readers.chunks import Row, is_v_shaped, rank_of, stage_of
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.paired import packed
from debubble.diagnosis.readers.scan import Scan, events_of, number, whole
from debubble.diagnosis.readers.stream import LeftOut

NAME = "ndtimeline"
Times = NDArray[np.float64]
Whole = NDArray[np.int64]
MICROSECONDS = 1e-6

_WORDS = (
    b"forward-compute", b"backward-compute", b"forward-send", b"forward-recv", b"backward-send",
    b"backward-recv", b"gc",
)  # fmt: skip
NAMES = {name: number for number, name in enumerate(_WORDS)}
"""Numbers of the names of events."""

WORK = {0: Kind.F, 1: Kind.B}
TRANSFERS = {2: Kind.SEND_F, 3: Kind.RECV_F, 4: Kind.SEND_B, 5: Kind.RECV_B}
GC = 6

WANTED = re.compile(rb'"name"\s*:\s*"(?:' + b"|".join(_WORDS) + rb')"')
_NAME = b'"thread_name"'


def _usual(comma: bytes, colon: bytes) -> re.Pattern[bytes]:
    """An event as the writer has it, by its name and the text with its numbers.

    That is several times as fast as JSON. Of an event written in another way it has the name alone.
    """
    texts = [rb'"cat":"[^"]*+"', rb'"pid":(\d++', rb'"tid":\d++', rb'"ts":\d++\.\d++',
             rb'"dur":\d++\.\d++', rb'"ph":"X"', rb'"args":\{"step":\d++', rb'"model_chunk":-?\d++',
             rb'"mb_id":-?\d++)']  # fmt: skip
    rest = comma.join(text.replace(b'":', b'"' + colon) for text in texts)
    names = b"|".join(_WORDS)
    return re.compile(rb'"name"\s*:\s*"(' + names + rb')"(?:' + comma + rest + rb"[,}])?")


_USUAL = _usual(b",", b":"), _usual(b", ", b": ")

NUMBERS = 9
"""In a usual event: process, thread, start and its fraction, length and its fraction, step, chunk,
microbatch."""

MOST_WHOLE = 1 << 31
"""Least process, step, chunk or microbatch that is none."""

MOST_DIGITS = 18
_POWERS = 10.0 ** np.arange(MOST_DIGITS + 1)

_THREAD = re.compile(r"PP rank (\d{1,6}), TP rank (\d{1,6}), ([\w-]{1,40})", re.ASCII)

_COMPUTE = re.compile(rb"PP rank \d{1,6}, TP rank \d{1,6}, compute")

_TYPES = (np.int8, np.int32, np.int64, np.float64, np.float64, np.int32, np.int32, np.int32)
"""Types of the columns of :class:`_Events`."""

NO_WORKER = "events of threads that are not called 'PP rank 0, TP rank 0, …'"
TENSOR = "events of tensor-parallel ranks other than the first of each worker"
NO_NUMBERS = "events without whole numbers as step, model_chunk and mb_id"
NO_TIME = "events without numbers as ts and dur"
MORE_CALLS = "steps of a worker with another number of transfers than its actions need"


class _Events(NamedTuple):
    """Columns of events; `name` indexes :data:`NAMES`, `worker` is where one was read."""

    name: Whole
    process: Whole
    thread: Whole
    start: Times
    length: Times
    step: Whole
    chunk: Whole
    unit: Whole


def recognises(head: bytes) -> bool:
    """Whether this is such a file, by its beginning."""
    work = b'-compute"' in head and b'"mb_id"' in head
    return work or _COMPUTE.search(head) is not None


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read one file, or several with some of the workers each.

    Raises
    ------
    FormatError
        When no event tells of an action.
    """
    found = [events for path in files for events in _read_file(path, left_out)]
    if not found:
        raise FormatError(f"{where}: no thread is called 'PP rank 0, TP rank 0, compute'")
    worker, events = _first_tensor_ranks(found, left_out)
    ranks = int(worker[:, 1].max()) + 1
    works = _works(events, left_out)
    v_shaped = is_v_shaped(_first_units(worker, events, works, ranks), ranks)
    collected = Collected(where, left_out)
    _add(collected, worker, events, works, ranks, v_shaped)
    return collected.observed(
        NAME,
        {
            "rank": "names of threads",
            "copy": "process",
            "stage": "model_chunk and rank, placed " + ("in a V" if v_shaped else "round by round"),
            "microbatch": "mb_id of actions; transfers in order of their calls",
            "step": "step of the event",
            "clock": "of every worker, aligned by the writer",
        },
        unit=MICROSECONDS, clocks="hosts",
    )  # fmt: skip


def _read_file(path: Path, left_out: LeftOut) -> Iterator[tuple[Whole, _Events]]:
    """Events of a file with their workers: copy, rank and tensor-parallel rank."""
    scan = Scan(path, left_out)
    threads: dict[tuple[int, int], re.Match[str]] = {}
    names: dict[Any, int] = {}
    found = []
    for block in scan.blocks():
        usual = _columns(block)
        found.append(_decoded(scan, block, names, left_out) if usual is None else usual)
        if _NAME in block:
            texts = [text for text in events_of(block) if _NAME in text]
            for event in scan.decode_all(texts):
                process, thread = whole(event.get("pid")), _thread(event.get("tid"), names)
                args = event.get("args")
                match = _THREAD.match(str(args.get("name"))) if isinstance(args, dict) else None
                if match and thread is not None:
                    threads[process, thread] = match
    if not found:
        return
    events = _joined(found)
    place = packed([events.process, events.thread])
    _, first, number = np.unique(place, return_index=True, return_inverse=True)
    of = np.full((len(first), 3), -1)
    for at, row in enumerate(first.tolist()):
        process, thread = int(events.process[row]), int(events.thread[row])
        if (match := threads.get((process, thread))) is not None:
            of[at] = process, int(match[1]), int(match[2])
    worker = of[number]
    known = worker[:, 0] >= 0
    if spare := len(known) - int(np.count_nonzero(known)):
        left_out[NO_WORKER] += spare
    if known.any():
        yield worker[known], _taken(events, known)


def _columns(block: bytes) -> _Events | None:
    """Events as the writer has them; None where some are written in another way."""
    for pattern in _USUAL:
        found = pattern.findall(block)
        if not found:
            return _events(np.zeros((len(_TYPES), 0)))
        if all(map(itemgetter(1), found)):
            break
    else:
        return None
    values, digits = _numbers(b" ".join(map(itemgetter(1), found)))
    if digits.max() > MOST_DIGITS:
        return None
    names = np.array(list(map(NAMES.__getitem__, map(itemgetter(0), found))), dtype=np.float64)
    values, fraction = values.reshape(-1, NUMBERS).T, _POWERS[digits].reshape(-1, NUMBERS).T
    if np.delete(values, (1, 2, 3, 4, 5), axis=0).max() >= MOST_WHOLE:
        return None
    start, length = values[2] + values[3] / fraction[3], values[4] + values[5] / fraction[5]
    return _events([names, values[0], values[1], start, length, *values[6:]])


def _numbers(text: bytes) -> tuple[Times, Whole]:
    """All whole numbers of a text, and how many digits each has."""
    characters = np.frombuffer(b" " + text, np.uint8)
    digit = characters - ord("0")
    place = np.flatnonzero(digit < 10)
    first = np.concatenate([[0], np.flatnonzero(place[1:] - place[:-1] > 1) + 1])
    begin, lengths = place[first], np.diff(first, append=len(place))
    power = np.repeat(begin + lengths - 1, lengths) - place
    values = np.add.reduceat(digit[place] * _POWERS.take(power, mode="clip"), first)
    return np.where(characters[begin - 1] == ord("-"), -values, values), lengths


def _events(columns: Iterable[Times]) -> _Events:
    typed: list[Any] = [c.astype(t) for c, t in zip(columns, _TYPES, strict=True)]
    return _Events(*typed)


def _taken(events: _Events, keep: NDArray[np.bool_]) -> _Events:
    if keep.all():
        return events
    columns: list[Any] = [column[keep] for column in events]
    return _Events(*columns)


def _joined(found: Sequence[_Events]) -> _Events:
    if len(found) == 1:
        return found[0]
    columns: list[Any] = [np.concatenate(each) for each in zip(*found, strict=True)]
    return _Events(*columns)


def _decoded(scan: Scan, block: bytes, names: dict[Any, int], left_out: LeftOut) -> _Events:
    """Events written in another way, one by one."""
    rows = []
    for event in scan.decode_all([text for text in events_of(block) if WANTED.search(text)]):
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
    return _events(np.array(rows, dtype=np.float64).reshape(-1, len(_TYPES)).T)


def _thread(value: Any, names: dict[Any, int]) -> int | None:
    """A number for a thread, negative where it has a name; None for what is none."""
    if isinstance(value, str):
        return names.setdefault(value, -1 - len(names))
    return value if type(value) is int and abs(value) < 1 << 50 else None


def _first_tensor_ranks(
    found: Sequence[tuple[Whole, _Events]], left_out: LeftOut
) -> tuple[Whole, _Events]:
    """Events of the first tensor-parallel rank of each worker: all of them do the same."""
    worker = np.concatenate([one for one, _ in found])
    events = _joined([each for _, each in found])
    _, place = np.unique(packed([worker[:, 0], worker[:, 1]]), return_inverse=True)
    first = np.full(int(place.max()) + 1, 1 << 30)
    np.minimum.at(first, place, worker[:, 2])
    keep = worker[:, 2] == first[place]
    if spare := len(keep) - int(np.count_nonzero(keep)):
        left_out[TENSOR] += spare
    return worker[keep], _taken(events, keep)


def _works(events: _Events, left_out: LeftOut) -> Whole:
    """The rows that are actions with all of their numbers."""
    works = np.flatnonzero(np.isin(events.name, list(WORK)))
    sound = np.minimum.reduce([events.step, events.chunk, events.unit])[works] >= 0
    if spare := len(works) - int(np.count_nonzero(sound)):
        left_out[NO_NUMBERS] += spare
    found: Whole = works[sound]
    return found


def _first_units(worker: Whole, events: _Events, works: Whole, ranks: int) -> list[Row]:
    """Actions of the first microbatch on the first and last rank of a copy: they show a V."""
    here = works[(worker[works, 0] == 0) & (events.unit[works] == 0) & (events.chunk[works] < 2)]
    here = here[np.isin(worker[here, 1], (0, ranks - 1))]
    if not events.chunk[here].any():
        return []
    end = events.start + events.length
    columns = (
        events.step, worker[:, 1], events.name, events.chunk, events.unit, events.start, end
    )  # fmt: skip
    rows = zip(*(column[here].tolist() for column in columns), strict=True)
    return [(step, rank, WORK[name], *rest) for step, rank, name, *rest in rows]


def _add(
    collected: Collected, worker: Whole, events: _Events, works: Whole, ranks: int, v_shaped: bool
) -> None:
    copy, rank = worker[:, 0], worker[:, 1]
    start = events.start * MICROSECONDS
    end = (events.start + events.length) * MICROSECONDS
    chunks = 1 + int(events.chunk[works].max(initial=0))
    stage_at = np.array([[stage_of(r, c, ranks, v_shaped) for c in range(chunks)]
                         for r in range(ranks)])  # fmt: skip
    rank_at = np.array([rank_of(s, ranks, v_shaped) for s in range(ranks * chunks)])
    stage = np.full(len(rank), -1)
    stage[works] = stage_at[rank[works], events.chunk[works]]
    kind = np.array([WORK.get(name, TRANSFERS.get(name, 0)) for name in range(len(NAMES))])
    kind = kind[events.name]
    collected.many(
        "actions", events.step[works], copy[works], rank[works], kind[works], stage[works],
        events.unit[works], 0, ALONE, start[works], end[works], NAN, NAN, NAN,
    )  # fmt: skip
    last = ranks * chunks - 1
    group = packed([copy, rank, np.maximum(events.step, 0)])
    for name, transfer in TRANSFERS.items():
        forward = transfer in transfer_of(Kind.F)
        spec = KINDS[transfer]
        # A step's k-th call belongs to the k-th action that needs one.
        done = works[kind[works] == (Kind.F if forward else Kind.B)]
        other = stage[done] + (1 if forward == spec.sends else -1)
        there = (other >= 0) & (other <= last)
        there[there] = rank_at[other[there]] != rank[done[there]]
        needs = done[there]
        calls = np.flatnonzero((events.name == name) & (events.step >= 0))
        needs = needs[np.lexsort((events.unit[needs], stage[needs], start[needs], group[needs]))]
        calls = calls[np.lexsort((end[calls], start[calls], group[calls]))]
        at, wrong = _alike(group[needs], group[calls])
        if wrong:
            collected.left_out[MORE_CALLS] += wrong
        whose, which = needs[at[0]], calls[at[1]]
        key = (
            events.step[which], copy[which], forward, stage[whose] + spec.away * spec.receives,
            events.unit[whose], 0, rank[which],
        )  # fmt: skip
        if spec.sends:
            collected.many("sends", *key, start[which])
        else:
            collected.many("receives", *key, start[which], start[which], end[which])
    gc = np.flatnonzero((events.name == GC) & (events.length > 0))
    cause = PAUSES.index("garbage-collection")
    for at_gc in gc.tolist():
        place = int(copy[at_gc]), int(rank[at_gc])
        collected.pause(*place, cause, float(start[at_gc]), float(end[at_gc]))


def _alike(one: Whole, two: Whole) -> tuple[tuple[Whole, Whole], int]:
    """Rows of the groups that have as many in both, and how many groups of the second have not."""
    groups, place = np.unique(np.concatenate([one, two]), return_inverse=True)
    ones, twos = place[: len(one)], place[len(one) :]
    count, other = (
        np.bincount(ones, minlength=len(groups)),
        np.bincount(twos, minlength=len(groups)),
    )
    same = count == other
    wrong = int(np.count_nonzero(~same & (other > 0)))
    return (np.flatnonzero(same[ones]), np.flatnonzero(same[twos])), wrong
