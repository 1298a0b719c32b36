"""Fields of costs: the shapes of their values, and the one check of a value of each shape.

A field of :class:`debubble.Costs` carries this as its metadata, see
:data:`debubble.core.costs.COST_FIELDS`. Files, ``--times`` and the documentation read it too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from debubble.core.embedding_and_head import KEYS, TIMES
from debubble.core.errors import WrongValueError, did_you_mean
from debubble.core.units import is_whole, plural

LARGEST_COST, SMALLEST_BANDWIDTH = 1e100, 1e-100
"""Limits of costs, so that no sum or quotient of them is infinite."""

DEFAULT = "default"
"""Key of a mapping's value for every stage that the mapping does not name."""

Shape = Literal[
    "stage", "rank", "pair", "microbatch", "boundary", "link", "number", "rate", "sharing", "part"
]  # fmt: skip

SHAPES: dict[Shape, str] = {
    "stage": "one number, or one per stage",
    "rank": "one number, or one per rank",
    "pair": "one number, one per stage of the forward, or one per pair of stages",
    "microbatch": "one number, or one per microbatch",
    "boundary": "one number, or one per boundary between stages",
    "link": "one number, or a matrix of ranks",
    "number": "one number",
    "rate": "one number",
    "sharing": "1 or 2",
    "part": f"{', '.join(TIMES)}: one number each",
}
"""The shape of a value in words."""

InForms = Literal["read", "uniform", "absent", "no effect"]
"""Use of a cost in closed forms of schedules: they read it, whatever it is by stage or rank, and
hold where it is as they need it; they read it where it is the same everywhere, and do not hold
elsewhere; they know nothing of it, and hold where it is not there; or it changes nothing that forms
are about."""


@dataclass(frozen=True)
class CostField:
    """A cost: its shape, its section of a file and its texts."""

    name: str
    """Its name in :class:`debubble.Costs`, in cost files and in ``--times``."""
    shape: Shape
    """Shape of its value, see :data:`SHAPES`."""
    in_forms: InForms
    """Use in closed forms."""
    example: str
    """A value as YAML."""
    text: str
    """Description in one line."""
    section: Literal["times", "memory"] = "times"
    """Section of a cost file."""
    share: bool = False
    """Whether it is a share, from 0 to 1."""
    timed: bool = False
    """Whether it is a time, which changes with the unit of time."""

    @property
    def changes(self) -> tuple[str, ...]:
        """Results that it is part of: ``"times"``, ``"memory"``, or both."""
        if self.section == "memory":
            return ("memory",)
        return ("times",) if self.timed and self.shape != "part" else ("times", "memory")

    def numbers(self, value: Any) -> list[float]:
        """Return all numbers of a checked value; of a matrix of links, those between two ranks."""
        if value is None:
            return []
        if isinstance(value, Mapping):
            return list(value.values())
        if not isinstance(value, tuple):
            return [value]
        if self.shape != "link":
            return list(value)
        return [time for at, row in enumerate(value) for to, time in enumerate(row) if at != to]

    def uniform(self, value: Any) -> bool:
        """Return whether a checked value is the same everywhere."""
        some = self.shape == "pair" and isinstance(value, Mapping) and DEFAULT not in value
        return not some and len(set(self.numbers(value))) <= 1

    def there(self, value: Any) -> bool:
        """Return whether a checked value changes anything: a length that is not 1, others not 0."""
        nothing = 1.0 if self.shape == "microbatch" else 0.0
        return any(number != nothing for number in self.numbers(value))

    def scaled(self, value: Any, factor: float) -> Any:
        """Return a checked value for times that are `factor` times as long."""
        if self.shape == "rate":
            return value / factor
        if value is None or not self.timed:
            return value
        if isinstance(value, Mapping):
            held = {key: value[key] for key in value if key == "activation"}
            return {key: number * factor for key, number in value.items()} | held
        if isinstance(value, tuple):
            return tuple(self.scaled(item, factor) for item in value)
        return value * factor


def cost(
    default: Any, shape: Shape, in_forms: InForms, example: str, text: str, *,
    memory: bool = False, **more: bool,
) -> Any:  # fmt: skip
    """Return a field of :class:`debubble.Costs` with its default and a :class:`CostField`."""
    section: Literal["times", "memory"] = "memory" if memory else "times"
    spec = CostField("", shape, in_forms, example, text, section, **more)
    return field(default=default, metadata={"cost": spec})


