"""A plain table: CSV with one action a line, for writers of no other known format.

Columns, in any order; the first line names them:

``rank``, ``action``, ``start``, ``end``
    The pipeline rank, the action as PyTorch writes it (``0F3``, ``3B1``, ``0F3.1`` for slice 1,
    ``(0F3;3B1)OVERLAP_F_B``), and when it computed. Times are in seconds; ``start_ms`` and
    ``end_ms`` are in milliseconds, ``_us`` and ``_ns`` likewise.
``step``, ``copy``
    The optimizer step and the data-parallel copy; 0 where the column is absent or empty.
``waited``, ``issued``, ``busy``
    When its input was there, when the host began with it, and how long the device worked; they
    take the same unit as ``start``.
``host``
    Where the rank ran: ranks of one host share a clock. Without it all ranks do.
``global_rank``
    The rank in the whole job.

Other columns are left out. A line whose action is a transfer is one end of a message: ``0SEND_F1``
starts when the send was posted; ``1RECV_F1`` starts when the receive was posted, has ``waited``
when somebody began to wait for it and ends when it was there. A line whose action is
``garbage-collection`` or ``memory`` is a pause of the rank's host.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, islice, zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.core.kinds import COMPUTE_KINDS, FORWARD_KINDS, KINDS, Kind
from debubble.core.units import counted
from debubble.diagnosis.cancellation import check_cancelled
from debubble.diagnosis.observed import ALONE, PAUSES, Location, Observed, Whole
from debubble.diagnosis.readers.action_names import actions_named
from debubble.diagnosis.readers.collected import Collected
from debubble.diagnosis.readers.decimals import decimal, numbers_less
from debubble.diagnosis.readers.messages import packed, some_of_each
from debubble.diagnosis.readers.stream import LeftOut, lines
from debubble.interchange.text import shown

NAME = "table"
MARKS: tuple[bytes, ...] = ()
UNITS = {"": 1.0, "_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}
PLACE = ("step", "copy", "rank")
TIMES = ("start", "end", "waited", "issued", "busy")
REQUIRED = ("rank", "action", "start", "end")
OPTIONAL = ("step", "copy", "waited", "issued", "busy", "host", "global_rank")

_UNIT = re.compile(f"({'|'.join(TIMES)})(_m?s|_us|_ns)?")
_WHOLE = re.compile(r"-?\d{1,19}|", re.ASCII)
MOST = 10**9
"""Exclusive limit of steps, copies and ranks."""

BATCH = 8_000
"""Rows of unlike lines that are read at a time."""

PLAIN = bytes(set(range(33, 127)) - set(b'",'))
"""Letters of cells that need no quotes and have no blanks."""

NO_ROW = "\ufffd"
"""A cell of a row that is none of a CSV."""

WRONG = "lines that are no action with a rank and times"

Cells = dict[str, list[str]]
"""Cells of some rows by their columns, without blanks around them."""


def recognizes(head: bytes) -> bool:
    """Return whether a file begins like one of this format, by its first line."""
    first = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    names = {name.strip().lower() for name in first.split(",")}
    return {"rank", "action"} <= names and any(_UNIT.fullmatch(name) for name in names)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the lines of all files.

    Raise FormatError when a column is missing or unknown, or no line is an action.
    """
    table = _Table(Collected(where, left_out))
    scale = 1.0
    for path in files:
        # A file cut by a full disk may have null bytes.
        pieces = (piece.replace(b"\0", b"") for piece in lines(path, left_out))
        header, _, first = next(pieces, b"").partition(b"\n")
        names = _header(path, header)
        columns, scale = _columns(path, names, left_out)
        for cells in _cells_of(chain([first] if first else [], pieces), names, columns):
            check_cancelled()
            table.add(cells, scale, path)
    if table.wrong:
        if not table.right:
            raise FormatError(f"{where}: {table.refusal}")
        left_out[WRONG] += table.wrong
    hosts = {one.host for one in table.locations.values()} - {None}
    return table.collected.observed(
        NAME,
        {
            "rank": "column rank",
            "stage": "column action",
            "step": "column step",
            "copy": "column copy",
            "clock": "one for all ranks of a host" if hosts else "one for all ranks",
        },
        unit=scale, locations=table.locations,
        clocks="hosts" if len(hosts) > 1 else "one",
    )  # fmt: skip


