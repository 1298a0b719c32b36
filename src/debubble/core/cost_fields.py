"""Every cost there is: what shape its value has, and the one check of such a value.

:class:`debubble.Costs`, cost files, ``--times`` and the documentation all read :data:`COST_FIELDS`
and check values with :func:`check_cost`, so that none accepts what another refuses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from debubble.core.embedding_and_head import KEYS
from debubble.core.errors import WrongValueError, did_you_mean

LARGEST_COST, SMALLEST_BANDWIDTH = 1e100, 1e-100
"""Limits of costs, so that no sum or quotient of them is infinite."""

DEFAULT = "default"
"""Key of a mapping's value for every stage that the mapping does not name."""

Shape = Literal["stage", "rank", "pair", "link", "number", "rate", "sharing", "part"]

SHAPES: dict[Shape, str] = {
    "stage": "one number, or one per stage",
    "rank": "one number, or one per rank",
    "pair": "one number, one per stage of the forward, or one per pair of stages",
    "link": "one number, or a matrix of ranks",
    "number": "one number",
    "rate": "one number",
    "sharing": "1 or 2",
    "part": "F, I, W, B, R: one number each",
}
"""The shape of a value in words."""


@dataclass(frozen=True)
class CostField:
    """One cost.

    Parameters
    ----------
    name
        Its name in :class:`debubble.Costs`, in cost files and in ``--times``.
    shape
        Shape of its value, see :data:`SHAPES`.
    example
        A value as YAML.
    text
        Description in one line.
    section
        Section of a cost file.
    share
        Whether it is a share, from 0 to 1.
    timed
        Whether it is a time, which changes with the unit of time.
    """

    name: str
    shape: Shape
    example: str
    text: str
    section: Literal["times", "memory"] = "times"
    share: bool = False
    timed: bool = False

    @property
    def in_forms(self) -> bool:
        """Whether closed forms hold only where it is the same everywhere.

        What forms read themselves, or know nothing of, may differ.
        """
        own = ("R", "kept_for_weight", "recompute_kept")
        return self.shape in ("stage", "pair", "link") and self.name not in own


def _fields() -> Iterator[CostField]:
    def time(name: str, shape: Shape, example: str, text: str) -> CostField:
        return CostField(name, shape, example, text, timed=True)

    def memory(name: str, example: str, text: str, share: bool = True) -> CostField:
        return CostField(name, "stage", example, text, "memory", share)

    yield time("F", "stage", "1.0", "forward; 1 unless given")
    yield time("I", "stage", "1.0", "backward for the input; 1, or half of B, unless given")
    yield time("W", "stage", "1.0", "backward for the weights; 1, or half of B, unless given")
    yield time("B", "stage", "2.0", "full backward; I + W unless given")
    yield time("R", "stage", "1.0", "recompute: the forward once more; F unless given")
    yield time(
        "O", "pair", "2.5", "overlapped pair of a forward and a backward; the sum of its parts"
        " unless given",
    )  # fmt: skip
    yield CostField(
        "overlap_factor", "number", "0.9", "share of the sum of its parts that a pair takes where O"
        " does not say; 1 unless given",
    )  # fmt: skip
    yield time("OPT", "rank", "0", "optimizer step of one rank, never divided by chunks")
    yield time("p2p", "link", "0.1", "from one rank to another; a matrix is p2p[from][to]")
    yield CostField("message", "number", "0", "size of one activation that is sent")
    yield CostField(
        "bandwidth", "rate", "1.0", "size that a link moves per unit of time; a transfer takes"
        " p2p + message / bandwidth",
    )  # fmt: skip
    yield CostField(
        "attention", "stage", "0.3", "share of F and of the full backward that is causal attention,"
        " for sequences in slices", share=True,
    )  # fmt: skip
    yield time("exchange", "stage", "0", "exchange of attention context, in schedules that do it")
    yield time("unshard", "stage", "0", "gather a stage's weights from its replicas")
    yield time("reduce_grad", "stage", "0", "reduce a stage's gradients over its replicas")
    yield CostField(
        "host_bandwidth", "rate", "1.0", "memory that a copy to the host, or back, moves per unit"
        " of time",
    )  # fmt: skip
    yield CostField(
        "host_link_shared_by", "sharing", "1", "2 where ranks 0 and 1, 2 and 3, … share one link"
        " to the host",
    )  # fmt: skip
    yield time("embedding", "part", "{F: 0.1, B: 0.2}", "what the first stage does on top")
    yield time("head", "part", "{F: 0.4, B: 0.8}", "what the last stage does on top")
    yield time("mtp", "part", "{F: 1.2, B: 2.4}", "multi-token prediction, on top of the last")
    yield memory(
        "activation", "1.0", "what one microbatch leaves on a stage after its forward; ranks /"
        " stages unless given, so that one microbatch is 1 on every rank", share=False,
    )  # fmt: skip
    yield memory("kept_for_weight", "1.0", "share of it that stays from I to W; 1 unless given")
    yield memory("recompute_kept", "0.06", "share of it that stays where a stage recomputes")
    yield memory("offload_share", "1.0", "share of it that an OFFLOAD moves; 1 unless given")
    yield memory("kv", "0", "keys and values of one microbatch, for slices", share=False)


COST_FIELDS: dict[str, CostField] = {field.name: field for field in _fields()}
"""Every cost by name, in the order of the documentation."""


_ANY = CostField("", "number", "0", "any number")


def check_cost(name: str, value: Any) -> Any:
    """The value of a cost with plain numbers, tuples and dictionaries.

    Parameters
    ----------
    name
        One of :data:`COST_FIELDS`.
    value
        Anything.

    Returns
    -------
    float, tuple or dict
        One number; numbers of all stages or ranks; numbers by stage, by pair of stages and
        for :data:`DEFAULT`.

    Raises
    ------
    WrongValueError
        When the cost cannot have this value.
    """
    field = COST_FIELDS[name]
    return _CHECKS[field.shape](field, _plain(value))


