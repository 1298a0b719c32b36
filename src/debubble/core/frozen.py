"""Weights that are not trained, and the time and memory that they save.

A stage with a share f of its weights frozen takes 1 − f of the time of W, and a full backward lies
as far between B and I. Where all of a stage's weights are frozen, and all of the stages' before it,
no gradient is needed: its backward and its recomputes take no time, no gradient is sent to it, and
its forward leaves nothing, since no backward will read it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, among

BACKWARD = (Kind.I, Kind.W, Kind.B, Kind.R)
"""Kinds that have nothing to do where no gradient is needed."""


class Freeze(NamedTuple):
    """Frozen weights, by stage or by layer."""

    share: NDArray[np.float64]
    """Share of the weights that is frozen, shape ``(n,)``."""
    needed: NDArray[np.bool_]
    """Whether gradients get there: something up to there is trained; shape ``(n,)``."""

    @classmethod
    def of(cls, share: NDArray[np.float64], stages: int) -> Freeze:
        """Make it from shares of all stages, or layers, one copy of the model after the other."""
        trained = (share < 1).reshape(-1, stages)
        return cls(share, np.logical_or.accumulate(trained, axis=1).ravel())

    def idle(self, kinds: NDArray[Any], places: NDArray[Any]) -> NDArray[np.bool_]:
        """Return whether actions have nothing to do."""
        alone = (kinds == Kind.W) & (self.share[places] >= 1)
        return np.asarray(among(kinds, BACKWARD) & (alone | ~self.needed[places]))

    def at(self, where: slice) -> Freeze:
        """Return the frozen weights of some stages, or layers."""
        return Freeze(self.share[where], self.needed[where])

    def of_slices(self, slices: int) -> Freeze:
        """Return the frozen weights for every slice of a sequence, one after the other."""
        return Freeze(np.tile(self.share, slices), np.tile(self.needed, slices))


def freeze(times: NDArray[np.float64], frozen: Freeze) -> None:
    """Take from times of all kinds, a row ``times[kind]`` for each, what frozen weights save."""
    share, needed = frozen
    times[Kind.B] += share * (times[Kind.I] - times[Kind.B])
    for kind in (Kind.W, Kind.REDUCE_GRAD):
        times[kind] *= 1 - share
    times[list(BACKWARD)] *= needed
