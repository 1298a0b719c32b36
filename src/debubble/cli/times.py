"""Costs from the text of ``--times`` and ``--rank-times``."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from debubble.core.costs import Costs
from debubble.core.ends import ENDS, KEYS
from debubble.core.errors import CostError, did_you_mean
from debubble.interchange.text import LARGEST_COST, SMALLEST_BANDWIDTH

NAMES = tuple(
    spec.name
    for spec in fields(Costs)
    if spec.name not in ("basis", "chunks", "time_unit", "memory_unit", *ENDS)
) + tuple(f"{part}.{key}" for part in ENDS for key in KEYS)
SINGLE = (
    "O", "overlap_factor", "p2p", "message", "bandwidth", "host_bandwidth", "host_link_shared_by",
    *NAMES[-len(ENDS) * len(KEYS) :],
)  # fmt: skip
"""Costs that are one number here; a cost file can say more."""


def parse_times(text: str, flag: str) -> Costs:
    """Costs from a text such as ``F=1,I=1,W=1/2,p2p=0.1``.

    Parameters
    ----------
    text
        Name and value of every cost, apart by commas; a value is one number, or one per stage
        (per rank with ``--rank-times``) apart by slashes. ``embedding.F=1`` adds to the first
        stage, ``head.F=1`` and ``mtp.F=1`` to the last.
    flag
        ``"--times"`` or ``"--rank-times"``.

    Raises
    ------
    CostError
        When a name does not exist or occurs twice, or a value is not a number of at least 0.
    """
    owner = "rank" if flag == "--rank-times" else "stage"
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise CostError(f"{flag}: '{part}' has no value; write {flag} F=1,I=1,W=1")
        if name not in NAMES:
            raise CostError(f"{flag}: unknown cost '{name}'; {did_you_mean(name, NAMES)}")
        if name in found:
            raise CostError(f"{flag}: {name} is there twice; give it once")
        numbers = tuple(_number(piece, name, flag, owner) for piece in value.split("/"))
        if len(numbers) > 1 and name in SINGLE:
            more = "it is for one stage" if "." in name else "for more use a cost file"
            raise CostError(f"{flag}: {name} is one number; {more}")
        found[name] = numbers if len(numbers) > 1 else numbers[0]
    for name in [name for name in found if "." in name]:
        part, _, key = name.partition(".")
        found.setdefault(part, {})[key] = found.pop(name)
    try:
        return Costs(basis="rank" if owner == "rank" else "action", **found)
    except CostError as error:
        raise CostError(f"{flag}: {error}") from None


def _number(text: str, name: str, flag: str, owner: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise CostError(
            f"{flag}: {name} is '{text}'; give a number, or one per {owner}: {name}=1/1/2/1"
        )
    if not 0 <= number <= LARGEST_COST:
        raise CostError(f"{flag}: {name} is {text}; costs go from 0 to {LARGEST_COST:g}")
    if name == "bandwidth" and number < SMALLEST_BANDWIDTH:
        raise CostError(f"{flag}: bandwidth is {text}; give a positive number")
    return number