def _cells_of(
    pieces: Iterator[bytes], header: Sequence[str], columns: Mapping[str, int]
) -> Iterator[Cells]:
    """Yield the cells of rows that are not empty, some rows at a time."""
    for piece in pieces:
        piece = piece.replace(b"\r", b"").removesuffix(b"\n") + b"\n"
        if (alike := _alike(piece, columns)) is not None:
            yield alike
            continue
        # A quoted cell may go on in the next line, so csv takes all that follow.
        every = chain([piece], pieces) if b'"' in piece else [piece]
        texts = (each.replace(b"\r", b"").decode("utf-8", "replace") for each in every)
        rows = _records(line for text in texts for line in text.removesuffix("\n").split("\n"))
        while some := list(islice(rows, BATCH)):
            filled = [row for row in some if any(map(str.strip, row))]
            # The header makes the columns that all rows lack.
            cells = list(zip_longest(header, *filled, fillvalue=""))
            yield {name: [*map(str.strip, cells[at][1:])] for name, at in columns.items()}


def _alike(piece: bytes, columns: Mapping[str, int]) -> Cells | None:
    """Return the cells of lines that have equally many and no blanks; None for other lines."""
    width = piece.partition(b"\n")[0].count(b",") + 1
    marks = piece.translate(None, PLAIN)
    if marks != (b"," * (width - 1) + b"\n") * piece.count(b"\n"):
        return None
    cells = piece.decode("ascii").replace("\n", ",").split(",")
    if max(columns.values()) >= width:
        return None
    found = {name: cells[at:-1:width] for name, at in columns.items()}
    # A line of commas only is empty in all columns.
    return found if any(map(all, found.values())) else None


