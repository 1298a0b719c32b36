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
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from debubble.core.errors import FormatError
from debubble.core.kinds import COMPUTE_KINDS, TRANSFER_KINDS
from debubble.diagnosis.observed import ALONE, PAUSES, Observed
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.names import actions_named
from debubble.diagnosis.readers.stream import LeftOut, lines
from debubble.interchange.text import read_number, shown

NAME = "table"
UNITS = {"": 1.0, "_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}
REQUIRED = ("rank", "action", "start", "end")
OPTIONAL = ("step", "copy", "waited", "issued", "busy", "host")
TIMES = ("start", "end", "waited", "issued", "busy")

_UNIT = re.compile(f"({'|'.join(TIMES)})(_m?s|_us|_ns)?")

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
    number = 0
    zero: Decimal | None = None
    for path in files:
        rows = csv.reader(_without_nulls(path, left_out))
        try:
            header = next(rows, [])
        except csv.Error as error:
            raise FormatError(f"{path}: the first line is none of a CSV: {error}") from None
        columns, scale = _columns(path, header, left_out)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                break
            except csv.Error:
                left_out[WRONG] += 1
                continue
            if any(cell.strip() for cell in row):
                line = _Line(columns, row, scale)
                number += 1
                if zero is None and not math.isnan(line.seconds("start")):
                    zero = Decimal(line.text("start"))
                if not _add(collected, line, zero or Decimal(), number, hosts):
                    left_out[WRONG] += 1
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


class _Line:
    """Cells of a line by the names of their columns."""

    def __init__(self, columns: Mapping[str, int], row: Sequence[str], scale: float) -> None:
        self._columns, self._row, self._scale = columns, row, scale

    def text(self, name: str) -> str:
        at = self._columns.get(name, len(self._row))
        return self._row[at].strip() if at < len(self._row) else ""

    def whole(self, name: str) -> int:
        text = self.text(name)
        if not text and name in OPTIONAL:
            return 0
        return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else -1

    def seconds(self, name: str, zero: Decimal = Decimal()) -> float:
        """A time from `zero` on: nanoseconds since 1970 have more digits than a float."""
        text = self.text(name)
        if not math.isfinite(read_number(text)):
            return NAN
        try:
            return float(Decimal(text) - zero) * self._scale
        except ArithmeticError:
            # An exponent with more digits than decimals have room for.
            return NAN


def _add(
    collected: Collected, line: _Line, zero: Decimal, number: int,
    hosts: dict[tuple[int, int], str],
) -> bool:  # fmt: skip
    """Add what a line tells; whether it tells anything."""
    step, copy, rank = line.whole("step"), line.whole("copy"), line.whole("rank")
    start, end = line.seconds("start", zero), line.seconds("end", zero)
    if min(step, copy, rank) < 0 or start != start:
        return False
    host = line.text("host")
    if host:
        hosts[copy, rank] = host
    text = line.text("action")
    if text in PAUSES:
        collected.pause(copy, rank, PAUSES.index(text), start, end)
        return end >= start
    named = actions_named(text)
    for one in named:
        place = step, copy, rank, one.kind, one.stage, one.microbatch
        if one.kind in TRANSFER_KINDS:
            collected.transfer(
                *place, slice=one.slice, sent=start, posted=start, arrived=end,
                waited=line.seconds("waited", zero),
            )  # fmt: skip
        elif one.kind in COMPUTE_KINDS:
            collected.action(
                *place, start, end, slice=one.slice, pair=number if len(named) > 1 else ALONE,
                waited=line.seconds("waited", zero), issued=line.seconds("issued", zero),
                busy=line.seconds("busy"),
            )  # fmt: skip
    return bool(named)


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


def _without_nulls(path: Path, left_out: LeftOut) -> Iterator[str]:
    """Lines without the null bytes that a file cut by a full disk may have."""
    return (line.replace("\0", "") for line in lines(path, left_out))
