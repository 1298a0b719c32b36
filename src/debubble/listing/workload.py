"""Work to schedule: stages on ranks, their times, transfers, activations and memory limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from debubble.core.cost_table import CostTable
from debubble.core.errors import ParameterError
from debubble.core.kind_relations import RECOMPUTE_KIND
from debubble.core.placement import Placement

TOLERANCE = 1e-9
"""Relative slack of memory limits and of equal times."""


@dataclass(frozen=True, eq=False)
class Workload:
    """One copy of a model on ranks, and the microbatches that go through it."""

    placement: Placement
    """One copy of the model."""
    table: CostTable
    """Times and activations of every stage."""
    microbatches: int
    """Microbatches m."""
    limits: NDArray[np.float64]
    """Memory limit of every rank, shape ``(ranks,)``; infinite where there is none."""
    recompute: tuple[bool, ...] = ()
    """Whether each stage recomputes its forwards; empty for none."""

    @property
    def stages(self) -> int:
        """Stages S of the model."""
        return self.placement.stages

    @property
    def ranks(self) -> int:
        """Number of ranks p."""
        return self.placement.ranks

    @cached_property
    def homes(self) -> NDArray[np.int64]:
        """Rank of every stage."""
        return self.placement.ranks_of_stages

    @cached_property
    def recomputed(self) -> NDArray[np.bool_]:
        """Mask of the stages that recompute, shape ``(stages,)``."""
        return np.array(self.recompute or (False,) * self.stages)

    @cached_property
    def recompute_time(self) -> NDArray[np.float64]:
        """Time of R where a stage recomputes, else 0; shape ``(stages,)``."""
        return np.where(self.recomputed, self.table.duration[RECOMPUTE_KIND], 0.0)

    @cached_property
    def forward_link(self) -> NDArray[np.float64]:
        """Transfer time into every stage from the one before, 0 for the first."""
        if self.table.boundaries is not None:
            return np.append(0.0, self.table.boundaries.time[0, : self.stages - 1])
        return np.append(0.0, self.table.link[self.homes[:-1], self.homes[1:]])

    @cached_property
    def backward_link(self) -> NDArray[np.float64]:
        """Transfer time into every stage from the one after, 0 for the last."""
        if self.table.boundaries is not None:
            return np.append(self.table.boundaries.time[1, 1 : self.stages], 0.0)
        return np.append(self.table.link[self.homes[1:], self.homes[:-1]], 0.0)

    @cached_property
    def backward_lag(self) -> NDArray[np.float64]:
        """Least time to the R or backward of every stage from the end of the next stage's backward.

        Negative where R can begin before the gradient arrives; 0 for the last stage.
        """
        return np.append(self.backward_link[:-1] - self.recompute_time[:-1], 0.0)

    @cached_property
    def footprint(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Memory that a forward takes, and its backward in addition; shapes ``(stages,)``."""
        return self.table.footprint(self.recomputed)

    @cached_property
    def smallest_limits(self) -> NDArray[np.float64]:
        """Smallest limit of every rank under which an order exists, shape ``(ranks,)``.

        It is what one microbatch leaves on the rank's stages together: before its first backward it
        has been through all of them, and one microbatch at a time needs no more. With recomputes it
        is what it leaves on the stages up to one, and what the backward there takes, at most.
        """
        needed, held = [0.0] * self.ranks, [0.0] * self.ranks
        stages = (self.homes.tolist(), *(memory.tolist() for memory in self.footprint))
        for rank, stored, more in zip(*stages, strict=True):
            held[rank] += stored
            needed[rank] = max(needed[rank], held[rank] + more)
        return np.array(needed)

    def check_limits(self) -> None:
        """Refuse limits under which there is no order, and name the smallest that works."""
        needed = self.smallest_limits
        short = np.flatnonzero(~(self.limits >= needed * (1 - TOLERANCE / 2)))
        if len(short):
            rank = int(short[np.argmax(needed[short])])
            verb = "needs" if self.recomputed.any() else "leaves"
            raise ParameterError(
                f"memory {self.limits[rank]:.12g} is too small for rank {rank}, where one "
                f"microbatch {verb} {needed[rank]:.12g}; give at least {needed[rank]:.12g}"
            )

    def per_rank(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of values per stage over the stages of each rank."""
        sums = np.zeros(self.ranks)
        np.add.at(sums, self.homes, values)
        return sums

    def least_per_rank(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Least of values per stage over the stages of each rank; infinite without a stage."""
        least = np.full(self.ranks, np.inf)
        np.minimum.at(least, self.homes, values)
        return least