def _records(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the rows of lines; a quoted cell may go on in the next line."""
    rows = csv.reader(lines)
    while True:
        try:
            yield from rows
        except csv.Error:
            yield [NO_ROW]
        else:
            return


ACTION, SEND, RECEIVE, PAUSE, NOTHING = range(5)
"""Sorts of things that a name stands for."""

_Thing = tuple[int, int, int, int, int]
"""Sort, kind or cause of a pause, stage, microbatch and slice."""


@functools.lru_cache(maxsize=1 << 16)
def _things(name: str) -> tuple[_Thing, ...]:
    """Return the things that a name stands for: none, one, or the actions of a pair."""
    if name in PAUSES:
        return ((PAUSE, PAUSES.index(name), 0, 0, 0),)
    named = actions_named(name)
    if len(named) > 1:
        return tuple((ACTION, *one) for one in named)
    return tuple(_thing(*one) for one in named)


def _thing(kind: Kind, stage: int, microbatch: int, slice: int) -> _Thing:
    spec = KINDS[kind]
    if spec.sends:
        return SEND, kind, stage, microbatch, slice
    if spec.receives:
        # The stage that made what is received.
        return RECEIVE, kind, stage + spec.away, microbatch, slice
    return ACTION if kind in COMPUTE_KINDS else NOTHING, kind, stage, microbatch, slice


class _Table:
    """Lines in the making: locations by copy and rank, and the number of lines that are none."""

    def __init__(self, collected: Collected) -> None:
        self.collected = collected
        self.locations: dict[tuple[int, int], Location] = {}
        self.wrong = self.right = 0
        self._first_wrong = ""
        self._lines = 0
        self._zero: Decimal | None = None

    @property
    def refusal(self) -> str:
        """Reason why a table has nothing: the first line and cell that is wrong."""
        return (
            f"none of {counted(self._lines, 'line')} is an action with a rank and times; "
            f"{self._first_wrong}; a line is like 0,0F3,1.25,1.31 (rank, action, start, end)"
        )

    def add(self, cells: Cells, scale: float, path: Path) -> None:
        """Add some lines of a file; `scale` is the seconds of its unit."""
        count = len(cells["rank"])
        if self._zero is None:
            starts = map(decimal, cells["start"])
            self._zero = next((start for start in starts if start is not None), None)
        zero = self._zero or Decimal()
        place = [
            _numbers(name, cells[name]) if name in cells else np.zeros(count, np.int64)
            for name in PLACE
        ]  # fmt: skip
        times = [
            numbers_less(cells[name], Decimal() if name == "busy" else zero) * scale
            if name in cells else np.full(count, np.nan)
            for name in TIMES
        ]  # fmt: skip
        placed = (np.minimum.reduce(place) >= 0) & ~np.isnan(times[0])
        self._add_locations(cells, place[1], place[2], placed, path)
        code, names = _coded(cells["action"])
        of_names = [_things(name) for name in names]
        counts = np.array([len(each) for each in of_names], np.int64)
        things = np.array(list(chain.from_iterable(of_names)), np.int64).reshape(-1, 5)
        first, things_of = (np.cumsum(counts) - counts)[code], counts[code]
        computes = np.array([any(one[0] == ACTION for one in each) for each in of_names], bool)[
            code
        ]
        sound = placed & (things_of > 0) & ~(computes & np.isnan(times[1]))
        right = int(np.count_nonzero(sound))
        self.right += right
        self.wrong += count - right
        if right < count and not self._first_wrong:
            at = int(np.flatnonzero(~sound)[0])
            bad = [
                *(name for name, each in zip(PLACE, place, strict=True) if each[at] < 0),
                *(["action"] if not things_of[at] else []),
                *(name for name, each in zip(TIMES, times, strict=True) if np.isnan(each[at])),
            ]
            cell = cells[bad[0]][at]
            said = shown(cell) if cell else "empty"
            self._first_wrong = f"row {self._lines + at + 1} below the header: {bad[0]} is {said}"
        # All parts of a pair have the number of their line.
        pair = np.where(things_of > 1, np.arange(self._lines, self._lines + count), ALONE)
        self._lines += count
        for part in range(things_of.max(initial=0)):
            rows = np.flatnonzero(sound & (things_of > part))
            thing = things[first[rows] + part]
            for sort in (ACTION, SEND, RECEIVE, PAUSE):
                some = thing[:, 0] == sort
                at = rows[some]
                if len(at):
                    columns = (each[at] for each in (*place, pair, *times))
                    self._add_things(sort, thing[some, 1:].T, *columns)

    def _add_things(
        self, sort: int, thing: Whole, step: Whole, copy: Whole, rank: Whole, pair: Whole,
        *times: NDArray[np.float64],
    ) -> None:  # fmt: skip
        """Add things of one sort; a thing is its kind, stage, microbatch and slice."""
        start, end, waited, issued, busy = times
        if sort == PAUSE:
            with np.errstate(invalid="ignore"):
                self.wrong += int(np.count_nonzero(~(end >= start)))
            self.collected.many("pauses", copy, rank, thing[0], start, end)
        elif sort == ACTION:
            self.collected.many(
                "actions", step, copy, rank, *thing, pair, start, end, issued, waited, busy
            )
        else:
            carried = step, copy, np.isin(thing[0], FORWARD_KINDS), *thing[1:], rank, start
            if sort == SEND:
                self.collected.many("sends", *carried)
            else:
                self.collected.many("receives", *carried, waited, end)

    def _add_locations(
        self, cells: Cells, copy: Whole, rank: Whole, placed: NDArray[np.bool_], path: Path
    ) -> None:
        """Set the location of every rank in some lines; the last line with a value counts."""
        rows = np.flatnonzero(placed)
        keys, texts = [copy[rows], rank[rows]], {}
        for name in ("host", "global_rank"):
            if name in cells:
                code, texts[name] = _coded(cells[name])
                keys.append(code[rows])
        for at in np.sort(some_of_each(packed(keys))).tolist():
            place = int(copy[rows[at]]), int(rank[rows[at]])
            known = self.locations.get(place) or Location(file=str(path))
            value = {name: each[keys[2 + n][at]] for n, (name, each) in enumerate(texts.items())}
            number = value.get("global_rank", "")
            self.locations[place] = Location(
                int(number) if number.isdecimal() and len(number) < 10 else known.global_rank,
                value.get("host") or known.host, known.file,
            )  # fmt: skip


def _coded(column: Sequence[str]) -> tuple[Whole, list[str]]:
    """Return a number for each text, and the different texts by their numbers."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(column))}
    return np.fromiter(map(numbers.__getitem__, column), np.int64, len(column)), list(numbers)


def _numbers(name: str, column: Sequence[str]) -> Whole:
    """Return steps, copies or ranks; −1 for what is none."""
    every = "".join(column)
    if not (every.isascii() and every.isdigit()):
        column = [text if _WHOLE.fullmatch(text) else "none" for text in column]
    number = numbers_less(column, Decimal())
    if name != "rank" and "" in column:
        number[np.array(column) == ""] = 0
    return np.where((number >= 0) & (number < MOST), number, -1).astype(int)


def _header(path: Path, line: bytes) -> list[str]:
    """Return the cells of a file's first line."""
    try:
        return next(csv.reader([line.decode("utf-8", "replace")]), [])
    except csv.Error as error:
        raise FormatError(f"{path}: the first line is none of a CSV: {error}") from None


def _columns(path: Path, header: Sequence[str], left_out: LeftOut) -> tuple[dict[str, int], float]:
    """Return where each column is, and the seconds of the file's unit."""
    found: dict[str, int] = {}
    units: set[str] = set()
    for at, cell in enumerate(header):
        name = cell.strip().lower().lstrip("\ufeff")
        match = _UNIT.fullmatch(name)
        if match:
            name = match[1]
            units.add(match[2] or "")
        if name not in (*REQUIRED, *OPTIONAL):
            left_out[f"columns called {shown(name)}, which says nothing here"] += 1
            continue
        if name in found:
            raise FormatError(f"{path}: column '{name}' is there twice; keep one")
        found[name] = at
    for name in REQUIRED:
        if name not in found:
            raise FormatError(f"{path}: column '{name}' is missing")
    if len(units) > 1:
        raise FormatError(f"{path}: columns of times have several units; give all of them in one")
    return found, UNITS[units.pop()]
