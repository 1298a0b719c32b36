"""Rows of text that differ only in their numbers: parse one of each layout, read all as columns.

Traces repeat themselves: a writer's events, lines and iterations have a few layouts, and only
digits differ. So one row of each layout is read as its format is, with the number of every run of
digits in place of the run, counted from 1; that tells which run means what. Then the runs of all
rows are read as columns.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.diagnosis.readers.digits import (
    INNER,
    MOST_DIGITS,
    PADDING,
    Text,
    Whole,
    fits,
    joined,
    over_tens,
    runs_in,
    since,
)

RUN = b"\0"
"""Stands for a run of digits in a layout."""

NOTHING = 0
"""Run of a number that a row does not have: it is 0."""

LARGEST = np.uint64(1 << 62)
"""Stands for numbers that are larger, too."""

MOST_LAYOUTS = 64
"""Layouts of a text from which on those of few rows are not worth while."""

_NUMBER = re.compile(r"([-+]?)(\d{1,9})(?:\.(\d{1,9})?)?(?:[eE][-+]?(\d{1,9}))?", re.ASCII)
_DIGITS = re.compile(r"\d+", re.ASCII)


class Number(NamedTuple):
    """Where rows of a layout have a number: its sign, and the runs before and behind the point."""

    sign: str
    whole: int
    fraction: int = NOTHING
    exponent: int = NOTHING

    @classmethod
    def of(cls, text: str) -> Number:
        """The number of a text of a layout that is one."""
        found = cls.read(text)
        assert found is not None, "a number has a sign, digits and a point"
        return found

    @classmethod
    def read(cls, text: str) -> Number | None:
        """The number of a text of a layout; None where it is none that is read by its runs."""
        match = _NUMBER.fullmatch(text)
        return match and cls(match[1], *(int(match[at] or NOTHING) for at in (2, 3, 4)))


class Rows:
    """Rows of one layout.

    Parameters
    ----------
    text
        The text that they are in.
    edges
        Where all runs of digits in it begin and end, two numbers of 32 bits in one.
    first
        The first run of each row.
    """

    def __init__(self, text: Text, edges: NDArray[np.int64], first: Whole) -> None:
        self._text, self._edges, self._first = text, edges, first

    def __len__(self) -> int:
        return len(self._first)

    def taken(self, rows: Whole) -> Rows:
        """Some of the rows."""
        return Rows(self._text, self._edges, self._first[rows])

    def fit(self, limits: Sequence[tuple[int, int]]) -> bool:
        """Whether no row has more digits in these runs than it may."""
        _, _, length = self._at([place for place, _ in limits])
        most = [digits for _, digits in limits]
        return bool((length.reshape(len(self), -1) <= most).all())

    def runs(self, places: Sequence[int], longest: int = MOST_DIGITS) -> NDArray[np.int64]:
        """Values of runs, shape ``(rows, len(places))``; those of more digits are very large."""
        _, end, length = self._at(places)
        found = np.minimum(self._text.digits(end, length), LARGEST).astype(np.int64)
        found[length > longest] = LARGEST
        return found.reshape(len(self), -1)

    def wholes(self, numbers: Sequence[Number], longest: int = MOST_DIGITS) -> NDArray[np.int64]:
        """Whole numbers, or −1 where they have a point or are below 0; shape as of `runs`."""
        found = self.runs([each.whole for each in numbers], longest)
        for at, each in enumerate(numbers):
            if each.fraction or each.exponent:
                found[:, at] = -1
            elif each.sign == "-":
                found[found[:, at] > 0, at] = -1
        return found

    def numbers(self, numbers: Sequence[Number], zero: Decimal = Decimal()) -> NDArray[np.float64]:
        """Numbers less `zero`, correctly rounded; shape as of `runs`."""
        begin, end, length = self._at([each.whole for each in numbers])
        value = self._text.digits(end, length)
        fractions = [each.fraction for each in numbers]
        power: Whole = np.zeros(1, np.int64)
        if any(fractions):
            _, point, power = self._at(fractions)
            if len(power) and (power == power[0]).all():
                power = power[:1]
            value = joined(value, self._text.digits(point, power), power)
            end = np.maximum(end, point)
        slow = length + power > MOST_DIGITS
        exponents = [each.exponent for each in numbers]
        if any(exponents):
            _, last, digits = self._at(exponents)
            end = np.where(digits > 0, last, end)
            slow |= digits > 0
        negative = np.array([each.sign == "-" for each in numbers], bool)
        below = signs = np.tile(negative, len(self)) if negative.any() else None
        if zero:
            slow |= ~fits(zero, length, power)
        if slow.any():
            value[slow], power = 0, np.where(slow, 0, power)
        if zero and not slow.all():
            value, power, below = since(zero, value, power, signs)
        values, unsure = over_tens(value, power)
        if below is not None:
            values[below] *= -1
        slow[unsure] = True
        for at in np.flatnonzero(slow).tolist():
            text = self._text.letters[begin[at] : end[at]].tobytes().decode()
            text = text if signs is None or not signs[at] else "-" + text
            values[at] = float(Decimal(text) - zero if zero else text)
        return values.reshape(len(self), -1)

    def text(self, row: int, text: str) -> str:
        """A part of the layout's text, numbered, as one row has it."""

        def actual(match: re.Match[str]) -> str:
            run = int(self._first[row]) + int(match[0]) - 1
            return (
                self._text.letters[slice(*self._edges[run : run + 1].view(np.int32))]
                .tobytes()
                .decode()
            )

        return _DIGITS.sub(actual, text)

    def _at(self, places: Sequence[int]) -> tuple[Whole, Whole, Whole]:
        """Begin, end and length of runs, row by row."""
        place = np.asarray(places, np.int64)
        run = np.empty((len(self), len(place)), np.int64)
        if len(place) < len(self):
            for at, one in enumerate(places):
                np.add(self._first, one - 1, out=run[:, at])
        else:
            np.add(self._first[:, None], place - 1, out=run)
        if not place.all():
            np.maximum(run, 0, out=run)
        # Both edges of a run are taken as one number, which takes half the time.
        both = self._edges[run.ravel()]
        end = both >> 32
        both &= 0xFFFFFFFF
        length = end - both
        if not place.all():
            length.reshape(run.shape)[:, place == NOTHING] = 0
        return both, end, length


