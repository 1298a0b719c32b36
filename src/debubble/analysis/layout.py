"""Text in a given width: wrapped lines, terms with their definitions, tables."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TextIO

NARROWEST = 40
"""Characters of a line that everything fits in."""

PIPED = 100
"""Characters of a line when the width of the output is unknown."""

GAP = "  "
_KEPT = str.maketrans({"\u00a0": " "})


def line_width() -> int:
    """Return characters of a line of the terminal, or of COLUMNS, else 100."""
    return max(NARROWEST, shutil.get_terminal_size((PIPED, 24)).columns)


def takes_color(stream: TextIO) -> bool:
    """Return whether a stream takes colors: a terminal, unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not plain


def unstyled(text: str, style: str) -> str:  # noqa: ARG001 - the signature of a style
    """Return text as it is, where there is no terminal to style it for."""
    return text


def wrap(text: str, width: int, indent: int = 0, *, hyphens: bool = False) -> list[str]:
    """Return lines of at most `width` characters, the later ones indented.

    Words are never broken, but where one is longer than a line, and stay with what belongs to
    them: a percentage with its sign. With `hyphens` a line may also end in one.

    Examples
    --------
    >>> wrap("the idle share is 12.5 % of rank-time", 20)
    ['the idle share is', '12.5 % of rank-time']
    """
    glued = text.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")
    lines = textwrap.wrap(glued, width, subsequent_indent=" " * indent, break_on_hyphens=hyphens)
    return [line.translate(_KEPT) for line in lines] or [""]


def definitions(rows: Iterable[tuple[str, str, str]], width: int) -> list[str]:
    """Return lines with a name, a value and a meaning; long meanings continue below themselves."""
    rows = list(rows)
    names, values = (max(len(row[index]) for row in rows) for index in (0, 1))
    lines = []
    for name, value, meaning in rows:
        head = f"{name:<{names}}{GAP}{value:<{values}}{GAP}"
        # Beside a narrow column of meanings the eye loses the line.
        beside = width - len(head) >= 30
        room = width - (len(head) if beside else 4)
        first, *more = wrap(meaning, room)
        lines += [head + first] if beside else [head.rstrip(), " " * 4 + first]
        lines += [" " * (len(head) if beside else 4) + line for line in more]
    return [line.rstrip() for line in lines]


def table(rows: Sequence[Sequence[str]], left: tuple[int, ...] = (0,)) -> list[str]:
    """Return rows of text in columns, those in `left` aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        GAP.join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


@dataclass(frozen=True)
class Column:
    """A column of a table for terminals and for pages."""

    head: tuple[str, ...]
    """Its title; in a terminal every part of it has a line."""
    cells: tuple[str, ...]
    """One text per row."""
    rank: int = 0
    """The columns of the highest are left out first where a line has no room; 0 never is."""
    left: bool = False
    """Whether it is aligned left."""

    @property
    def title(self) -> str:
        """The title in one line."""
        return " ".join(self.head)

    @property
    def width(self) -> int:
        """Characters of the widest text."""
        return max(map(len, (*self.head, *self.cells)))


NAME_LEAST = 20
"""Characters that the first column keeps, before others are left out."""


def text_table(columns: Sequence[Column], width: int) -> tuple[list[list[str]], list[str]]:
    """Return a table of at most `width` characters, in blocks, and the titles left out of it.

    Blocks are the lines of the head, then those of every row: texts of the first column that are
    too long go on below.
    """
    shown = list(columns)
    left_out: list[str] = []

    def room() -> int:
        return width - sum(column.width + len(GAP) for column in shown[1:])

    def need() -> int:
        return min(shown[0].width, NAME_LEAST)

    while room() < need() and any(column.rank for column in shown):
        last = max(range(len(shown)), key=lambda index: (shown[index].rank, index))
        left_out.insert(0, shown.pop(last).title)
    first = max(1, min(room(), shown[0].width))
    height = max(len(column.head) for column in shown)
    heads = [("",) * (height - len(column.head)) + column.head for column in shown]
    rows = [[[head[line] for head in heads] for line in range(height)]]
    for index in range(len(shown[0].cells)):
        names = wrap(shown[0].cells[index], first, hyphens=True)
        cells = [[column.cells[index] for column in shown[1:]]]
        cells += [[""] * (len(shown) - 1)] * (len(names) - 1)
        rows.append([[name, *cell] for name, cell in zip(names, cells, strict=True)])
    left = tuple(index for index, column in enumerate(shown) if column.left)
    lines = iter(table([line for block in rows for line in block], left))
    return [[next(lines) for _ in block] for block in rows], left_out


def html_table(columns: Sequence[Column]) -> str:
    """Return a table as HTML."""
    head = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in columns)
    rows = zip(*(column.cells for column in columns), strict=True)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
