"""Numbers in text, read many at a time: as fast as arrays are, and as exactly as one by one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_DIGITS = 19
"""Digits of a number up to which it fits 64 bits."""

PADDING = 8 * (MOST_DIGITS // 8 + 1)
"""Bytes that a text has before its first number, so that digits can be taken eight at a time."""

INNER = b"1"
"""Stands for digits of a run behind its first."""

Letters = NDArray[np.uint8]
Whole = NDArray[np.integer[Any]]
Digits = NDArray[np.uint64]

_POWERS = np.array([10**power for power in range(MOST_DIGITS + 1)], np.uint64)
_TENS = 10.0 ** np.arange(MOST_DIGITS + 1)
_HALVING = 2.0**27 + 1
"""Times this, less what that adds, a number keeps the upper half of its digits."""

_UPPER = _TENS * _HALVING - (_TENS * _HALVING - _TENS)
_LAST = np.array([(1 << 64) - (1 << 64 >> 8 * length) for length in range(9)], np.uint64)
_LAST &= np.uint64(0x0F0F0F0F0F0F0F0F)
"""Masks of the last digits of eight, of which the last is the uppermost."""

_NEIGHBOURS = [
    (np.uint64(1 + (10**digits << 8 * digits)), np.uint64(8 * digits), np.uint64(mask))
    for digits, mask in ((1, 0x00FF00FF00FF00FF), (2, 0x0000FFFF0000FFFF), (4, 0xFFFFFFFF))
]
"""What adds up neighbours of so many digits each: a factor, bits to leave out, and a mask."""

_EXACT = np.uint64(1 << 53)
"""Least whole number that a float may not have."""


def runs_in(text: Letters) -> tuple[NDArray[np.int32], Letters]:
    """Runs of digits in a text that begins and ends with something else.

    Returns where they begin and end, and the text with 0 for the first digit of each and ``"1"``
    for the others.
    """
    digit = text - np.uint8(ord("0")) < 10
    edges = np.flatnonzero(digit[1:] != digit[:-1]).astype(np.int32)
    edges += 1
    # Of a digit nothing is left, of all else all.
    marked = text & (digit.view(np.uint8) - np.uint8(1))
    marked[1:] |= (digit[1:] & digit[:-1]).view(np.uint8) * np.uint8(ord(INNER))
    return edges.reshape(-1, 2), marked


class Text:
    """A text with :data:`PADDING` before its numbers."""

    def __init__(self, text: bytes | bytearray) -> None:
        self.letters = np.frombuffer(text, np.uint8)
        self._windows = np.ndarray((len(text) - 7,), "<u8", self.letters.data, strides=(1,))

    def digits(self, end: Whole, length: Whole) -> Digits:
        """The numbers of these digits, which are :data:`MOST_DIGITS` at most."""
        found = self._eight(end, np.minimum(length, 8))
        for done in range(8, MOST_DIGITS, 8):
            longest = int(length.max(initial=0))
            if longest <= done:
                break
            # Often all have as many.
            more = slice(None) if longest == length.min() else np.flatnonzero(length > done)
            before = end[more] - done
            if longest == done + 1:
                rest: Digits = (self.letters[before - 1] & np.uint8(0x0F)).astype(np.uint64)
            else:
                rest = self._eight(before, np.minimum(length[more] - done, 8))
            rest *= _POWERS[done]
            found[more] += rest
        return found

    def _eight(self, end: Whole, length: Whole) -> Digits:
        """The same of up to eight digits: neighbours are added up in pairs, fours and eights."""
        value: Digits = self._windows[end - 8]
        value &= _LAST[length]
        for factor, bits, mask in _NEIGHBOURS:
            value *= factor
            value >>= bits
            value &= mask
        return value


def over_tens(value: Digits, power: Whole) -> tuple[NDArray[np.float64], Whole]:
    """Floats next to ``value / 10**power``, and which of them may be one too low.

    Numbers of 53 bits are divided exactly. For others the rest of the division is known to twice
    as many digits; it is not certain only where the number lies between two floats.
    """
    upper = value.astype(np.float64)
    found = upper / _TENS[power]
    wide = np.flatnonzero(value >= _EXACT)
    if not len(wide):
        return found, wide
    power = np.broadcast_to(power, value.shape)[wide]
    value, upper, first = value[wide], upper[wide], found[wide]
    lower = (value - upper.astype(np.uint64)).view(np.int64).astype(np.float64)
    # What first * ten is over its float (Dekker): halves of both, multiplied exactly.
    ten, ten_upper = _TENS[power], _UPPER[power]
    ten_lower = ten - ten_upper
    product, big = first * ten, first * _HALVING
    first_upper = big - (big - first)
    first_lower = first - first_upper
    over = first_upper * ten_upper - product + first_upper * ten_lower + first_lower * ten_upper
    over += first_lower * ten_lower
    rest = (upper - product - over + lower) / ten
    least, most = (first + rest * (1 + slack) for slack in (-(2.0**-45), 2.0**-45))
    found[wide] = least
    return found, wide[least != most]


def since(
    zero: Decimal, value: Digits, power: Whole, below: NDArray[np.bool_] | None
) -> tuple[Digits, Whole, NDArray[np.bool_]]:
    """What ``value / 10**power``, or less than 0 by so much, is beyond `zero`: the same three.

    Numbers of times since 1970 have more digits than a float; their differences do not.
    """
    places = max(-int(zero.as_tuple().exponent), 0)
    deep = np.maximum(power, places)
    tens = _POWERS.astype(np.int64)
    found = value.view(np.int64) * tens[deep - power]
    if below is not None:
        found[below] *= -1
    found -= int(zero.scaleb(places)) * tens[deep - places]
    return np.abs(found).view(np.uint64), deep, found < 0


def fits(zero: Decimal, length: Whole, power: Whole) -> NDArray[np.bool_]:
    """Whether numbers with so many digits before and behind the point can be taken `since` zero."""
    places = max(-int(zero.as_tuple().exponent), 0)
    fits: NDArray[np.bool_] = (
        np.maximum(length, zero.adjusted() + 1) + np.maximum(power, places) < MOST_DIGITS
    )
    return fits


def joined(whole: Digits, fraction: Digits, digits: Whole) -> Digits:
    """The whole number of the digits before and behind a point; `digits` are those behind it."""
    return whole * _POWERS[digits] + fraction
