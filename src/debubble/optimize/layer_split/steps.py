"""Steps between cuts: one layer moved, and layers given out one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from debubble.core.layers import Cut

MOVES = 256
"""Moves of a layer that are evaluated, about: with many stages, only between near ones."""


def neighbors(cut: Cut, least: NDArray[np.int64] | None = None) -> Iterator[Cut]:
    """Yield cuts with one layer of a stage on another one; a stage keeps its least."""
    S = len(cut)
    fewest = [1] * S if least is None else least.tolist()
    reach = max(1, MOVES // (2 * S))
    for source in range(S):
        for target in range(max(0, source - reach), min(S, source + reach + 1)):
            if target != source and cut[source] > fewest[source]:
                other = list(cut)
                other[source] -= 1
                other[target] += 1
                yield tuple(other)


def shared_out(
    layers: int, least: NDArray[np.int64], used: NDArray[np.bool_], base: NDArray[np.float64],
    one: float, most: NDArray[np.int64], late: bool = False,
) -> NDArray[np.int64]:  # fmt: skip
    """Share layers out, one by one to the owner that then has the smallest load."""
    counts = least.copy()
    turn = np.arange(len(least))[:: -1 if late else 1]
    scale = float(base.max()) + one * layers or 1.0
    for _ in range(layers - int(counts.sum())):
        load = np.where(used & (counts < most), base + one * (counts + 1), np.inf)
        # Equal loads computed in different order differ in the last digits.
        counts[np.lexsort((turn, np.round(load / scale, 12)))[0]] += 1
    return counts