class Layout(NamedTuple):
    """The rows of a text that have one layout."""

    text: bytes
    """Text of a row with :data:`RUN` for each run of digits."""
    at: Whole
    """Which rows of the text they are."""
    rows: Rows


def layouts(
    text: bytes, split: Callable[[bytes], list[bytes]], *, few: int = 1, strict: bool = True
) -> tuple[list[Layout], list[int]]:
    """The rows of a text by their layouts, and rows that are read one by one.

    Parameters
    ----------
    text
        Text of whole rows.
    split
        Cuts it into rows, whatever its digits are.
    few
        Rows of a layout below which they are read one by one where there are many layouts.
    strict
        Whether numbers do not begin with a 0 that means nothing, as in JSON.
    """
    read = Text(b"".join((b" " * PADDING, text, b" ")))
    edges, marked = runs_in(read.letters)
    both = edges.view(np.int64).ravel()
    begin, end = edges.T
    rows = split(marked[PADDING:-1].tobytes().translate(None, INNER))
    codes: defaultdict[bytes, int] = defaultdict(count().__next__)
    code = np.fromiter(map(codes.__getitem__, rows), np.int64, len(rows))
    has = np.array([row.count(RUN) for row in codes], np.int64)
    ends = np.cumsum(has[code])
    first = ends - has[code]
    several = np.bincount(code, minlength=len(codes))
    odd = np.zeros(len(rows), bool)
    if RUN in text:
        odd[:] = True
    length = end - begin
    strange = length > MOST_DIGITS
    if strict:
        zero = np.flatnonzero((read.letters[begin] == ord("0")) & (length > 1))
        strange[zero[read.letters[begin[zero] - 1] != ord(".")]] = True
    if strange.any():
        odd[np.searchsorted(ends, np.flatnonzero(strange), side="right")] = True
    if len(codes) > MOST_LAYOUTS:
        odd |= (several < few)[code]
    order = np.argsort(code, kind="stable")
    found = []
    for at, row in zip(np.split(order, np.cumsum(several)[:-1]), codes, strict=True):
        at = at[~odd[at]] if odd.any() else at
        if len(at):
            found.append(Layout(row, at, Rows(read, both, first[at])))
    return found, np.flatnonzero(odd).tolist()


def in_order(blocks: Sequence[tuple[Any, ...]]) -> list[NDArray[Any]]:
    """Columns of several blocks in one, by the first column, which is the place of a row."""
    counts = [len(block[0]) for block in blocks]
    columns = [
        np.concatenate([np.broadcast_to(each, n) for each, n in zip(parts, counts, strict=True)])
        for parts in zip(*blocks, strict=True)
    ]
    if len(blocks) == 1:
        return columns
    order = np.argsort(columns[0], kind="stable")
    return [column[order] for column in columns]


def numbered(text: bytes) -> bytes:
    """A layout's text with the number of each run in its place."""
    parts = text.split(RUN)
    return b"".join(_between(parts))


def _between(parts: Sequence[bytes]) -> Iterator[bytes]:
    for number, part in enumerate(parts):
        if number:
            yield b"%d" % number
        yield part


_DECODER = json.JSONDecoder(strict=False, parse_int=Number.of, parse_float=Number.of)


def decoded(text: bytes) -> Any:
    """The JSON value of a layout's text, with a :class:`Number` for each number.

    Raises
    ------
    ValueError
        When it is no JSON.
    """
    return _DECODER.decode(numbered(text).decode())
