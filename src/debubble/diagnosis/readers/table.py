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
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path

from debubble.core.errors import FormatError
from debubble.diagnosis.observed import Observed
from debubble.diagnosis.readers.collected import Collected
from debubble.diagnosis.readers.pool import Workers
from debubble.diagnosis.readers.stream import LeftOut, lines
from debubble.diagnosis.readers.table_lines import (
    TIMES,
    Batch,
    Lines,
    Piece,
    lines_of,
    read_lines,
    records,
)
from debubble.interchange.text import shown

NAME = "table"
UNITS = {"": 1.0, "_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}
REQUIRED = ("rank", "action", "start", "end")
OPTIONAL = ("step", "copy", "waited", "issued", "busy", "host")

_UNIT = re.compile(f"({'|'.join(TIMES)})(_m?s|_us|_ns)?")

BATCH = 10_000
"""Rows that are read at a time where they are not lines."""

WRONG = "lines that are no action with a rank and times"


def recognizes(head: bytes) -> bool:
    """Whether this is such a file, by its first line."""
    first = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    names = {name.strip().lower() for name in first.split(",")}
    return {"rank", "action"} <= names and any(_UNIT.fullmatch(name) for name in names)


def read(where: str, files: Sequence[Path], left_out: LeftOut, workers: Workers) -> Observed:
    """Read the lines of all files.

    Raises
    ------
    FormatError
        When a column is missing or unknown, or no line tells of an action.
    """
    collected = Collected(where, left_out)
    hosts: dict[tuple[int, int], str] = {}
    zero: Decimal | None = None
    pairs = wrong = 0
    for path in files:
        # A file cut by a full disk may have null bytes.
        pieces = (
            piece.replace(b"\0", b"") if b"\0" in piece else piece
            for piece in lines(path, left_out)
        )
        header, _, first = next(pieces, b"").partition(b"\n")
        columns, scale = _columns(path, _cells(path, header), left_out)
        known = lines_of(tuple(columns.items()))
        each = workers.each(
            read_lines, _pieces(chain([first], pieces), known, zero, scale), left_out
        )
        for piece, found in each:
            zero = piece.zero
            if found is not None:
                pairs = found.add_to(collected, hosts, pairs)
                wrong += found.wrong
                continue
            # From the first cell that has a line break on, rows are not lines.
            zero = zero or Decimal()
            rows = records(chain([piece.text], (more.text for more, _ in each)))
            while some := list(islice(rows, BATCH)):
                batch = Batch(known, zero, scale)
                batch.add_rows((at, known.named(row)) for at, row in enumerate(some) if row)
                pairs = batch.found().add_to(collected, hosts, pairs)
                wrong += batch.wrong + some.count(None)
    if wrong:
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


def _pieces(
    texts: Iterable[bytes], known: Lines, zero: Decimal | None, scale: float
) -> Iterator[Piece]:
    """Texts of whole lines, each with the first start of all."""
    for text in texts:
        if zero is None:
            zero = known.first_start(text)
        yield Piece(text, known.columns, zero, scale)


def _cells(path: Path, line: bytes) -> list[str]:
    """The cells of a file's first line."""
    try:
        return next(csv.reader([line.decode("utf-8", "replace")]), [])
    except csv.Error as error:
        raise FormatError(f"{path}: the first line is none of a CSV: {error}") from None


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
