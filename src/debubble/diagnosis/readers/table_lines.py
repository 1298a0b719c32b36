"""Lines of a plain table as columns: by their layouts, and one by one where those are odd."""

from __future__ import annotations

import csv
import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import COMPUTE_KINDS, FORWARD_KINDS, KINDS
from debubble.core.units import read_number
from debubble.diagnosis.observed import ALONE, PAUSES
from debubble.diagnosis.readers.action_names import LIMIT, actions_named
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.layouts import Layout, Number, in_order, layouts, numbered
from debubble.diagnosis.readers.messages import Whole, packed, some_of_each
from debubble.diagnosis.readers.stream import LeftOut

PLACE = ("step", "copy", "rank")
TIMES = ("start", "end", "waited", "issued", "busy")

LONGEST_WHOLE = 9
"""Digits of a step, copy or rank."""

LONGEST_NAMED = 7
"""Digits of a number in the name of an action."""

FEW = 32
"""Lines of a layout that are sooner read one by one."""

_DIGITS = re.compile(r"\d+", re.ASCII)

Times = NDArray[np.float64]

Sort: TypeAlias = Literal["actions", "sends", "receives", "pauses", "nothing"]


class Told(NamedTuple):
    """What a name tells of: one thing, or one of a pair; a pause by its cause."""

    sort: Sort
    kind: int
    stage: int = 0
    microbatch: int = 0
    slice: int = 0
    away: int = 0
    """Stages between the one in the name and the one that made what is received."""


class _Plan(NamedTuple):
    """What lines of one layout have in their columns."""

    told: tuple[Told, ...]
    place: tuple[Number | int, ...]
    times: tuple[Number | None, ...]
    host: str


Header: TypeAlias = tuple[tuple[str, int], ...]
"""Columns and where each is."""


class Piece(NamedTuple):
    """Some whole lines of a file."""

    text: bytes
    columns: Header
    zero: Decimal | None
    """The first start, in the file's unit; None where there is none so far."""
    scale: float
    """Seconds of the file's unit."""


class Lines:
    """Lines of one file."""

    def __init__(self, columns: Header) -> None:
        self.columns = columns
        self._plans: dict[bytes, _Plan | None] = {}

    def cells(self, line: str) -> Mapping[str, str]:
        """The cells of a line by their columns; none where there is nothing in it."""
        return self.named(next(csv.reader([line]), []) if '"' in line else line.split(","))

    def named(self, row: Sequence[str]) -> Mapping[str, str]:
        """Cells by their columns; none where there is nothing in them."""
        if not any(map(str.strip, row)):
            return {}
        return {name: row[at].strip() for name, at in self.columns if at < len(row)}

    def first_start(self, text: bytes) -> Decimal | None:
        """The first start in some lines; None where there is none."""
        for line in text.split(b"\n"):
            try:
                cells = self.cells(line.decode("utf-8", "replace"))
            except csv.Error:
                continue
            start = decimal_of(cells.get("start", ""))
            if start is not None:
                return start
        return None

    def plan(self, text: bytes) -> _Plan | None:
        """What a layout tells; None where each line of it has to be read."""
        if text not in self._plans:
            if len(self._plans) > 1 << 12:
                self._plans.clear()
            self._plans[text] = _plan(self.cells(numbered(text).decode("utf-8", "replace")))
        return self._plans[text]


lines_of = functools.lru_cache(maxsize=4)(Lines)
"""The lines of files with these columns, with what was told of them before."""


class Found(NamedTuple):
    """What many lines tell, in their order."""

    rows: Mapping[Sort, Sequence[NDArray[Any]]]
    """Columns of what there is of a sort; all but the first may be one value for all rows."""
    hosts: Mapping[tuple[int, int], str]
    lines: int
    """How many there are."""
    wrong: int
    """How many tell of nothing."""

    def add_to(self, collected: Collected, hosts: dict[tuple[int, int], str], pairs: int) -> int:
        """Hand over all of it.

        `pairs` is a number from which on no pair has any; returns the next such number.
        """
        hosts |= self.hosts
        for sort, columns in self.rows.items():
            if sort == "pauses":
                for row in zip(*np.broadcast_arrays(*columns), strict=True):
                    collected.pause(*row)
            elif sort == "actions":
                *before, pair = columns[:8]
                numbers = np.where(pair == ALONE, ALONE, pair + pairs)
                collected.many("actions", *before, numbers, *columns[8:])
            elif sort != "nothing":
                collected.many(sort, *columns)
        return pairs + self.lines


