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
"""Rows with quotes that are read at a time."""

SIZE = 1 << 19
"""Bytes that are read at a time, and some more to the end of a line."""

BLANKS = " \t\r\v\f\x1c\x1d\x1e\x1f"
"""Blanks of ASCII, without the line break."""

NO_ROW = "\ufffd"
"""A cell of a row that is none of a CSV."""


def texts_of(path: Path, left_out: LeftOut) -> Iterator[str]:
    """Yield the text of a file in pieces of whole lines."""
    for piece in lines(path, left_out):
        # A file cut by a full disk may have null bytes.
        piece = piece.replace(b"\0", b"")
        at = 0
        while at < len(piece):
            end = piece.find(b"\n", at + SIZE) + 1 or len(piece)
            yield piece[at:end].decode("utf-8", "replace")
            at = end


def cells_of(texts: Iterator[str], columns: Mapping[str, int]) -> Iterator[Cells]:
    """Yield the cells of lines that are not empty, some lines at a time."""
    for text in texts:
        if '"' in text:
            # A quoted cell may go on in the next line, so csv takes all that follow.
            every = chain([text], texts)
            rows = _records(line for each in every for line in _lines(each))
            while records := list(islice(rows, BATCH)):
                yield _by_columns(records, columns)
            return
        text = text.replace("\r\n", "\n")
        yield _alike(text, columns) or _by_columns(
            [line.split(",") for line in _lines(text)], columns
        )


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


def _alike(text: str, columns: Mapping[str, int]) -> Cells | None:
    """Return the cells of lines that have equally many and no blanks; None for other lines."""
    if not text.isascii() or any(map(text.__contains__, BLANKS)):
        return None
    text = text.removesuffix("\n")
    # Line breaks are cells of their own; if all lines are alike they come at equal distances.
    width = text.partition("\n")[0].count(",") + 2
    breaks = text.count("\n")
    cells = text.replace("\n", ",\n,").split(",")
    if (
        len(cells) != (breaks + 1) * width - 1 or max(columns.values()) > width - 2
        or cells[width - 1 :: width].count("\n") < breaks
    ):  # fmt: skip
        return None
    found = {name: cells[at::width] for name, at in columns.items()}
    # A line of commas only is empty in all columns.
    return found if any("" not in column for column in found.values()) else None


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
