"""Times of slices, from those of whole microbatches and their share of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.core.placement import Placement
from debubble.core.slicing import Slicing, even_work
from debubble.core.stage_values import Spread

if TYPE_CHECKING:
    from debubble.core.costs import Costs


def sliced_times(
    times: NDArray[np.float64],
    attention: NDArray[np.float64],
    exchange: Spread,
    slicing: Slicing,
) -> NDArray[np.float64]:
    """Times of F, I, W, B and R for every slice and stage, from those of whole microbatches."""
    causal = attention_times(times, attention)
    tokens, area = np.asarray(slicing.shares), slicing.attention
    pieces = tokens[:, None] * (times - causal)[:, None, :] + area[:, None] * causal[:, None, :]
    if slicing.exchange:
        sent = np.array([1, 2, 0, 2, 1])[:, None, None] * exchange
        pieces = pieces + tokens[:, None] * sent
    sliced: NDArray[np.float64] = pieces.reshape(len(times), -1)
    return sliced


def attention_times(
    times: NDArray[np.float64], attention: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Time of causal attention in F, I, W, B and R of every stage, from its share of F and B."""
    F, I, W, B, R = times
    # Attention of the backward is I's: (share of I) · I = (share of the backward) · (I + W).
    of_grad = np.minimum(attention * (I + W), I)
    of_full = np.divide(of_grad * B, I + W, out=attention * B, where=(I + W) > 0)
    return np.array([attention * F, of_grad, 0 * W, of_full, attention * R])


def even_cut(placement: Placement, slices: int, costs: Costs) -> tuple[float, ...]:
    """The cut into slices that take the same time forwards, summed over all stages.

    Empty, for equal slices, without attention.
    """
    share = costs.attention
    if not isinstance(share, float):
        table = costs.resolve(placement)
        F = table.duration[Kind.F]
        share = float(F @ table.attention / F.sum()) if F.any() else 0.0
    return even_work(slices, share) if share > 0 else ()
