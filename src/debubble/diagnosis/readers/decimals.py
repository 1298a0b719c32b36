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
Whole = NDArray[np.int64]

_PLAIN = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?", re.ASCII)

EXACT = 1 << 53
"""Whole number up to which floats have all."""

MOST_DIGITS = 18
"""Digits behind a point up to which a number may fit 64 bits."""

LARGEST = 1 << 62
"""Whole number whose difference from another fits 64 bits."""


def times_less(texts: Sequence[str], zero: Decimal) -> Floats:
    """Return numbers less `zero`, correctly rounded; NaN for what is none."""
    if "" in texts:
        # Any number in place of empty cells has all of them read at once.
        some = next(filter(None, texts), "0")
        found = times_less([text or some for text in texts], zero)
        found[~np.fromiter(map(bool, texts), bool, len(texts))] = np.nan
        return found
    times = _times_alike(texts, zero)
    if times is None:
        times = _plain_times(texts, zero)
    if times is not None:
        return times
    found = np.full(len(texts), np.nan)
    plain = [at for at, text in enumerate(texts) if _PLAIN.fullmatch(text)]
    times = _plain_times([texts[at] for at in plain], zero)
    if times is None:
        plain = []
    else:
        found[plain] = times
    for at in sorted(set(range(len(texts))).difference(plain)):
        number = decimal(texts[at])
        found[at] = math.nan if number is None else float(number - zero)
    return found


def _times_alike(texts: Sequence[str], zero: Decimal) -> Floats | None:
    """Return numbers with equally many digits behind the point less `zero`; None for others."""
    joined = ",".join(texts).encode()
    if not joined or joined.translate(None, b"0123456789.,-"):
        return None
    letters = np.frombuffer(b",%b," % joined, np.uint8)
    commas, points = (np.flatnonzero(letters == ord(each)) for each in ",.")
    starts, ends = commas[:-1] + 1, commas[1:]
    below = letters[starts] == ord("-")
    points = points if len(points) else ends
    if len(points) != len(ends) or joined.count(b"-") > np.count_nonzero(below):
        return None
    behind = ends - points
    if (behind != behind[0]).any() or (points - starts - below < 1).any():
        return None
    digits = max(int(behind[0]) - 1, 0)
    values = np.fromstring(joined.replace(b".", b"").decode(), np.int64, sep=",")
    return _less(values, None, digits, zero)


def _plain_times(texts: Sequence[str], zero: Decimal) -> Floats | None:
    """Return numbers without an exponent less `zero`; None where one is another or too long."""
    joined = ",".join(texts).encode()
    if not joined or joined.translate(None, b"0123456789.,-"):
        return None
    letters = np.frombuffer(b",%b," % joined, np.uint8)
    edges = np.flatnonzero((letters == ord(",")) | (letters == ord(".")))
    is_fraction = letters[edges[:-1]] == ord(".")
    below = letters[edges[:-1] + 1] == ord("-")
    length = np.diff(edges) - 1 - below
    if (
        length.min() < 1 or length[is_fraction].max(initial=0) > MOST_DIGITS
        or (is_fraction & (below | np.append(is_fraction[1:], False))).any()
        or joined.count(b"-") > np.count_nonzero(below)
    ):  # fmt: skip
        return None
    values = np.fromstring(joined.replace(b".", b",").decode(), np.int64, sep=",")
    digits = int(length[is_fraction].max(initial=0))
    rest = np.zeros(len(texts), np.int64)
    has_fraction = np.append(is_fraction[1:], False)[~is_fraction]
    rest[has_fraction] = values[is_fraction] * 10 ** (digits - length[is_fraction])
    rest[below[~is_fraction]] *= -1
    return _less(values[~is_fraction], rest, digits, zero)


def _less(values: Whole, rest: Whole | None, digits: int, zero: Decimal) -> Floats | None:
    """Return numbers less `zero`, correctly rounded; None where that does not fit 64 bits.

    They are `values` of so many digits behind the point; with `rest`, whole numbers and what is
    behind the point.
    """
    places = max(digits, -int(zero.as_tuple().exponent))
    if places > MOST_DIGITS or zero.adjusted() > MOST_DIGITS:
        return None
    # A number beyond 64 bits is read as the largest of these.
    largest = max(int(values.max()), -int(values.min())) + (rest is not None)
    factor = 10 ** (places - (0 if rest is not None else digits))
    if max(largest * factor, (abs(int(zero)) + 1) * 10**places) >= LARGEST:
        return None
    found = values * factor
    if rest is not None:
        found += rest * 10 ** (places - digits)
    found -= int(zero.scaleb(places))
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
