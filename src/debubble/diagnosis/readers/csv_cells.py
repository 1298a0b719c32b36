"""Cells of CSV files by their columns, some lines at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from debubble.diagnosis.readers.stream import LeftOut, lines

Cells = dict[str, list[str]]
"""Cells of some lines by their columns, without blanks around them."""

BATCH = 2_000
"""Lines that are read at a time."""

NO_ROW = "\ufffd"
"""A cell of a row that is none of a CSV."""


def lines_of(path: Path, left_out: LeftOut) -> Iterator[list[str]]:
    """Yield the lines of a file, some at a time."""
    for text in lines(path, left_out):
        # A file cut by a full disk may have null bytes.
        whole = text.replace(b"\0", b"").decode("utf-8", "replace")
        some = whole.removesuffix("\n").split("\n")
        for at in range(0, len(some), BATCH):
            yield some[at : at + BATCH]


def cells_of(texts: Iterator[list[str]], columns: Mapping[str, int]) -> Iterator[Cells]:
    """Yield the cells of lines that are not empty, some lines at a time."""
    last = max(columns.values())
    for some in texts:
        joined = "\n".join(some)
        if '"' in joined:
            # A quoted cell may go on in the next line, so csv takes all that follow.
            rows = _records(chain(some, chain.from_iterable(texts)))
            while records := list(islice(rows, BATCH)):
                yield _by_columns(records, columns)
            return
        commas = some[0].count(",")
        blanks = not joined.isascii() or any(map(joined.__contains__, " \t\r\v\f"))
        # Line breaks are cells of their own; if all lines are alike they come at equal distances.
        cells = joined.replace("\n", ",\n,").split(",")
        alike = len(cells) == len(some) * (commas + 2) - 1
        alike = alike and cells[commas + 1 :: commas + 2] == ["\n"] * (len(some) - 1)
        if alike and commas >= last and not blanks and commas * "," not in some:
            yield {name: cells[at :: commas + 2] for name, at in columns.items()}
        else:
            yield _by_columns([line.split(",") for line in some], columns)


def _records(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield rows of lines that have quotes."""
    rows = csv.reader(texts)
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error:
            yield [NO_ROW]


def _by_columns(rows: Iterable[Sequence[str]], columns: Mapping[str, int]) -> Cells:
    """Return the cells of rows of any length that are not empty."""
    some = [row for row in rows if any(map(str.strip, row))]
    return {
        name: [row[at].strip() if at < len(row) else "" for row in some]
        for name, at in columns.items()
    }
