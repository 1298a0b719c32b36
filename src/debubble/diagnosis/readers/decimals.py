"""Decimal numbers of texts less another, many at a time and correctly rounded."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from debubble.core.units import read_number

Floats = NDArray[np.float64]

_PLAIN = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?", re.ASCII)

EXACT = 1 << 53
"""Whole number up to which floats have all."""

MOST_DIGITS = 18
"""Digits behind a point up to which a number may fit 64 bits."""

LARGEST = 1 << 62
"""Whole number whose difference from another fits 64 bits."""


def times_less(texts: Sequence[str], zero: Decimal) -> Floats:
    """Return numbers less `zero`, correctly rounded; NaN for what is none."""
    found = np.full(len(texts), np.nan)
    if "" in texts:
        some = list(filter(None, texts))
        found[np.fromiter(map(bool, texts), bool, len(texts))] = times_less(some, zero)
        return found
    times = _alike(texts, zero)
    if times is not None:
        return times
    plain = {at: text.partition(".") for at, text in enumerate(texts) if _PLAIN.fullmatch(text)}
    digits = max((len(fraction) for _, _, fraction in plain.values()), default=0)
    padded = [f"{whole}.{fraction:0<{digits}}" for whole, _, fraction in plain.values()]
    times = _alike(padded, zero)
    if times is None:
        plain = {}
    else:
        found[list(plain)] = times
    for at, text in enumerate(texts):
        if at not in plain and (number := decimal(text)) is not None:
            found[at] = float(number - zero)
    return found


def _alike(texts: Sequence[str], zero: Decimal) -> Floats | None:
    """Return numbers with equally many digits behind the point less `zero`.

    None for other numbers, and for those that do not fit 64 bits.
    """
    joined = ",".join(texts).encode()
    if not joined or joined.translate(None, b"0123456789.,-"):
        return None
    letters = np.frombuffer(b",%b," % joined, np.uint8)
    commas = np.flatnonzero(letters == ord(","))
    starts, ends = commas[:-1] + 1, commas[1:]
    below = letters[starts] == ord("-")
    _, point, fraction = texts[0].partition(".")
    digits = len(fraction)
    points = ends - digits - len(point)
    if (
        len(ends) != len(texts)
        or (points - starts - below < 1).any()
        or joined.count(b"-") > np.count_nonzero(below)
        or joined.count(b".") != len(point) * len(texts)
        or (point and (letters[points] != ord(".")).any())
    ):
        return None
    values = np.fromstring(joined.replace(b".", b"").decode(), np.int64, sep=",")
    places = max(digits, -int(zero.as_tuple().exponent))
    if places > MOST_DIGITS or zero.adjusted() > MOST_DIGITS:
        return None
    # A number beyond 64 bits is read as the largest of these.
    largest = max(int(values.max()), -int(values.min()))
    factor = 10 ** (places - digits)
    if max(largest * factor, (abs(int(zero)) + 1) * 10**places) >= LARGEST:
        return None
    found = values * factor - int(zero.scaleb(places))
    times: Floats = found / 10.0**places
    # Up to 53 bits only the quotient is rounded; that of Python's integers always is exact.
    wide = np.flatnonzero(np.abs(found) > EXACT)
    times[wide] = [each / 10**places for each in found[wide].tolist()]
    return times


def decimal(text: str) -> Decimal | None:
    """Return a finite number; None for what is none, or has an exponent too large for decimals."""
    try:
        return Decimal(text) if math.isfinite(read_number(text)) else None
    except ArithmeticError:
        return None
