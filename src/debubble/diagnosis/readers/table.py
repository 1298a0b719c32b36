"""A plain table: CSV with one action a line, for whatever writes no format that is known here.

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
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.core.kinds import COMPUTE_KINDS, FORWARD_KINDS, KINDS
from debubble.diagnosis.observed import ALONE, PAUSES, Observed
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.names import actions_named
from debubble.diagnosis.readers.stream import LeftOut, pieces
from debubble.interchange.text import read_number, shown

NAME = "table"
UNITS = {"": 1.0, "_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}
REQUIRED = ("rank", "action", "start", "end")
OPTIONAL = ("step", "copy", "waited", "issued", "busy", "host")
TIMES = ("start", "end", "waited", "issued", "busy")

_UNIT = re.compile(f"({'|'.join(TIMES)})(_m?s|_us|_ns)?")

_WHOLE_NUMBERS = re.compile(r"(?:\d{1,19},)*+\d{1,19}", re.ASCII)

Times = NDArray[np.float64]
Whole = NDArray[np.integer[Any]]

WRONG = "lines that are no action with a rank and times"


def recognises(head: bytes) -> bool:
    """Whether this is such a file, by its first line."""
    first = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    names = {name.strip().lower() for name in first.split(",")}
    return {"rank", "action"} <= names and any(_UNIT.fullmatch(name) for name in names)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the lines of all files.

    Raises
    ------
    FormatError
        When a column is missing or unknown, or no line tells of an action.
    """
    collected = Collected(where, left_out)
    hosts: dict[tuple[int, int], str] = {}
    zero: Decimal | None = None
    for path in files:
        batches = _batches(path, left_out)
        columns, scale = _columns(path, [cell for (cell,) in next(batches, [])], left_out)
        for cells in batches:
            batch = _Batch(columns, cells, scale)
            if zero is None:
                starts = map(_decimal, batch.texts("start"))
                zero = next((start for start in starts if start is not None), None)
            if wrong := _add(collected, batch, zero or Decimal(), hosts):
                left_out[WRONG] += wrong
    return collected.observed(
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


def _batches(path: Path, left_out: LeftOut) -> Iterator[Sequence[Sequence[str]]]:
    """Cells by column: of the first line, and then of many lines at a time."""
    width = 0
    for piece in pieces(path, left_out):
        # A file cut by a full disk may have null bytes.
        text = piece.replace("\0", "")
        if not width:
            line, _, text = text.partition("\n")
            try:
                header = next(csv.reader([line]), [])
            except csv.Error as error:
                raise FormatError(f"{path}: the first line is none of a CSV: {error}") from None
            width = len(header)
            yield [[cell] for cell in header]
        if cells := _by_column(text, width, left_out):
            yield cells


def _by_column(text: str, width: int, left_out: LeftOut) -> Sequence[Sequence[str]]:
    """Cells of all lines with anything in them; those of a plain table all at once."""
    text += "" if text.endswith("\n") else "\n"
    marks = np.frombuffer(text.encode(), np.uint8)
    ends = marks[(marks == ord(",")) | (marks == ord("\n"))] == ord("\n")
    rows = int(np.count_nonzero(ends))
    if (
        width > 1
        and len(ends) == rows * width
        and ends[width - 1 :: width].all()
        and '"' not in text
    ):
        flat = text.replace("\n", ",").split(",")
        return [flat[at : rows * width : width] for at in range(width)]
    found: list[list[str]] = []
    lines = csv.reader(text.split("\n"))
    while True:
        try:
            row = next(lines)
        except StopIteration:
            return list(zip_longest(*found, fillvalue=""))
        except csv.Error:
            left_out[WRONG] += 1
            continue
        if any(map(str.strip, row)):
            found.append(row)


class _Batch:
    """Cells of many lines by the names of their columns."""

    def __init__(
        self, columns: Mapping[str, int], cells: Sequence[Sequence[str]], scale: float
    ) -> None:
        self._cells = {name: cells[at] for name, at in columns.items() if at < len(cells)}
        self._scale, self._count = scale, len(cells[0])

    def texts(self, name: str) -> list[str]:
        return list(map(str.strip, self._cells.get(name, [""] * self._count)))

    def whole(self, name: str) -> Whole:
        texts = self.texts(name)
        values = {text: _whole(text or "0" * (name in OPTIONAL)) for text in set(texts)}
        return np.array([values[text] for text in texts])

    def seconds(self, name: str, zero: Decimal = Decimal()) -> Times:
        """Times from `zero` on: nanoseconds since 1970 have more digits than a float."""
        texts = self.texts(name)
        joined = ",".join(texts)
        if _plain_numbers(self._scale).fullmatch(joined):
            values = np.array([float(text or "nan") for text in texts]) - float(zero)
        elif _WHOLE_NUMBERS.fullmatch(joined) and zero == int(zero):
            values = np.array([float(int(text) - int(zero)) for text in texts])
        else:
            exact = map(_decimal, texts)
            values = np.array([NAN if one is None else float(one - zero) for one in exact])
        return values * self._scale


@functools.cache
def _plain_numbers(scale: float) -> re.Pattern[str]:
    """Numbers, or nothing, of so few seconds that a float has them to the nanosecond."""
    number = rf"(?:[-+]?\d{{1,{6 - round(math.log10(scale))}}}+(?:\.\d*+)?)?"
    return re.compile(rf"(?:{number},)*+{number}", re.ASCII)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else -1


def _decimal(text: str) -> Decimal | None:
    """A finite number; None for what is none, or has an exponent that decimals have no room for."""
    try:
        return Decimal(text) if math.isfinite(read_number(text)) else None
    except ArithmeticError:
        return None


def _add(
    collected: Collected, batch: _Batch, zero: Decimal, hosts: dict[tuple[int, int], str]
) -> int:
    """Add what lines tell; how many tell nothing."""
    step, copy, rank = (batch.whole(name) for name in ("step", "copy", "rank"))
    start, end, waited, issued = (
        batch.seconds(name, zero) for name in ("start", "end", "waited", "issued")
    )
    busy = batch.seconds("busy")
    sound = (np.minimum.reduce([step, copy, rank]) >= 0) & ~np.isnan(start)
    workers = zip(copy.tolist(), rank.tolist(), batch.texts("host"), sound.tolist(), strict=True)
    hosts |= {(at, of): host for at, of, host, fine in dict.fromkeys(workers) if fine and host}

    texts = batch.texts("action")
    names = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    of = np.array([names[text] for text in texts])
    sort, kind, stage, unit, part = np.array([_told(text) for text in names]).T[:, of]
    forward = np.isin(kind, FORWARD_KINDS)
    at = np.flatnonzero(sound & (sort == ACTION))
    collected.many(
        "actions", step[at], copy[at], rank[at], kind[at], stage[at], unit[at], part[at], ALONE,
        start[at], end[at], issued[at], waited[at], busy[at],
    )  # fmt: skip
    carried = step, copy, forward, stage, unit, part, rank, start
    at = np.flatnonzero(sound & (sort == SEND))
    collected.many("sends", *(column[at] for column in carried))
    at = np.flatnonzero(sound & (sort == RECEIVE))
    collected.many("receives", *(column[at] for column in carried), waited[at], end[at])
    wrong = np.count_nonzero(~sound | (sort == NOTHING))
    for row in np.flatnonzero(sound & (sort == SEVERAL)).tolist():
        place = int(step[row]), int(copy[row]), int(rank[row])
        times = float(start[row]), float(end[row])
        if texts[row] in PAUSES:
            collected.pause(*place[1:], PAUSES.index(texts[row]), *times)
            wrong += not times[1] >= times[0]
            continue
        pair = len(collected.actions)
        for one in actions_named(texts[row]):
            collected.action(
                *place, *one[:3], *times, slice=one.slice, pair=pair, waited=float(waited[row]),
                issued=float(issued[row]), busy=float(busy[row]),
            )  # fmt: skip
    return int(wrong)


NOTHING, OTHER, ACTION, SEND, RECEIVE, SEVERAL = range(6)
"""What a name tells of: nothing, what is of no use here, one thing, or a pair or a pause."""


@functools.lru_cache(maxsize=1 << 16)
def _told(text: str) -> tuple[int, ...]:
    """What a name tells of, and kind, stage, microbatch and slice of that, or of what it moves."""
    named = actions_named(text)
    if text in PAUSES or len(named) > 1:
        return SEVERAL, 0, 0, 0, 0
    if not named:
        return NOTHING, 0, 0, 0, 0
    kind, stage, *unit = named[0]
    spec = KINDS[kind]
    if spec.sends:
        return SEND, kind, stage, *unit
    if spec.receives:
        return RECEIVE, kind, stage + spec.away, *unit
    return ACTION if kind in COMPUTE_KINDS else OTHER, kind, stage, *unit


def _columns(path: Path, header: Sequence[str], left_out: LeftOut) -> tuple[dict[str, int], float]:
    """Where each column is, and the seconds of the file's unit."""
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
