"""Cuts of a model's layers into stages whose busiest rank does as little as possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import ParameterError

MOVES = 400
"""Layers that are moved one after the other, at most."""


def balanced_cut(
    loads: NDArray[np.float64], ends: NDArray[np.float64], homes: Sequence[int]
) -> tuple[int, ...]:
    """Return layers of every stage so that the busiest rank does as little as possible.

    Layers are dealt out one by one, then moved one by one from the busiest rank; of cuts alike,
    later ranks, which hold fewer microbatches, do more.

    Parameters
    ----------
    loads
        Time of every layer for one microbatch, shape ``(layers,)``.
    ends
        Time of every stage without its layers, shape ``(stages,)``. The first and the last stage
        may be without layers where they have such a time, all others have one at least.
    homes
        Rank of every stage.

    Examples
    --------
    >>> balanced_cut(np.ones(10), np.array([0.1, 0, 0, 1.5]), range(4))
    (3, 3, 3, 1)
    >>> balanced_cut(np.ones(10), np.array([0.1, 0, 0, 1.5]), (0, 1, 1, 0))
    (3, 3, 3, 1)
    """
    stages = len(homes)
    least = np.ones(stages, dtype=np.int64)
    for end in {0, stages - 1}:
        least[end] = ends[end] == 0
    if len(loads) < least.sum():
        raise ParameterError(
            f"{len(loads)} layers are fewer than {least.sum()} stages that need one; give fewer "
            "chunks or ranks"
        )
    ranks = np.unique(homes, return_inverse=True)[1]
    cut = _dealt_out(float(loads.mean()), ends, ranks, least, len(loads))
    sums = np.append(0.0, np.cumsum(loads))

    def by_rank_of(cuts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the load of every rank, shape ``(cuts, ranks)``, over that of all layers."""
        border = np.cumsum(np.pad(cuts, ((0, 0), (1, 0))), axis=1)
        work = sums[border[:, 1:]] - sums[border[:, :-1]] + ends
        by_rank = np.zeros((len(cuts), ranks.max() + 1))
        for stage, rank in enumerate(ranks):
            by_rank[:, rank] += work[:, stage]
        return np.asarray(np.round(by_rank / sums[-1], 9))

    best = by_rank_of(cut[None])[0]
    for _ in range(MOVES):
        busiest = (ranks == best.argmax()) & (cut > least)
        pairs = np.argwhere(~np.eye(stages, dtype=bool) & busiest[:, None])
        if not len(pairs):
            break
        cuts = np.repeat(cut[None], len(pairs), axis=0)
        at = np.arange(len(pairs))
        cuts[at, pairs[:, 0]] -= 1
        cuts[at, pairs[:, 1]] += 1
        loads_after = by_rank_of(cuts)
        first = int(np.lexsort((-np.sort(-loads_after, axis=1)).T[::-1])[0])
        if sorted(loads_after[first], reverse=True) >= sorted(best, reverse=True):
            break
        cut, best = cuts[first], loads_after[first]
    return tuple(cut.tolist())


def _dealt_out(
    one: float, ends: NDArray[np.float64], ranks: NDArray[np.int64], least: NDArray[np.int64],
    layers: int,
) -> NDArray[np.int64]:  # fmt: skip
    """Return a cut from giving layers, one by one, to the rank with the least load."""
    cut = least.copy()
    work = ends + one * cut
    by_rank = np.bincount(ranks, work)
    for _ in range(layers - int(cut.sum())):
        level = np.round(by_rank / one, 9)
        rank = int(np.flatnonzero(level == level.min())[-1])
        own = np.flatnonzero(ranks == rank)
        stage = own[np.flatnonzero(work[own] == work[own].min())[-1]]
        cut[stage] += 1
        work[stage] += one
        by_rank[rank] += one
    return cut