def timed(
    example: str, text: str, in_forms: InForms = "uniform", shape: Shape = "stage",
    default: float | None = None,
) -> Any:  # fmt: skip
    """Return the field of a time, see :func:`cost`; one without default follows from others."""
    return cost(default, shape, in_forms, example, text, timed=True)


def cost_fields(cls: type) -> dict[str, CostField]:
    """Return the costs among the fields of a dataclass, by name."""
    return {
        item.name: replace(item.metadata["cost"], name=item.name)
        for item in fields(cls)
        if "cost" in item.metadata
    }


_ANY = CostField("", "number", "no effect", "0", "any number")


def check_value(spec: CostField, value: Any) -> Any:
    """Check the value of a cost, and return it as plain numbers, tuples and dictionaries.

    That is one number; a number for each stage, rank or microbatch; or numbers by stage, by pair of
    stages and for :data:`DEFAULT`. Raises WrongValueError where the cost cannot have the value.
    """
    return _CHECKS[spec.shape](spec, _plain(value))


def check_number(value: Any, path: str) -> float:
    """Check a number that is a cost; raises WrongValueError for anything else."""
    return _number(_ANY, value, path)


def _plain(value: Any) -> Any:
    """Return lists and numbers in place of arrays and tensors."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    return value


def _number(spec: CostField, value: Any, path: str, advice: str = "give a number") -> float:
    if type(value) is float and 0.0 <= value <= _most(spec):
        return value  # as almost all are
    value = _plain(value)
    wrong = isinstance(value, bool | str | bytes | bytearray | Sequence | Mapping)
    number = math.nan
    try:
        number = number if wrong else float(value)
    except OverflowError:
        number = math.inf
    except Exception:  # float() runs what the value's class says
        wrong = True
    if wrong:
        raise WrongValueError(path, value, advice)
    if not math.isfinite(number):
        raise WrongValueError(path, value, "give a finite number")
    if number < 0:
        raise WrongValueError(path, value, "costs are not negative")
    if number > LARGEST_COST:
        raise WrongValueError(path, value, f"costs go to {LARGEST_COST:g}; use another unit")
    if spec.share and number > 1:
        raise WrongValueError(path, value, "it is a share between 0 and 1")
    return number


def _most(spec: CostField) -> float:
    return 1.0 if spec.share else LARGEST_COST


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


_KEY = "{path} has the key {value}; "
_UNKNOWN = "{path} has an unknown cost {value}; "

_STAGE = re.compile(r"[0-9]{1,9}")
_PAIR = re.compile(r"\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*")


def _stage_key(key: Any) -> int | str | None:
    """Return a stage, or the word for all others; None for what is neither."""
    if key == DEFAULT and isinstance(key, str):
        return DEFAULT
    if isinstance(key, str):
        return int(key) if _STAGE.fullmatch(key) else None
    return int(key) if is_whole(key) and key >= 0 else None


def _pair_key(key: Any) -> int | str | tuple[int, int] | None:
    if isinstance(key, str) and (match := _PAIR.fullmatch(key)):
        return int(match[1]), int(match[2])
    if isinstance(key, tuple):
        stages = [_stage_key(stage) for stage in key]
        if len(stages) == 2 and all(isinstance(stage, int) for stage in stages):
            return stages[0], stages[1]  # type: ignore[return-value]
        return None
    return _stage_key(key)


def _mapping(
    spec: CostField, value: Mapping[Any, Any], read: Callable[[Any], Any], keys: str
) -> dict[Any, float]:
    found: dict[Any, float] = {}
    for key, item in value.items():
        owner = read(key)
        if owner is None:
            raise WrongValueError(spec.name, key, keys, _KEY)
        if owner in found:
            raise WrongValueError(spec.name, key, "it is there twice; remove one", _KEY)
        text = ",".join(map(str, owner)) if isinstance(owner, tuple) else owner
        found[owner] = _number(spec, item, f"{spec.name}[{text}]")
    return found


def _several(
    spec: CostField, value: Any, advice: str, mapping: Callable[[Mapping[Any, Any]], Any]
) -> Any:
    """Check one number, a list of them, or a mapping by means of `mapping`."""
    if isinstance(value, Mapping):
        return mapping(value)
    if not _is_list(value):
        return _number(spec, value, spec.name, advice)
    if not value:
        raise WrongValueError(spec.name, value, advice)
    most = _most(spec)
    if all(type(item) is float and 0.0 <= item <= most for item in value):
        return tuple(value)
    return tuple(_number(spec, item, f"{spec.name}[{index}]") for index, item in enumerate(value))


def _spread(spec: CostField, value: Any) -> Any:
    owner = spec.shape
    owners = plural(owner)
    advice = f"give a number, a list with one per {owner}, or a mapping from {owners} to numbers"

    def mapping(value: Mapping[Any, Any]) -> Any:
        keys = f"keys are {owners} 0, 1, 2, … and '{DEFAULT}' for all others"
        found = _mapping(spec, value, _stage_key, keys)
        missing = next((stage for stage in range(len(found)) if stage not in found), None)
        if DEFAULT not in found and (missing is not None or not found):
            advice = f"give all from 0 on, or one for all others: {{{DEFAULT}: 1, 2: 1.5}}"
            form = f"{{path}} has no value for {owner} {missing or 0}; "
            raise WrongValueError(spec.name, value, advice, form)
        return found

    return _several(spec, value, advice, mapping)


def _pairs(spec: CostField, value: Any) -> Any:
    advice = 'give a number, a list with one per stage, or a mapping: {3: 2.5, "0,3": 2.6}'

    def mapping(value: Mapping[Any, Any]) -> Any:
        keys = (
            f'keys are stages of the forward: 3, pairs with the stage of the backward: "0,3", and '
            f"'{DEFAULT}' for all others"
        )
        found = _mapping(spec, value, _pair_key, keys)
        if not found:
            raise WrongValueError(spec.name, value, advice)
        return found

    return _several(spec, value, advice, mapping)


def _link(spec: CostField, value: Any) -> Any:
    advice = "give a number, or a square matrix with one row per sending rank"
    if not _is_list(value):
        return _number(spec, value, spec.name, advice)
    rows = [_plain(row) for row in value]
    if not rows or not any(map(_is_list, rows)):
        raise WrongValueError(spec.name, value, advice)
    count, found = len(rows), []
    for index, row in enumerate(rows):
        path = f"{spec.name}[{index}]"
        if not _is_list(row):
            raise WrongValueError(path, row, f"give {count} numbers, one per receiving rank")
        if len(row) != count:
            form = f"{{path}} has {len(row)} numbers; "
            raise WrongValueError(path, row, f"give {count}, one per receiving rank", form)
        found.append(
            tuple(_number(spec, item, f"{path}[{column}]") for column, item in enumerate(row))
        )
    return tuple(found)


def _rate(spec: CostField, value: Any) -> float:
    if isinstance(value, float) and value == math.inf:
        return value
    number = _number(spec, value, spec.name)
    if number < SMALLEST_BANDWIDTH:
        raise WrongValueError(spec.name, value, "give a positive number")
    return number


def _sharing(spec: CostField, value: Any) -> int:
    if isinstance(value, bool) or value not in (1, 2):
        raise WrongValueError(spec.name, value, "a link to the host serves 1 or 2 ranks")
    return int(value)


def _part(spec: CostField, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise WrongValueError(spec.name, value, "give a mapping, for instance {'F': 1, 'B': 2}")
    found = {}
    for key, item in value.items():
        if key not in KEYS:
            raise WrongValueError(spec.name, key, did_you_mean(str(key), KEYS), _UNKNOWN)
        advice = "give one number: it is for one stage"
        found[key] = _number(spec, item, f"{spec.name}[{key}]", advice)
    return found


_CHECKS: dict[Shape, Callable[[CostField, Any], Any]] = {
    "stage": _spread, "rank": _spread, "pair": _pairs, "microbatch": _spread, "boundary": _spread,
    "link": _link, "rate": _rate, "sharing": _sharing, "part": _part,
    "number": lambda spec, value: _number(spec, value, spec.name),
}  # fmt: skip
