"""Sequence slices: how the tokens of a microbatch are cut, and how long each piece takes.

Causal attention lets every token look at all tokens before it. With the sequence as [0, 1] a slice
from x to y holds y − x of the tokens and does y² − x² of the attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import ParameterError
from debubble.core.kinds import Kind
from debubble.core.placement import Placement
from debubble.core.stage_values import PerPlace

if TYPE_CHECKING:
    from debubble.core.costs import Costs

ROUNDING = 1e-9
"""Tolerance of the sum of a cut's shares around 1."""


@dataclass(frozen=True)
class Slicing:
    """The slices of a microbatch, as far as their costs depend on them."""

    shares: tuple[float, ...] = (1.0,)
    """Share of the tokens in each slice, in the order of the sequence."""
    exchange: bool = False
    """Whether ranks even out attention among each other, so that a slice does a share of it that is
    its share of the tokens."""

    @property
    def attention(self) -> NDArray[np.float64]:
        """Share of the attention that each slice does, shape ``(slices,)``."""
        shares = np.asarray(self.shares)
        return shares if self.exchange else shares * (2 * np.cumsum(shares) - shares)


WHOLE = Slicing()
"""Sequences that are not cut."""


def check_cut(cut: Sequence[float], slices: int) -> tuple[float, ...]:
    """Return the shares of a cut as floats; empty stays empty and means equal slices.

    Raises ParameterError unless there is a positive share for every slice, and they add up to 1.
    """
    shares = tuple(float(share) for share in cut)
    if not shares:
        return shares
    if len(shares) != slices:
        raise ParameterError(f"cut has {len(shares)} shares for {slices} slices; give one for each")
    for share in shares:
        if not 0 < share <= 1:
            raise ParameterError(f"cut has a share of {share:g}; shares go from above 0 to 1")
    if abs(math.fsum(shares) - 1) > ROUNDING:
        raise ParameterError(f"the shares of the cut add up to {math.fsum(shares):g}; make it 1")
    return shares


def even_work(slices: int, attention: float) -> tuple[float, ...]:
    """Return the cut into slices of equal time, for a share of `attention` in that time.

    Slices end where (1 − a)x + ax² is a multiple of 1/slices: the later, the shorter.

    Examples
    --------
    >>> even_work(4, 0.0)
    (0.25, 0.25, 0.25, 0.25)
    >>> [round(share, 4) for share in even_work(4, 1.0)]
    [0.5, 0.2071, 0.1589, 0.134]
    """
    done = np.arange(slices + 1) / slices
    linear = 1 - attention
    # The root in a form that holds without attention, too; only the start needs no dividing.
    ends = np.zeros(slices + 1)
    ends[1:] = 2 * done[1:] / (linear + np.sqrt(linear**2 + 4 * attention * done[1:]))
    return tuple(np.diff(ends).tolist())


Times: TypeAlias = dict[Kind, NDArray[np.float64]]
"""Times of kinds, each of shape ``(n,)``."""

EXCHANGED = {Kind.F: 1, Kind.I: 2, Kind.B: 2, Kind.R: 1}
"""Attention context that kinds exchange, in forwards: keys and values, or gradients, too."""


def sliced_times(
    times: Times, attention: NDArray[np.float64], exchange: PerPlace, slicing: Slicing
) -> Times:
    """Return times for every slice and stage, from those of whole microbatches."""
    causal = attention_times(times, attention)
    tokens, area = np.asarray(slicing.shares)[:, None], slicing.attention[:, None]
    sliced = {}
    for kind, time in times.items():
        square = causal.get(kind, np.zeros(len(time)))
        pieces = tokens * (time - square) + area * square
        if slicing.exchange:
            pieces = pieces + tokens * (EXCHANGED.get(kind, 0) * exchange)
        sliced[kind] = pieces.ravel()
    return sliced


def attention_times(times: Times, attention: NDArray[np.float64]) -> Times:
    """Return the time of causal attention on every stage, by the kinds that have some."""
    I, B, both = times[Kind.I], times[Kind.B], times[Kind.I] + times[Kind.W]
    # Attention of the backward is I's: (share of I) · I = (share of the backward) · (I + W).
    of_grad = np.minimum(attention * both, I)
    of_full = np.divide(of_grad * B, both, out=attention * B, where=both > 0)
    alone = {kind: attention * times[kind] for kind in (Kind.F, Kind.R)}
    return {**alone, Kind.I: of_grad, Kind.B: of_full}


def even_cut(placement: Placement, slices: int, costs: Costs) -> tuple[float, ...]:
    """Return the cut into slices that take the same time forwards, summed over all stages.

    Empty, for equal slices, without attention.
    """
    share = costs.attention
    if not isinstance(share, float):
        table = costs.resolve(placement)
        F = table.duration[Kind.F]
        share = float(F @ table.attention / F.sum()) if F.any() else 0.0
    return even_work(slices, share) if share > 0 else ()
