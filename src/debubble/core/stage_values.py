"""Values of costs spelled out: one number for every (copy, stage), rank, pair or link."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.cost_fields import DEFAULT
from debubble.core.errors import CostError
from debubble.core.frozen import Freeze
from debubble.core.placement import Placement
from debubble.core.units import plural

if TYPE_CHECKING:
    from debubble.core.costs import Costs

Value: TypeAlias = float | Sequence[float] | Mapping[Any, float]
"""One number, one per stage (or rank), or a mapping from stages and ``"default"`` to numbers."""

PairTimes: TypeAlias = float | Sequence[float] | Mapping[int | str | tuple[int, int], float]
"""Time of every overlapped pair, by stage of the forward, or by (its stage, the backward's)."""

PerPlace: TypeAlias = float | NDArray[np.float64]
"""A cost of every (copy, stage): an array, or one number where all have the same."""

_LISTED_STAGES = 64
"""Most stages whose values a message spells out."""


def as_rows(count: int, values: Iterable[PerPlace]) -> NDArray[np.float64]:
    """Return numbers, and arrays of `count` numbers, as the rows of an array."""
    values = list(values)
    rows = np.empty((len(values), count))
    # All numbers at once take the time of two rows.
    rows.T[:] = [value if isinstance(value, float) else 0.0 for value in values]
    for row, value in enumerate(values):
        if not isinstance(value, float):
            rows[row] = value
    return rows


class StageValues:
    """Turns a value into one number per (copy, stage), or into one where all have the same."""

    def __init__(self, placement: Placement, basis: str) -> None:
        self.placement = placement
        self.basis = basis

    def __call__(self, value: Value | None, name: str, default: PerPlace) -> PerPlace:
        """Return one number per (copy, stage), for either basis."""
        if value is None:
            return default
        if isinstance(value, float):
            return value
        placement = self.placement
        stages, copies = placement.stages, placement.copies
        owner, count = ("rank", placement.ranks) if self.basis == "rank" else ("stage", stages)
        instead = "" if isinstance(value, Mapping) else self._instead(value)
        array = numbers_of(value, name, owner, count, instead)
        if self.basis == "rank":
            return np.asarray(array[placement.ranks_of_stages], dtype=np.float64)
        return np.concatenate((array,) * copies) if copies > 1 else array

    def _instead(self, value: Sequence[float]) -> str:
        """Return the advice for a list with one value per rank where one per stage was expected."""
        placement = self.placement
        if self.basis == "rank" or len(value) != placement.ranks or placement.copies > 1:
            return ""
        whole = "if they are for all stages of a rank together, give basis: rank (--rank-times)"
        if placement.stages > _LISTED_STAGES:
            return f"{whole}; else give one per stage"
        numbers = "/".join(f"{value[rank]:g}" for rank in placement.table[0])
        return f"{whole}; if for each of them, write {numbers}"


def numbers_of(
    value: Value, name: str, owner: str, count: int, instead: str = ""
) -> NDArray[np.float64]:
    """Return one number for each of `count` owners: stages, ranks or microbatches.

    `name` is the cost's; `instead` ends the message for a list of another length, where it is not
    empty. Raises CostError when there is not a number for each.
    """
    if isinstance(value, float):
        return np.full(count, value)
    if isinstance(value, Mapping):
        keys = [key for key in value if key != DEFAULT]
        if keys and max(keys) >= count:
            raise CostError(f"{name} names {owner} {max(keys)}; {plural(owner)} go to {count - 1}")
        if DEFAULT not in value and len(keys) < count:
            raise CostError(
                f"{name} has no value for {owner} {len(keys)}; give 0..{count - 1}, or one for "
                f"all others: {{{DEFAULT}: 1, 2: 1.5}}"
            )
        other = value.get(DEFAULT, 0.0)
        return np.array([value.get(key, other) for key in range(count)], dtype=float)
    if len(value) != count:
        raise CostError(
            f"{name} has {len(value)} values for {count} {plural(owner)}; "
            f"{instead or f'give one number, or one per {owner}'}"
        )
    return np.array(value, dtype=float)


def pair_values(
    O: PairTimes | None, spread: StageValues, divisor: int
) -> tuple[dict[tuple[int, int], float], PerPlace]:
    """Return times of the pairs that `O` names, and of the others by place of the forward.

    NaN stands for pairs that take what their parts take.
    """
    last, pairs = spread.placement.stages - 1, {}
    if isinstance(O, Mapping):
        for key, time in O.items():
            if not isinstance(key, tuple):
                continue
            if max(key) > last:
                raise CostError(f"O names the pair {key[0]},{key[1]}; stages go to {last}")
            pairs[key] = time / divisor
        stages = {key: time for key, time in O.items() if not isinstance(key, tuple)}
        return pairs, spread({DEFAULT: math.nan} | stages, "O", math.nan) / divisor
    return pairs, spread(O, "O", math.nan) / divisor


def link_times(costs: Costs, ranks: int, message: float) -> NDArray[np.float64]:
    """Return transfer times from rank to rank: the latency plus `message`."""
    link = np.empty((ranks, ranks))
    if isinstance(costs.p2p, float):
        link.fill(costs.p2p + message)
    else:
        matrix = np.asarray(costs.p2p, dtype=float)
        if matrix.shape != (ranks, ranks):
            rows, columns = matrix.shape
            raise CostError(f"p2p is {rows} × {columns}; for {ranks} ranks give {ranks} × {ranks}")
        np.add(matrix, message, out=link)
    link.ravel()[:: ranks + 1] = 0.0
    return link


def frozen_stages(values: Value, spread: StageValues) -> Freeze | None:
    """Return the frozen weights of every (copy, stage); None without any."""
    if values == 0:
        return None
    placement = spread.placement
    share = np.zeros(placement.copies * placement.stages) + spread(values, "frozen", 0.0)
    return Freeze.of(share, placement.stages) if share.any() else None
