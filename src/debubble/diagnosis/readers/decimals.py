"""Numbers of many texts at once, less another number, correctly rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from debubble.core.units import read_number
from debubble.diagnosis.observed import Times

EXACT = 1 << 53
"""Whole number up to which floats have all."""

MOST_DIGITS = 18
"""Digits of a number that always fit 64 bits."""


def numbers_less(texts: Sequence[str], zero: Decimal) -> Times:
    """Return numbers less `zero`, correctly rounded; NaN for what is none."""
    plain = _plain_less(texts, zero)
    if plain is not None:
        return plain
    numbers = map(decimal, texts)
    return np.array([math.nan if each is None else float(each - zero) for each in numbers])


def _plain_less(texts: Sequence[str], zero: Decimal) -> Times | None:
    """Return numbers less `zero`; None if one has more than digits and a point, or is too large."""
    text = "\n".join([*texts, ""]).encode()
    marks = text.translate(None, b"0123456789").replace(b".\n", b"\n")
    if not texts or marks != b"\n" * len(texts):
        return None
    letters = np.frombuffer(text, np.uint8)
    points, ends = np.flatnonzero(letters == ord(".")), np.flatnonzero(letters == ord("\n"))
    pointed = np.searchsorted(ends, points)
    digits = np.diff(ends, prepend=-1) - 1
    digits[pointed] -= 1
    behind = np.zeros(len(texts), np.int64)
    behind[pointed] = ends[pointed] - points - 1
    filled = digits > 0
    places = max(int(behind.max()), -int(zero.as_tuple().exponent))
    longest = max(int((digits - behind).max()), zero.adjusted() + 1)
    if longest + places > MOST_DIGITS or not filled[pointed].all():
        return None
    found = np.full(len(texts), np.nan)
    value = np.fromstring(text.replace(b".", b""), np.int64, sep="\n")
    less = value * 10 ** (places - behind[filled]) - int(zero.scaleb(places))
    found[filled] = less / 10**places
    # Up to 53 bits only the quotient is rounded.
    return found if np.abs(less).max(initial=0) <= EXACT else None


def decimal(text: str) -> Decimal | None:
    """Return a finite number; None for what is none, or has an exponent too large for decimals."""
    try:
        return Decimal(text) if math.isfinite(read_number(text)) else None
    except ArithmeticError:
        return None