def check_number(value: Any, path: str) -> float:
    """A number that a cost can be.

    Raises
    ------
    WrongValueError
        When it is something else, negative, or too large.
    """
    return _number(_ANY, value, path)


def _plain(value: Any) -> Any:
    """Lists and numbers in path of arrays and tensors."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    return value


def _number(field: CostField, value: Any, path: str, advice: str = "give a number") -> float:
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
    if field.share and number > 1:
        raise WrongValueError(path, value, "it is a share between 0 and 1")
    return number


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _list(field: CostField, value: Sequence[Any], advice: str) -> tuple[float, ...]:
    if not value:
        raise WrongValueError(field.name, value, advice)
    return tuple(_number(field, item, f"{field.name}[{index}]") for index, item in enumerate(value))


_KEY = "{path} has the key {value}; "
_UNKNOWN = "{path} has an unknown cost {value}; "

_STAGE = re.compile(r"[0-9]{1,9}")
_PAIR = re.compile(r"\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*")


def _stage_key(key: Any) -> int | str | None:
    """A stage, or the word for all others; None for what is neither."""
    if key == DEFAULT and isinstance(key, str):
        return DEFAULT
    if isinstance(key, str):
        return int(key) if _STAGE.fullmatch(key) else None
    whole = isinstance(key, int | np.integer) and not isinstance(key, bool)
    return int(key) if whole and key >= 0 else None


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
    field: CostField, value: Mapping[Any, Any], read: Callable[[Any], Any], keys: str
) -> dict[Any, float]:
    found: dict[Any, float] = {}
    for key, item in value.items():
        owner = read(key)
        if owner is None:
            raise WrongValueError(field.name, key, keys, _KEY)
        if owner in found:
            raise WrongValueError(field.name, key, "it is there twice; remove one", _KEY)
        text = ",".join(map(str, owner)) if isinstance(owner, tuple) else owner
        found[owner] = _number(field, item, f"{field.name}[{text}]")
    return found


def _spread(field: CostField, value: Any) -> Any:
    owner = field.shape
    advice = f"give a number, a list with one per {owner}, or a mapping from {owner}s to numbers"
    if isinstance(value, Mapping):
        keys = f"keys are {owner}s 0, 1, 2, … and '{DEFAULT}' for all others"
        found = _mapping(field, value, _stage_key, keys)
        missing = next((stage for stage in range(len(found)) if stage not in found), None)
        if DEFAULT not in found and (missing is not None or not found):
            advice = f"give all from 0 on, or one for all others: {{{DEFAULT}: 1, 2: 1.5}}"
            form = f"{{path}} has no value for {owner} {missing or 0}; "
            raise WrongValueError(field.name, value, advice, form)
        return found
    if _is_list(value):
        return _list(field, value, advice)
    return _number(field, value, field.name, advice)


def _pairs(field: CostField, value: Any) -> Any:
    advice = 'give a number, a list with one per stage, or a mapping: {3: 2.5, "0,3": 2.6}'
    if isinstance(value, Mapping):
        keys = (
            f'keys are stages of the forward: 3, pairs with the stage of the backward: "0,3", and '
            f"'{DEFAULT}' for all others"
        )
        found = _mapping(field, value, _pair_key, keys)
        if not found:
            raise WrongValueError(field.name, value, advice)
        return found
    if _is_list(value):
        return _list(field, value, advice)
    return _number(field, value, field.name, advice)


def _link(field: CostField, value: Any) -> Any:
    advice = "give a number, or a square matrix with one row per sending rank"
    if not _is_list(value):
        return _number(field, value, field.name, advice)
    rows = [_plain(row) for row in value]
    if not rows or not any(map(_is_list, rows)):
        raise WrongValueError(field.name, value, advice)
    count, found = len(rows), []
    for index, row in enumerate(rows):
        path = f"{field.name}[{index}]"
        if not _is_list(row):
            raise WrongValueError(path, row, f"give {count} numbers, one per receiving rank")
        if len(row) != count:
            form = f"{{path}} has {len(row)} numbers; "
            raise WrongValueError(path, row, f"give {count}, one per receiving rank", form)
        found.append(
            tuple(_number(field, item, f"{path}[{column}]") for column, item in enumerate(row))
        )
    return tuple(found)


def _one(field: CostField, value: Any) -> float:
    return _number(field, value, field.name)


def _rate(field: CostField, value: Any) -> float:
    if isinstance(value, float) and value == math.inf:
        return value
    number = _number(field, value, field.name)
    if number < SMALLEST_BANDWIDTH:
        raise WrongValueError(field.name, value, "give a positive number")
    return number


def _sharing(field: CostField, value: Any) -> int:
    if isinstance(value, bool) or value not in (1, 2):
        raise WrongValueError(field.name, value, "a link to the host serves 1 or 2 ranks")
    return int(value)


def _part(field: CostField, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise WrongValueError(field.name, value, "give a mapping, for instance {'F': 1, 'B': 2}")
    found = {}
    for key, item in value.items():
        if key not in KEYS:
            raise WrongValueError(field.name, key, did_you_mean(str(key), KEYS), _UNKNOWN)
        advice = "give one number: it is for one stage"
        found[key] = _number(field, item, f"{field.name}[{key}]", advice)
    return found


_CHECKS: dict[Shape, Callable[[CostField, Any], Any]] = {
    "stage": _spread, "rank": _spread, "pair": _pairs, "link": _link, "number": _one,
    "rate": _rate, "sharing": _sharing, "part": _part,
}  # fmt: skip
