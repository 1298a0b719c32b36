"""Numbers of many texts at once: whole, or decimals less another, which are correctly rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.units import read_number

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

EXACT = 1 << 53
"""Whole number up to which floats have all."""

MOST_DIGITS = 18
"""Digits behind a point up to which a number may fit 64 bits."""

LARGEST = 1 << 62
"""Whole number whose difference from another fits 64 bits."""


class ColumnTexts(NamedTuple):
    """Texts that are parts of one, in UTF-8: from `starts` to `ends`, where something follows."""

    text: bytes
    starts: Whole
    ends: Whole

    @classmethod
    def of(cls, texts: Sequence[str]) -> ColumnTexts:
        """Return the column of some texts."""
        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        ends = np.cumsum(lengths)
        return cls(b"".join([*encoded, b"\n"]), ends - lengths, ends)

    def texts(self, rows: NDArray[np.intp] | slice = slice(None)) -> list[bytes]:
        """Return the texts of some rows."""
        text, starts, ends = self.text, self.starts[rows].tolist(), self.ends[rows].tolist()
        return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def times_less(column: ColumnTexts, zero: Decimal) -> Floats:
    """Return numbers less `zero`, correctly rounded; NaN for what is none."""
    value, behind, sound = plain_numbers(column)
    scales = np.array([_scale(digits, zero) for digits in range(MOST_DIGITS + 1)])
    factor, most, shift, unit = scales.T.take(behind, axis=1, mode="clip")
    sound &= np.abs(value) < most
    found = value * factor - shift
    # Up to 53 bits only the quotient is rounded; that of Python's integers always is exact.
    times: Floats = np.where(sound, found / unit, np.nan)
    for at in np.flatnonzero(sound & (np.abs(found) > EXACT)).tolist():
        times[at] = int(found[at]) / int(unit[at])
    others = np.flatnonzero(~sound & (column.ends > column.starts))
    for at, text in zip(others.tolist(), column.texts(others), strict=True):
        if (number := decimal(text.decode())) is not None:
            times[at] = float(number - zero)
    return times


def _scale(digits: int, zero: Decimal) -> tuple[int, int, int, int]:
    """Return how to subtract `zero` from numbers with `digits` behind the point.

    That is a factor, the limit of numbers before it, `zero` in units of the product, and the number
    of these in 1. The limit is 0 if they do not fit 64 bits.
    """
    places = max(digits, -int(zero.as_tuple().exponent))
    if places > MOST_DIGITS or (abs(int(zero)) + 1) * 10**places >= LARGEST:
        return 1, 0, 0, 1
    factor = 10 ** (places - digits)
    return factor, LARGEST // factor, int(zero.scaleb(places)), 10**places


def plain_numbers(column: ColumnTexts) -> tuple[Whole, NDArray[np.uint8], NDArray[np.bool_]]:
    """Return numbers without their point, digits behind it, and which texts are plain numbers.

    Plain are up to 19 digits, with a minus or not, and a point among them or not.
    """
    letters = np.frombuffer(column.text, np.uint8)
    lengths = column.ends - column.starts
    minus = (letters[column.starts] == ord("-")) & (lengths > 0)
    value = np.zeros(len(lengths), np.int64)
    digits, behind, points = np.zeros((3, len(lengths)), np.uint8)
    # One letter of all texts at a time.
    for at in range(min(int(lengths.max(initial=0)), MOST_DIGITS + 3)):
        letter = letters.take(column.starts + at, mode="clip")
        inside = lengths > at
        digit = letter - np.uint8(ord("0"))
        is_digit = (digit < 10) & inside
        value *= is_digit * np.uint8(9) + np.uint8(1)
        value += digit * is_digit
        digits += is_digit
        behind += is_digit & (points > 0)
        points += (letter == ord(".")) & inside
    # 19 digits beyond 64 bits have become a negative number.
    sound = (value >= 0) & (digits <= MOST_DIGITS + 1) & (digits + points + minus == lengths)
    sound &= (digits > behind) & (points == (behind > 0))
    return np.where(minus, -value, value), behind, sound


def decimal(text: str) -> Decimal | None:
    """Return a finite number; None for what is none, or has an exponent too large for decimals."""
    try:
        return Decimal(text) if math.isfinite(read_number(text)) else None
    except ArithmeticError:
        return None
