"""The texts of ``--times`` and ``--rank-times``: costs."""

from __future__ import annotations

import math
import re
from typing import Any

from debubble.core.cost_fields import DEFAULT
from debubble.core.costs import COST_FIELDS, Costs, check_cost
from debubble.core.embedding_and_head import KEYS, PARTS
from debubble.core.errors import CostError, WrongValueError, did_you_mean
from debubble.core.former_names import current_name
from debubble.core.units import read_number

NAMES = tuple(name for name, spec in COST_FIELDS.items() if spec.shape != "part") + tuple(
    f"{part}.{key}" for part in PARTS for key in KEYS
)
SPREAD = tuple(
    name
    for name, spec in COST_FIELDS.items()
    if spec.shape in ("stage", "rank", "pair", "microbatch", "boundary")
)
"""Costs that may have one value per stage, rank, microbatch or boundary."""

_INDEXED = re.compile(r"(\w+)\.([0-9]{1,9})")


def parse_times(text: str, flag: str) -> Costs:
    """Parse costs such as ``F=1,F.2=1.5,I=1,W=1/2,p2p=0.1``.

    Slashes separate one value per stage (per rank with ``--rank-times``), microbatch or boundary;
    ``F.2`` is that of stage 2 alone, and ``head.F`` is added to the last. Raises CostError when a
    name does not exist or occurs twice, or a value is not a number of at least 0.
    """
    owner = "rank" if flag == "--rank-times" else "stage"
    found: dict[str, Any] = {}
    exceptions: dict[str, dict[int, float]] = {}
    seen = set()
    for piece in text.split(","):
        name, equals, value = (word.strip() for word in piece.partition("="))
        if not equals:
            raise CostError(f"{flag}: '{piece}' has no value; write {flag} F=1,I=1,W=1")
        name = current_name(name, f"{flag} {{}}=")
        indexed = _INDEXED.fullmatch(name)
        base = indexed[1] if indexed and indexed[1] in SPREAD else name
        if base not in NAMES:
            raise CostError(f"{flag}: unknown cost '{name}'; {did_you_mean(name, NAMES)}")
        if name in seen:
            raise CostError(f"{flag}: {name} is there twice; give it once")
        seen.add(name)
        several = base in SPREAD and base == name
        number = _numbers(value, name, flag, _owner(base, owner), several)
        part, _, key = name.partition(".")
        if indexed and base != name:
            exceptions.setdefault(base, {})[int(indexed[2])] = number
        elif key:
            found.setdefault(part, {})[key] = number
        else:
            found[name] = number
    for name, places in exceptions.items():
        found[name] = _with_exceptions(name, found.get(name), places, flag, _owner(name, owner))
    try:
        for name, value in found.items():
            check_cost(name, value)
    except WrongValueError as error:
        shown = error.text(lambda value: f"{value:g}" if isinstance(value, float) else repr(value))
        raise CostError(f"{flag}: {shown}") from None
    return Costs(basis="rank" if owner == "rank" else "action", **found)


def _owner(name: str, owner: str) -> str:
    """Return the noun of a cost's places; `owner` for costs of stages or ranks."""
    shape = COST_FIELDS[name].shape if name in COST_FIELDS else ""
    return shape if shape in ("microbatch", "boundary") else owner


def _with_exceptions(
    name: str, usual: Any, places: dict[int, float], flag: str, owner: str
) -> dict[Any, float]:
    """Return one value for all stages, and others for some; O needs no value for all."""
    first, value = next(iter(places.items()))
    if isinstance(usual, tuple):
        raise CostError(
            f"{flag}: {name} has one value per {owner} already; put {value:g} there, at {owner} "
            f"{first}, and leave {name}.{first} out"
        )
    if usual is None and COST_FIELDS[name].shape != "pair":
        raise CostError(
            f"{flag}: {name}.{first} is for one {owner}; give the others, too: "
            f"{name}=1,{name}.{first}={value:g}"
        )
    return ({} if usual is None else {DEFAULT: usual}) | places


def _numbers(text: str, name: str, flag: str, owner: str, several: bool) -> Any:
    """Return the number in a text, or several of them separated by slashes."""
    numbers = tuple(read_number(piece) for piece in text.split("/"))
    if len(numbers) > 1 and not several:
        more = "a cost file takes a matrix" if name == "p2p" else "it is for one stage"
        more = more if "." in name or name == "p2p" else "there is one for all"
        raise CostError(f"{flag}: {name} is one number; {more}")
    for piece, number in zip(text.split("/"), numbers, strict=True):
        if math.isnan(number):
            more = f", or one per {owner}: {name}=1/1/2/1" if several else ""
            raise CostError(f"{flag}: {name} is '{piece.strip()}'; give a number{more}")
    return numbers if len(numbers) > 1 else numbers[0]
