"""Options of schedules as text and as values from files, checked against what schedules declare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.options import read_whole
from debubble.core.units import read_number
from debubble.interchange.text import shown
from debubble.schedules.registry import Option

ANY_TYPE = "int | float | bool | str"
"""Type of an option whose schedule declares none."""

_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def parse_options(pairs: Iterable[str], known: Mapping[str, Option]) -> dict[str, Any]:
    """Parse options such as ``group_size=4`` to values of the types that schedules declare.

    Hyphens in a key count as underscores; `known` are the options that exist, by name. Raises
    ParameterError for a text without ``=``, an unknown or repeated key, or a value of another type.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise ParameterError(f"--option {shown(pair)}; write KEY=VALUE, such as group_size=4")
        if key not in known:
            hint = did_you_mean(key, known) if known else "these schedules have no options"
            raise ParameterError(f"unknown option {shown(key)}; {hint}")
        if key in found:
            raise ParameterError(f"option '{key}' is given twice; give it once")
        found[key] = _value(text.strip(), known[key])
    return found


def _value(text: str, option: Option) -> Any:
    names = option.types
    for name, read in _READERS.items():
        if name in names:
            try:
                return read(text)
            except (ValueError, KeyError):
                continue
    if "None" in names and text.lower() in ("none", ""):
        return None
    kinds = " or ".join(name for name in names if name != "None")
    raise ParameterError(f"option {option.name} is {shown(text)}; give a value of type {kinds}")


def _finite(text: str) -> float:
    number = read_number(text)
    if not math.isfinite(number):
        raise ValueError
    return number


_READERS: dict[str, Callable[[str], Any]] = {
    "int": lambda text: read_whole("", text), "float": _finite,
    "bool": lambda text: _WORDS[text.lower()], "str": str,
}  # fmt: skip
