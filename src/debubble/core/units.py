"""Numbers and their texts: whole numbers, shares, times and amounts of memory with units."""

from __future__ import annotations

import math
import re
import reprlib
from numbers import Integral
from typing import Any, NamedTuple, TypeGuard

from debubble.core.errors import ParameterError

_BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("bytes", "kB", "MB", "GB", "TB", "PB")
_NAMES = {
    **{name.lower(): (_BINARY, power) for power, name in enumerate(_BINARY)},
    **{name.lower(): (_DECIMAL, power) for power, name in enumerate(_DECIMAL) if power},
    "b": (_BINARY, 0),
    "byte": (_BINARY, 0),
}
"""Units of memory that larger ones are known for, and their places in their family."""


class Scale(NamedTuple):
    """A unit to write values in."""

    unit: str
    """Its name, empty when it has none."""
    size: float = 1.0
    """Divisor of values."""

    def text(self, value: float, digits: int = 4) -> str:
        """Return a value in this unit, without its name, in `digits` digits when converted."""
        return number(value) if self.size == 1 else number(value / self.size, digits)


def memory_scale(unit: str, largest: float) -> Scale:
    """Return the unit in which amounts up to `largest` are read best.

    Bytes, and multiples of them, become the largest multiple of their family (KiB, MiB, … or kB,
    MB, …) that `largest` has one of, but none below the given unit. Other units stay.

    Parameters
    ----------
    unit
        Unit of the values, for instance ``"bytes"`` or ``"GB"``.
    largest
        The largest of the values that are to be written in one unit.

    Examples
    --------
    >>> memory_scale("bytes", 3_334_144), memory_scale("GB", 0.6), memory_scale("tokens", 1e9)
    (Scale(unit='MiB', size=1048576.0), Scale(unit='GB', size=1.0), Scale(unit='tokens', size=1.0))
    """
    if unit.strip().lower() not in _NAMES:
        return Scale(unit)
    family, power = _NAMES[unit.strip().lower()]
    factor = 1024.0 if family is _BINARY else 1000.0
    size = 1.0
    while power + 1 < len(family) and abs(largest) >= size * factor:
        power, size = power + 1, size * factor
    return Scale(family[power] if size > 1 else unit, size)


def factor(given: str, unit: str) -> float:
    """Return one `given` in terms of `unit`; NaN where they are not both units of bytes.

    Examples
    --------
    >>> factor("GB", "bytes"), factor("GiB", "MiB"), factor("GB", "tokens")
    (1000000000.0, 1024.0, nan)
    """
    sizes = []
    for name in (given, unit):
        family, power = _NAMES.get(name.strip().lower(), (_BINARY, math.nan))
        sizes.append((1024.0 if family is _BINARY else 1000.0) ** power)
    return sizes[0] / sizes[1]


def amount(value: float, unit: str, digits: int = 4) -> str:
    """Return an amount of memory with its unit.

    Examples
    --------
    >>> amount(3_334_144, "bytes"), amount(81_920, "MiB"), amount(0.6, "GB"), amount(12, "")
    ('3.18 MiB', '80 GiB', '0.6 GB', '12')
    """
    scale = memory_scale(unit, value)
    return f"{scale.text(value, digits)} {scale.unit}".rstrip()


def time(value: float, unit: str) -> str:
    """Return a time with its unit, if that has a name.

    Examples
    --------
    >>> time(2356.835, "ms"), time(33.0, "")
    ('2,356.84 ms', '33')
    """
    return f"{number(value)} {unit}".rstrip()


def number(value: float, digits: int = 6) -> str:
    """Return a number for people: six digits, thousands apart, no trailing zeros.

    Examples
    --------
    >>> number(33.0), number(0.1 + 0.2), number(1234567.8), number(-0.0)
    ('33', '0.3', '1,234,568', '0')
    """
    if 10**digits <= abs(value) < 1e15:
        return f"{value + 0.0:,.0f}"
    return f"{value + 0.0:,.{digits}g}"


def counted(amount: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> counted(1, "rank"), counted(2048, "microbatch")
    ('1 rank', '2,048 microbatches')
    """
    return f"{amount:,} {noun if amount == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun: ranks, microbatches."""
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun.endswith("ch") else "s")


def percent(share: float) -> str:
    """Return an exact share as a percentage with two decimals; there is no minus zero.

    What is less than rounding shows, but more than its error, is not nothing.

    Examples
    --------
    >>> percent(1.0), percent(0.27272727), percent(-1e-17), percent(4e-5)
    ('100.00 %', '27.27 %', '0.00 %', '< 0.01 %')
    """
    if 1e-9 < share < 0.5e-4:
        return "< 0.01 %"
    return f"{round(share * 100, 2) + 0.0:.2f} %"


def rough_percent(share: float) -> str:
    """Return a measured or estimated share as a percentage with the two digits that are meant.

    Examples
    --------
    >>> rough_percent(0.2727), rough_percent(0.0432), rough_percent(0.0004), rough_percent(1.234)
    ('27 %', '4.3 %', '0.04 %', '123 %')
    """
    value = float(f"{100 * share:.2g}") if abs(share) < 1 else 100 * share
    digits = 0 if abs(value) >= 10 else 1 if abs(value) >= 1 else 2
    return f"{round(value, digits) + 0.0:.{digits}f} %"


def plain(value: float) -> float:
    """Return a number without digits that only rounding has put there; others are as they are.

    Examples
    --------
    >>> plain(58.900000000000006), plain(1 / 3)
    (58.9, 0.3333333333333333)
    """
    short = f"{value:.12g}"
    mantissa = short.partition("e")[0].lstrip("-0.").replace(".", "").rstrip("0")
    return float(short) if len(mantissa) <= 10 else value


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number of Python or NumPy; a boolean is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a plain number; a boolean is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole_number(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return a whole number within its limits, as Python's; a ParameterError where it is none."""
    if not is_whole(value) or value < least or (most is not None and value > most):
        limits = f"from {least} up" if most is None else f"from {least} to {most:,}"
        raise ParameterError(f"{name} is {reprlib.repr(value)}; give a whole number {limits}")
    return int(value)


_WHOLE = re.compile(r"[-+]?[0-9]{1,40}")


def parse_whole(text: str) -> int | None:
    """Return the whole number in a text; None for every other text.

    Examples
    --------
    >>> parse_whole(" 12 "), parse_whole("1_0"), parse_whole("1.0"), parse_whole("٣")
    (12, None, None, None)
    """
    return int(text) if _WHOLE.fullmatch(text.strip(" ")) else None


_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def read_number(text: str) -> float:
    """Parse a number as cost files write it, ``1.5`` or ``1e-3``; NaN for every other text.

    Examples
    --------
    >>> read_number(" 1e3 "), read_number("1_0"), read_number("٣"), read_number("inf")
    (1000.0, nan, nan, nan)
    """
    return float(text) if _NUMBER.fullmatch(text.strip(" ")) else math.nan
