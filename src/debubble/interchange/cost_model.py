"""The schema of cost files, and error messages that name file, key and value.

Imported only when a cost file is read: pydantic takes longer to import than most simulations run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from debubble.core.costs import BASES
from debubble.core.ends import ENDS
from debubble.core.errors import FormatError, did_you_mean
from debubble.interchange.text import (
    LARGEST_COST,
    SHOWN,
    SMALLEST_BANDWIDTH,
    check_label,
    shown,
)
from debubble.schedules.registry import LIMITS

_PAIR = re.compile(r"\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*")
_STAGE = re.compile(r"[0-9]{1,9}")


class _WrongError(ValueError):
    """A value that cannot be used, and what is wrong with it after the key that has it."""

    def __init__(self, value: Any, advice: str, inside: str = "") -> None:
        super().__init__(f"{inside} is {shown(value)}; {advice}")


def _number(value: Any, advice: str = "give a number", inside: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _WrongError(value, advice, inside)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _WrongError(value, "give a finite number", inside)
    if number < 0:
        raise _WrongError(value, "costs are not negative", inside)
    if number > LARGEST_COST:
        raise _WrongError(value, f"costs go to {LARGEST_COST:g}; use another unit", inside)
    return number


def _per_stage(value: Any) -> Any:
    advice = "give a number, a list of numbers, or a mapping from stages to numbers"
    if isinstance(value, Mapping):
        found = {}
        for key, item in value.items():
            stage = int(key) if isinstance(key, str) and _STAGE.fullmatch(key) else key
            if type(stage) is not int or stage < 0:
                raise _WrongError(key, "keys are stages: 0, 1, 2, …", ": a key")
            if stage in found:
                raise _WrongError(key, "the same stage is there twice", ": a key")
            found[stage] = _number(item, inside=f"[{stage}]")
        missing = next((stage for stage in range(len(found)) if stage not in found), None)
        if missing is not None or not found:
            raise ValueError(f" has no value for stage {missing or 0}; give one from 0 on for all")
        return found
    if isinstance(value, list):
        if not value:
            raise _WrongError(value, advice)
        return tuple(_number(item, inside=f"[{index}]") for index, item in enumerate(value))
    return _number(value, advice)


def _share_per_stage(value: Any) -> Any:
    found = _per_stage(value)
    items = found.values() if isinstance(found, dict) else found
    for item in items if not isinstance(found, float) else (found,):
        if item > 1:
            raise _WrongError(item, "it is a share between 0 and 1")
    return found


def _pairs(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _number(value, 'give a number, or a mapping from pairs of stages: {"0,3": 2.5}')
    found = {}
    for key, item in value.items():
        match = _PAIR.fullmatch(key) if isinstance(key, str) else None
        if match is None:
            raise _WrongError(key, 'keys are "forward stage,backward stage": "0,3"', ": a key")
        found[int(match[1]), int(match[2])] = _number(item, inside=f"[{match[1]},{match[2]}]")
    return found


def _link(value: Any) -> Any:
    if not isinstance(value, list):
        return _number(value, "give a number, or a square matrix: one row per sending rank")
    rows = []
    for index, row in enumerate(value):
        if not isinstance(row, list) or len(row) != len(value):
            raise _WrongError(
                row, f"give {len(value)} numbers, one per receiving rank", f"[{index}]"
            )
        rows.append(
            tuple(_number(item, inside=f"[{index}][{column}]") for column, item in enumerate(row))
        )
    if not rows:
        raise _WrongError(value, "give a number")
    return tuple(rows)


def _positive(value: Any) -> float:
    number = _number(value)
    if number < SMALLEST_BANDWIDTH:
        raise _WrongError(value, "give a positive number")
    return number


def _limit(value: Any) -> float | tuple[float, ...]:
    if not isinstance(value, list):
        return _positive(value)
    if not value:
        raise _WrongError(value, "give one number, or a list with one per rank")
    return tuple(_positive(item) for item in value)


def _count(name: str) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        largest = LIMITS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            raise _WrongError(value, f"give a whole number from 1 to {largest:,}")
        return value

    return check


def _sharing(value: Any) -> int:
    if isinstance(value, bool) or value not in (1, 2):
        raise _WrongError(value, "a link to the host serves 1 or 2 ranks")
    return int(value)


def _label(value: Any) -> str:
    try:
        return check_label(value, "")
    except FormatError:
        raise _WrongError(value, "give text on one line, at most 200 characters") from None


def _basis(value: Any) -> str:
    if value not in BASES:
        raise _WrongError(value, "use 'action' or 'rank'")
    return str(value)


PerStage = Annotated[Any, BeforeValidator(_per_stage)]
Share = Annotated[Any, BeforeValidator(_share_per_stage)]
Number = Annotated[Any, BeforeValidator(_number)]
Positive = Annotated[Any, BeforeValidator(_positive)]
Label = Annotated[Any, BeforeValidator(_label)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PartTimes(_Strict):
    """Times of a part of the model that lives on one stage."""

    F: Number = None
    I: Number = None
    W: Number = None
    B: Number = None
    R: Number = None


class Times(_Strict):
    """Times of actions and transfers."""

    F: PerStage = None
    I: PerStage = None
    W: PerStage = None
    B: PerStage = None
    O: Annotated[Any, BeforeValidator(_pairs)] = None
    R: PerStage = None
    OPT: PerStage = None
    overlap_factor: Number = None
    attention: Share = None
    exchange: PerStage = None
    unshard: PerStage = None
    reduce_grad: PerStage = None
    p2p: Annotated[Any, BeforeValidator(_link)] = None
    message: Number = None
    bandwidth: Positive = None
    host_bandwidth: Positive = None
    host_link_shared_by: Annotated[Any, BeforeValidator(_sharing)] = None
    embedding: PartTimes | None = None
    head: PartTimes | None = None
    mtp: PartTimes | None = None


class Memory(_Strict):
    """Memory of activations."""

    unit: Label = ""
    activation: PerStage = None
    kept_for_weight: Share = None
    recompute_kept: Share = None
    offload_share: Share = None
    kv: PerStage = None
    limit: Annotated[Any, BeforeValidator(_limit)] = None
    embedding: Number = None
    head: Number = None
    mtp: Number = None


class CostModel(_Strict):
    """A cost file."""

    name: Label = ""
    source: Label = ""
    ranks: Annotated[Any, BeforeValidator(_count("ranks"))] = None
    microbatches: Annotated[Any, BeforeValidator(_count("microbatches"))] = None
    chunks: Annotated[Any, BeforeValidator(_count("chunks"))] = None
    basis: Annotated[Any, BeforeValidator(_basis)] = "action"
    time_unit: Label = ""
    times: Times
    memory: Memory = Memory()
    expected: dict[str, Any] = {}


_SECTIONS: dict[tuple[str, ...], type[_Strict]] = {
    (): CostModel, ("times",): Times, ("memory",): Memory,
    **{("times", part): PartTimes for part in ENDS},
}  # fmt: skip


def validate(data: Any, where: str) -> CostModel:
    """Check the data of a cost file.

    Raises
    ------
    FormatError
        With the file, the dotted key and the value of the first thing that is wrong.
    """
    if not isinstance(data, Mapping):
        raise FormatError(f"{where}: {shown(data)} is no cost file; it needs times: {{F: 1, B: 2}}")
    try:
        model = CostModel.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # A misspelt key is the reason when another is missing.
        first = next((item for item in found if item["type"] == "extra_forbidden"), found[0])
        raise FormatError(f"{where}: {_message(first)}") from None
    if not model.times.model_fields_set:
        raise FormatError(f"{where}: times is empty; give at least F and B, or F, I and W")
    return model


def _message(error: Any) -> str:
    place = tuple(str(part) for part in error["loc"])
    key = ".".join(place)
    kind, value = error["type"], error["input"]
    if kind == "value_error":
        return f"{key}{error['ctx']['error']}"
    if kind == "extra_forbidden":
        known = _SECTIONS[place[:-1]].model_fields
        return f"unknown key {shown(key)}; {did_you_mean(place[-1][:SHOWN], known)}"
    if kind == "missing":
        return f"{key} is missing; give times: {{F: 1, B: 2}}"
    if kind in ("invalid_key", "string_unicode"):
        return f"{key or 'a key'} is no key; keys are text"
    if kind in ("model_type", "dict_type"):
        return f"{key} is {shown(value)}; give a mapping"
    return f"{key or 'a key'} is {shown(value)}; {error['msg']}"