def read_lines(piece: Piece, _: LeftOut) -> Found | None:
    """What lines tell; None where a cell may go on in the next line."""
    batch = Batch(lines_of(piece.columns), piece.zero or Decimal(), piece.scale)
    return batch.found() if batch.read(piece.text) else None


def _plan(cells: Mapping[str, str]) -> _Plan | None:
    if not cells:
        return _Plan((), (), (), "")
    place: list[Number | int] = []
    for name in PLACE:
        text = cells.get(name, "")
        is_number = _DIGITS.fullmatch(text)
        place.append(Number("", int(text)) if is_number else whole_of(name, text))
    times = []
    for name in TIMES:
        text = cells.get(name, "")
        number = Number.read(text)
        if _DIGITS.search(text) and (number is None or number.exponent):
            return None
        times.append(number)
    return _Plan(told(cells.get("action", "")), tuple(place), tuple(times), cells.get("host", ""))


class Batch:
    """What many lines tell.

    Attributes
    ----------
    wrong
        How many tell of nothing.
    """

    def __init__(self, known: Lines, zero: Decimal, scale: float) -> None:
        self._known, self._zero, self._scale = known, zero, scale
        self._found: dict[Sort, list[tuple[Any, ...]]] = defaultdict(list)
        self._hosts: list[tuple[int, tuple[int, int], str]] = []
        self._count = 0
        self.wrong = 0

    def read(self, text: bytes) -> bool:
        """Read whole lines; False, and nothing is read, where a cell may go on in the next line."""
        found, odd = layouts(text, _by_line, few=FEW, strict=False)
        lines = text.split(b"\n") if odd else []
        texts = chain((layout.text for layout in found), (lines[at] for at in odd))
        if any(each.count(b'"') % 2 for each in texts):
            return False
        for layout in found:
            plan = self._known.plan(layout.text)
            if plan is None:
                lines = lines or text.split(b"\n")
                odd += layout.at.tolist()
            elif plan.place:
                self._add_layout(layout, plan)
        self.add_rows(
            (at, self._known.cells(lines[at].decode("utf-8", "replace"))) for at in sorted(odd)
        )
        self._count = text.count(b"\n") + 1
        return True

    def _add_layout(self, layout: Layout, plan: _Plan) -> None:
        rows, count = layout.rows, len(layout.at)
        numbers = [each for each in plan.place if isinstance(each, Number)]
        read = iter(rows.wholes(numbers, LONGEST_WHOLE).T)
        place = [next(read) if isinstance(each, Number) else each for each in plan.place]
        *points, busy = plan.times
        read = iter(rows.numbers([each for each in points if each], self._zero).T * self._scale)
        times = [NAN if each is None else next(read) for each in points]
        times.append(rows.numbers([busy])[:, 0] * self._scale if busy else NAN)
        sound = np.full(count, True)
        for each in place:
            sound &= (np.asarray(each) >= 0) & (np.asarray(each) < LIMIT_WHOLE)
        sound &= ~np.isnan(times[0])
        if plan.host:
            self._add_hosts(layout, plan.host, place, sound)
        named = [rows.runs(one[2:5], LONGEST_NAMED).T for one in plan.told]
        for each in named:
            sound &= (each < LIMIT).all(axis=0)
        self._add(layout.at, plan.told, place, named, times, sound)

    def _add_hosts(
        self, layout: Layout, host: str, place: Sequence[Any], sound: NDArray[np.bool_]
    ) -> None:
        """The host of every worker of these lines, by one line that tells it."""
        where = np.flatnonzero(sound)
        copy, rank = (np.broadcast_to(each, len(sound))[where] for each in place[1:])
        for one in some_of_each(packed([copy, rank])).tolist():
            row = int(where[one])
            worker = int(copy[one]), int(rank[one])
            self._hosts.append((int(layout.at[row]), worker, layout.rows.text(row, host)))

    def add_rows(self, rows: Iterable[tuple[int, Mapping[str, str]]]) -> None:
        """Add lines whose cells are read one by one, each with its number."""
        alike: dict[tuple[Told, ...], list[tuple[float, ...]]] = defaultdict(list)
        for at, cells in rows:
            self._count = at + 1
            if not cells:
                continue
            place = [whole_of(name, cells.get(name, "")) for name in PLACE]
            times = []
            for name in TIMES:
                exact = decimal_of(cells.get(name, ""))
                zero = Decimal() if name == "busy" else self._zero
                times.append(NAN if exact is None else float(exact - zero) * self._scale)
            if min(place) >= 0 and not math.isnan(times[0]) and cells.get("host"):
                self._hosts.append((at, (place[1], place[2]), cells["host"]))
            ones = told(cells.get("action", ""))
            key = tuple(one._replace(stage=1, microbatch=1, slice=1) for one in ones)
            alike[key].append((at, *place, *times, *(n for one in ones for n in one[2:5])))
        for key, same in alike.items():
            columns = np.array(same).T
            at, *place = columns[:4].astype(np.int64)
            named = columns[9:].astype(np.int64).reshape(len(key), 3, len(same))
            sound = (np.minimum.reduce(place) >= 0) & ~np.isnan(columns[4])
            self._add(at, key, place, list(named), list(columns[4:9]), sound)

    def _add(
        self, at: Whole, ones: Sequence[Told], place: Sequence[Any], named: Sequence[Whole],
        times: Sequence[Any], sound: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        wrong = ~sound if ones else np.full(len(at), True)
        if ones and ones[0].sort == "pauses":
            with np.errstate(invalid="ignore"):
                backwards = ~(np.asarray(times[1]) >= times[0])
            self.wrong += int(np.count_nonzero(sound & backwards))
        self.wrong += int(np.count_nonzero(wrong))
        keep = slice(None) if not wrong.any() else np.flatnonzero(~wrong)
        at = at[keep]
        if not len(at):
            return
        step, copy, rank, start, end, waited, issued, busy = (
            each[keep] if np.ndim(each) else each for each in (*place, *times)
        )
        for one, numbers in zip(ones, named, strict=True):
            stage, microbatch, part = (
                column[keep] if run else 0 for column, run in zip(numbers, one[2:5], strict=True)
            )
            pair = at if len(ones) > 1 else ALONE
            carried = step, copy, one.kind in FORWARD_KINDS, stage + one.away, microbatch, part
            columns: Mapping[Sort, tuple[Any, ...]] = {
                "actions": (step, copy, rank, one.kind, stage, microbatch, part, pair, start, end,
                            issued, waited, busy),
                "sends": (*carried, rank, start),
                "receives": (*carried, rank, start, waited, end),
                "pauses": (copy, rank, one.kind, start, end),
            }  # fmt: skip
            if one.sort in columns:
                self._found[one.sort].append((at, *columns[one.sort]))

    def found(self) -> Found:
        """All of it in order of the lines."""
        rows = {}
        for sort, blocks in self._found.items():
            _, first, *columns = in_order(blocks)
            # The first column shows how many rows there are.
            rows[sort] = [first.astype(np.int32), *map(_small, columns)]
        hosts = {worker: host for _, worker, host in sorted(self._hosts)}
        return Found(rows, hosts, self._count, self.wrong)


def _small(column: NDArray[Any]) -> NDArray[Any]:
    """A column as one value where all are that, and numbers that all fit 32 bits in those."""
    first = column[0]
    if (column == first).all() or (first != first and np.isnan(column).all()):
        return np.asarray(first)
    small: NDArray[Any] = column if column.dtype == np.float64 else column.astype(np.int32)
    return small


def _by_line(text: bytes) -> list[bytes]:
    return text.split(b"\n")


LIMIT_WHOLE = 10**LONGEST_WHOLE


def whole_of(name: str, text: str) -> int:
    """A step, copy or rank; −1 for what is none."""
    text = text or "0" * (name != "rank")
    return int(text) if _DIGITS.fullmatch(text) and len(text) <= LONGEST_WHOLE else -1


def decimal_of(text: str) -> Decimal | None:
    """A finite number; None for what is none, or has an exponent that decimals have no room for."""
    try:
        return Decimal(text) if math.isfinite(read_number(text)) else None
    except ArithmeticError:
        return None


@functools.lru_cache(maxsize=1 << 16)
def told(text: str) -> tuple[Told, ...]:
    """What a name tells of: nothing, one thing, or the actions of a pair."""
    if text in PAUSES:
        return (Told("pauses", PAUSES.index(text)),)
    named = actions_named(text)
    if len(named) > 1:
        return tuple(Told("actions", *one) for one in named)
    return tuple(_one(*one) for one in named)


def _one(kind: int, stage: int, microbatch: int, part: int) -> Told:
    spec = KINDS[kind]
    numbers = kind, stage, microbatch, part
    if spec.sends:
        return Told("sends", *numbers)
    if spec.receives:
        return Told("receives", *numbers, spec.away)
    return Told("actions" if kind in COMPUTE_KINDS else "nothing", *numbers)


def records(texts: Iterable[bytes]) -> Iterator[list[str] | None]:
    """Rows of text that has cells with line breaks; None for what is no row of a table."""
    rows = csv.reader(
        line for text in texts for line in text.decode("utf-8", "replace").split("\n")
    )
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error:
            yield None
