"""Times of slices, from those of whole microbatches and their share of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import Kind
from debubble.core.placement import Placement
from debubble.core.slicing import Slicing, even_work
from debubble.core.stage_values import PerPlace

if TYPE_CHECKING:
    from debubble.core.costs import Costs

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
