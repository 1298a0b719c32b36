"""Parameters that a sweep can vary: the check of a value, and the files that a value names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from debubble.analysis.question import OPTIONS
from debubble.core.costs import BASES, COST_FIELDS, Costs, check_cost
from debubble.core.embedding_and_head import KEYS, PARTS
from debubble.core.errors import ParameterError, WrongValueError, did_you_mean
from debubble.core.former_names import current_name
from debubble.core.options import OptionType, Range, Word, quoted
from debubble.core.runtimes import RUNTIMES
from debubble.core.schedule_fields import plain_cost
from debubble.interchange.files import is_file_name, is_foreign, is_function
from debubble.interchange.named import SIZES as NAMES_OF_SIZES
from debubble.planner.candidate import PRECISIONS
from debubble.planner.frameworks.table import ANY, FRAMEWORKS
from debubble.planner.hardware.cluster import find_gpu
from debubble.planner.model.files import ENDINGS, read_model
from debubble.planner.options import ROWS, STATE
from debubble.planner.request import SIZES as SIZES_OF_PLANS
from debubble.schedules.registry import entries, find


@dataclass(frozen=True)
class Parameter:
    """The values of a parameter that is no row of the table of options."""

    check: Callable[[str, Any], Any]
    """Returns the value to compute with, given the parameter's name and the value in a spec: plain
    data, equal where two values mean the same. A value that cannot be used is refused."""
    range: Range = ""
    """The numbers that a range has; empty where values are no numbers."""
    files: Callable[[Any], list[str]] = lambda value: []  # noqa: ARG005 - most name no file
    """The files that a value names. Their content is part of what a point is."""


def schedule_name(name: str, value: Any) -> str:
    """Return the name of a schedule; the registered one for an alias."""
    if not isinstance(value, str):
        raise ParameterError(f"{name} is {quoted(value)}; give a name such as 1f1b")
    return value if is_foreign(value) else find(value).name


def _schedule_names(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ParameterError(f"{name} is {quoted(value)}; give a list such as [1f1b, zb-h1]")
    return [schedule_name(name, item) for item in value]


def _schedule_files(*names: str) -> list[str]:
    return [
        name if is_file_name(name) else name.rpartition(":")[0]
        for name in names if is_file_name(name) or is_function(name)
    ]  # fmt: skip


def _cost(name: str, value: Any) -> Any:
    """Check ``costs.F``, ``costs.head.F`` or ``costs.basis``, or ``costs``, a file's name."""
    if name == "costs":
        if not isinstance(value, str):
            raise ParameterError(f"costs is {quoted(value)}; give a cost file, or costs.F: 1")
        return value
    cost = current_name(name.removeprefix("costs."), "costs.{}")
    part, _, key = cost.partition(".")
    words = {"basis": BASES, "runtime": (*RUNTIMES,)}
    try:
        if part in PARTS and key in KEYS:
            return check_cost(part, {key: value})[key]
        if cost in words:
            return Word(words[cost]).check(name, value)
        if cost in COST_FIELDS:
            return plain_cost(check_cost(cost, value))
    except WrongValueError as error:
        raise ParameterError(f"costs.{error.text(quoted)}") from None
    if cost in ("time_unit", "memory_unit") and isinstance(value, str):
        return value
    known = [spec.name for spec in fields(Costs)] + [f"{p}.{k}" for p in PARTS for k in KEYS]
    raise ParameterError(f"unknown cost '{name}'; {did_you_mean(cost, known)}")


def _option(name: str, value: Any) -> Any:
    """Check the option of a schedule, such as ``options.group_size``."""
    known = {option.name for entry in entries().values() for option in entry.options}
    key = name.removeprefix("options.")
    if key not in known:
        raise ParameterError(f"unknown option '{name}'; {did_you_mean(key, known)}")
    return value


Parameters = Mapping[str, OptionType | Parameter]

_OPTIONS: Parameters = {row.name: row.type for row in OPTIONS if not row.typed_only}

SIZES: Parameters = {name: _OPTIONS[name] for name in NAMES_OF_SIZES}
COSTS: Parameters = {
    "costs": Parameter(_cost, files=lambda value: [value]),
    "costs.*": Parameter(_cost, "real"),
    "memory": _OPTIONS["memory"],
    "p2p_mode": _OPTIONS["p2p_mode"],
}
SIMULATION: Parameters = {**_OPTIONS, **COSTS, "options.*": Parameter(_option, "whole")}
SCHEDULE = Parameter(schedule_name, files=_schedule_files)
SCHEDULES = Parameter(_schedule_names, files=lambda names: _schedule_files(*names))


def _model_files(value: str) -> list[str]:
    return [value] if value.lower().endswith(ENDINGS) else []


def _model(name: str, value: Any) -> str:
    text = _text(name, value, "llama-3.1-8b")
    if not _model_files(text):
        read_model(text)
    return text


def _gpu(name: str, value: Any) -> str:
    text = _text(name, value, "h100")
    return text if _model_files(text) else find_gpu(text).name


def _memory(name: str, value: Any) -> str:
    return _text(name, str(value) if isinstance(value, int | float) else value, "72GB")


def _text(name: str, value: Any, example: str) -> str:
    if not isinstance(value, str) or not value:
        raise ParameterError(f"{name} is {value!r}; give a text such as {example}")
    return value


def _schedules(name: str, value: Any) -> list[str]:
    names = value if isinstance(value, list) else [value]
    return [schedule_name(name, item) for item in names]


PLAN: Parameters = {
    "model": Parameter(_model, files=_model_files),
    "gpu": Parameter(_gpu, files=_model_files),
    **{
        name: ROWS[name].type
        for name in ("gpus", "batch", "seq", *SIZES_OF_PLANS, "recompute", "zero")
    },
    "schedules": Parameter(_schedules),
    "precision": Word(tuple(PRECISIONS)),
    "framework": Word((*FRAMEWORKS, ANY)),
    "memory": Parameter(_memory),
    "imbalance": ROWS["imbalance"].type,
    **{row.name: row.type for row in STATE},
}
