"""Parameters that a sweep can vary: how the value of each is read, and what a range of it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from debubble.analysis.question import OPTIONS
from debubble.core.cost_fields import current_name
from debubble.core.costs import BASES, COST_FIELDS, RUNTIMES, Costs, check_cost
from debubble.core.embedding_and_head import KEYS, PARTS
from debubble.core.errors import ParameterError, WrongValueError, did_you_mean
from debubble.core.options import LARGEST, OptionType, Range, Real, Whole, Word, quoted
from debubble.interchange.files import is_file_name, is_foreign, is_function
from debubble.interchange.named import SIZES as SIZES_OF_FILES
from debubble.schedules.registry import entries, find

Read = Callable[[str, Any], Any]
"""The value to compute with, from the parameter's name and the value in a file.

It is plain data, equal where two values mean the same, and the read raises
:class:`~debubble.core.errors.ParameterError` for one that cannot be used.
"""


def _no_files(value: Any) -> list[str]:  # noqa: ARG001 - all are called alike
    return []


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command.

    Parameters
    ----------
    read
        Reads one value.
    range
        The numbers that a range of it gives; empty where it is no number.
    files
        Files that a value names. Their content is part of what a point is.
    """

    read: Read
    range: Range = ""
    files: Callable[[Any], list[str]] = _no_files


def of_type(values: OptionType) -> Parameter:
    """A parameter whose values are of a type of options."""
    return Parameter(values.check, values.range)


def whole(most: int, least: int = 1) -> Parameter:
    """A whole number."""
    return of_type(Whole(most, least))


def number(least: float = 0.0, most: float = LARGEST) -> Parameter:
    """A number above `least` and up to `most`."""
    return of_type(Real(least, most))


def one_of(known: Iterable[str]) -> Parameter:
    """One of some words."""
    return of_type(Word(tuple(known)))


def schedule_name(name: str, value: Any) -> str:
    """Read the name of a schedule; the registered one for an alias."""
    if not isinstance(value, str):
        raise ParameterError(f"{name} is {quoted(value)}; give a name such as 1f1b")
    return value if is_foreign(value) else find(value).name


def _schedule_files(value: str) -> list[str]:
    if is_file_name(value):
        return [value]
    return [value.rpartition(":")[0]] if is_function(value) else []


def _schedule_names(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ParameterError(f"{name} is {quoted(value)}; give a list such as [1f1b, zb-h1]")
    return [schedule_name(name, item) for item in value]


def _cost(name: str, value: Any) -> Any:
    """Read ``costs.F``, ``costs.head.F`` or ``costs.basis``, or ``costs``, a file's name."""
    if name == "costs":
        if not isinstance(value, str):
            raise ParameterError(f"costs is {quoted(value)}; give a cost file, or costs.F: 1")
        return value
    cost = current_name(name.removeprefix("costs."), "costs.{}")
    part, _, key = cost.partition(".")
    words = {"basis": BASES, "runtime": RUNTIMES}
    try:
        if part in PARTS and key in KEYS:
            return check_cost(part, {key: value})[key]
        if cost in words:
            return one_of(words[cost]).read(name, value)
        if cost in COST_FIELDS:
            return _plain(check_cost(cost, value))
    except WrongValueError as error:
        raise ParameterError(f"costs.{error.text(quoted)}") from None
    if cost in ("time_unit", "memory_unit") and isinstance(value, str):
        return value
    known = [spec.name for spec in fields(Costs)] + [f"{p}.{k}" for p in PARTS for k in KEYS]
    raise ParameterError(f"unknown cost '{name}'; {did_you_mean(cost, known)}")


def _plain(value: Any) -> Any:
    """A cost as data for JSON, which :func:`debubble.core.costs.check_cost` reads as the same."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {",".join(map(str, np.atleast_1d(key))): item for key, item in value.items()}
    return value


def _option(name: str, value: Any) -> Any:
    """Read the option of a schedule, such as ``options.group_size``."""
    known = {option.name for entry in entries().values() for option in entry.options}
    key = name.removeprefix("options.")
    if key not in known:
        raise ParameterError(f"unknown option '{name}'; {did_you_mean(key, known)}")
    return value


_OPTIONS = {row.name: of_type(row.type) for row in OPTIONS if not row.typed_only}

SIZES: Mapping[str, Parameter] = {name: _OPTIONS[name] for name in SIZES_OF_FILES}
COSTS: Mapping[str, Parameter] = {
    "costs": Parameter(_cost, files=lambda value: [value]),
    "costs.*": Parameter(_cost, "real"),
    "memory": _OPTIONS["memory"],
    "p2p_mode": _OPTIONS["p2p_mode"],
}
SIMULATION: Mapping[str, Parameter] = {
    **_OPTIONS, **COSTS, "options.*": Parameter(_option, "whole"),
}  # fmt: skip
SCHEDULE = Parameter(schedule_name, files=_schedule_files)
SCHEDULES = Parameter(
    _schedule_names, files=lambda value: [path for name in value for path in _schedule_files(name)]
)
