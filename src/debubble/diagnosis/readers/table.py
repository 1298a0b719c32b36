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

Other columns are left out. A line whose action is a transfer is one end of a message: ``0SEND_F1``
starts when the send was posted; ``1RECV_F1`` starts when the receive was posted, has ``waited``
when somebody began to wait for it and ends when it was there. A line whose action is
``garbage-collection`` or ``memory`` is a pause of the rank's host.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.core.kinds import COMPUTE_KINDS, FORWARD_KINDS, KINDS, Kind
from debubble.diagnosis.cancellation import check_cancelled
from debubble.diagnosis.observed import ALONE, PAUSES, Observed
from debubble.diagnosis.readers.action_names import actions_named
from debubble.diagnosis.readers.collected import Collected
from debubble.diagnosis.readers.csv_cells import Cells, cells_of, texts_of
from debubble.diagnosis.readers.decimals import decimal, times_less
from debubble.diagnosis.readers.messages import packed, some_of_each
from debubble.diagnosis.readers.stream import LeftOut
from debubble.interchange.text import shown

NAME = "table"
UNITS = {"": 1.0, "_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}
PLACE = ("step", "copy", "rank")
TIMES = ("start", "end", "waited", "issued", "busy")
REQUIRED = ("rank", "action", "start", "end")
OPTIONAL = ("step", "copy", "waited", "issued", "busy", "host")

_UNIT = re.compile(f"({'|'.join(TIMES)})(_m?s|_us|_ns)?")
_WHOLES = re.compile(r"(?:\d{1,9},)*\d{1,9}", re.ASCII)
_WHOLE = re.compile(r"\d{1,9}", re.ASCII)
MOST_NAMES = 1 << 16
"""Names that are kept; with more than that all are looked up again."""

WRONG = "lines that are no action with a rank and times"

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


def recognizes(head: bytes) -> bool:
    """Return whether a file begins like one of this format, by its first line."""
    first = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    names = {name.strip().lower() for name in first.split(",")}
    return {"rank", "action"} <= names and any(_UNIT.fullmatch(name) for name in names)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the lines of all files.

    Raises
    ------
    FormatError
        When a column is missing or unknown, or no line is an action.
    """
    table = _Table(Collected(where, left_out))
    scale = 1.0
    for path in files:
        texts = texts_of(path, left_out)
        header, _, first = next(texts, "").partition("\n")
        columns, scale = _columns(path, _header(path, header), left_out)
        for cells in cells_of(chain([first] if first else [], texts), columns):
            check_cancelled()
            table.add(cells, scale)
    if table.wrong:
        left_out[WRONG] += table.wrong
    hosts = table.hosts
    return table.collected.observed(
        NAME,
        {
            "rank": "column rank",
            "stage": "column action",
            "step": "column step",
            "copy": "column copy",
            "clock": "one for all ranks of a host" if hosts else "one for all ranks",
        },
        unit=scale, hosts=hosts, clocks="hosts" if len(set(hosts.values())) > 1 else "one",
    )  # fmt: skip


ACTION, SEND, RECEIVE, PAUSE, NOTHING = range(5)
"""Sorts of things that a name stands for."""

_Thing = tuple[int, int, int, int, int]
"""Sort, kind or cause of a pause, stage, microbatch and slice."""


class _Numbering(dict[str, int]):
    """Numbers of texts in order of their first occurrence."""

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        return number

    def codes(self, texts: Sequence[str]) -> Whole:
        """Return the number of each text."""
        return np.fromiter(map(self.__getitem__, texts), np.int64, len(texts))


class _Names:
    """Numbers of the names of actions, and the things that they stand for.

    Attributes
    ----------
    things
        Things of all names, one after the other: shape ``(things, fields)``.
    counts
        Things that each name stands for: none, one, or the actions of a pair.
    firsts
        First thing of each name.
    """

    def __init__(self) -> None:
        self._numbers = _Numbering()
        self.things = np.zeros((0, 5), np.int64)
        self.counts = np.zeros(0, np.int64)
        self.firsts = np.zeros(0, np.int64)

    def codes(self, texts: Sequence[str]) -> Whole:
        """Return the number of each name; numbers hold until the next call."""
        if len(self._numbers) > MOST_NAMES:
            self.__init__()  # type: ignore[misc]
        codes = self._numbers.codes(texts)
        if len(self._numbers) > len(self.counts):
            new = [_things(text) for text in islice(self._numbers, len(self.counts), None)]
            things = np.array(list(chain.from_iterable(new)), np.int64).reshape(-1, 5)
            self.things = np.concatenate([self.things, things])
            self.counts = np.append(self.counts, list(map(len, new)))
            self.firsts = np.cumsum(self.counts) - self.counts
        return codes


def _things(name: str) -> list[_Thing]:
    """Return the things that a name stands for."""
    if name in PAUSES:
        return [(PAUSE, PAUSES.index(name), 0, 0, 0)]
    named = actions_named(name)
    if len(named) > 1:
        return [(ACTION, *one) for one in named]
    return [_thing(*one) for one in named]


def _thing(kind: Kind, stage: int, microbatch: int, slice: int) -> _Thing:
    spec = KINDS[kind]
    if spec.sends:
        return SEND, kind, stage, microbatch, slice
    if spec.receives:
        # The stage that made what is received.
        return RECEIVE, kind, stage + spec.away, microbatch, slice
    return ACTION if kind in COMPUTE_KINDS else NOTHING, kind, stage, microbatch, slice


class _Things(NamedTuple):
    """Things of one sort by their columns; times in seconds."""

    step: Whole
    copy: Whole
    rank: Whole
    kind: Whole
    stage: Whole
    microbatch: Whole
    slice: Whole
    pair: Whole
    start: Floats
    end: Floats
    waited: Floats
    issued: Floats
    busy: Floats


class _Table:
    """Lines in the making.

    Attributes
    ----------
    hosts
        Host by copy and rank.
    wrong
        Lines that are no action.
    """

    def __init__(self, collected: Collected) -> None:
        self.collected = collected
        self.hosts: dict[tuple[int, int], str] = {}
        self.wrong = 0
        self._names = _Names()
        self._lines = 0
        self._zero: Decimal | None = None

    def add(self, cells: Cells, scale: float) -> None:
        """Add some lines; `scale` is the seconds of the file's unit."""
        count = len(cells["rank"])
        if self._zero is None:
            starts = map(decimal, cells["start"])
            self._zero = next((start for start in starts if start is not None), None)
        zero = self._zero or Decimal()
        place = [_numbers(name, cells.get(name), count) for name in PLACE]
        times = [
            times_less(cells[name], Decimal() if name == "busy" else zero) * scale
            if name in cells else np.full(count, np.nan)
            for name in TIMES
        ]  # fmt: skip
        placed = (np.minimum.reduce(place) >= 0) & ~np.isnan(times[0])
        self._add_hosts(cells.get("host"), place[1], place[2], placed)
        code = self._names.codes(cells["action"])
        things_of = self._names.counts[code]
        sound = placed & (things_of > 0)
        self.wrong += count - int(np.count_nonzero(sound))
        # All parts of a pair have the number of their line.
        pair = np.where(things_of > 1, np.arange(self._lines, self._lines + count), ALONE)
        self._lines += count
        for part in range(things_of.max(initial=0)):
            rows = np.flatnonzero(sound & (things_of > part))
            thing = self._names.firsts[code[rows]] + part
            sorts = self._names.things[thing, 0]
            for sort in (ACTION, SEND, RECEIVE, PAUSE):
                some = sorts == sort
                at = rows[some]
                if len(at):
                    self._add_things(sort, _Things(
                        *(column[at] for column in place),
                        *self._names.things[thing[some], 1:].T,
                        *(column[at] for column in (pair, *times)),
                    ))  # fmt: skip

    def _add_things(self, sort: int, things: _Things) -> None:
        """Add things of one sort."""
        step, copy, rank, kind, stage, microbatch, slice, _, start, end, waited, *_ = things
        carried = step, copy, np.isin(kind, FORWARD_KINDS), stage, microbatch, slice, rank, start
        if sort == ACTION:
            self.collected.many(
                "actions", *things[: things._fields.index("waited")], things.issued, waited,
                things.busy,
            )  # fmt: skip
        elif sort == SEND:
            self.collected.many("sends", *carried)
        elif sort == RECEIVE:
            self.collected.many("receives", *carried, waited, end)
        else:
            with np.errstate(invalid="ignore"):
                self.wrong += int(np.count_nonzero(~(end >= start)))
            self.collected.many("pauses", copy, rank, kind, start, end)

    def _add_hosts(
        self, hosts: list[str] | None, copy: Whole, rank: Whole, placed: NDArray[np.bool_]
    ) -> None:
        if hosts is None:
            return
        code, texts = _coded(hosts)
        rows = np.flatnonzero(placed & (np.array(texts) != "")[code])
        # The last line counts, as it would line by line.
        for at in np.sort(
            rows[some_of_each(packed([copy[rows], rank[rows], code[rows]]))]
        ).tolist():
            self.hosts[int(copy[at]), int(rank[at])] = hosts[at]


def _coded(texts: Sequence[str]) -> tuple[Whole, list[str]]:
    """Return a number for each text, and the different texts by their numbers."""
    if texts and texts.count(texts[0]) == len(texts):
        return np.zeros(len(texts), np.int64), [texts[0]]
    numbers = _Numbering()
    return numbers.codes(texts), list(numbers)


def _numbers(name: str, texts: Sequence[str] | None, count: int) -> Whole:
    """Return steps, copies or ranks; −1 for what is none."""
    missing = -1 if name == "rank" else 0
    if texts is None:
        return np.full(count, missing)
    joined = ",".join(texts)
    if _WHOLES.fullmatch(joined):
        return np.fromstring(joined, np.int64, sep=",")
    code, different = _coded(texts)
    values = [
        int(text) if _WHOLE.fullmatch(text) else missing if not text else -1 for text in different
    ]
    return np.array(values, np.int64)[code]


def _header(path: Path, line: str) -> list[str]:
    """Return the cells of a file's first line."""
    try:
        return next(csv.reader([line]), [])
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
