"""What is to be ordered: stages on ranks, their times, transfers, activations and memory limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import Kind
from debubble.core.cost_table import CostTable
from debubble.core.errors import ParameterError
from debubble.core.placement import Placement

TOLERANCE = 1e-9
"""Relative slack of memory limits and of equal times."""


@dataclass(frozen=True, eq=False)
class Workload:
    """One copy of a model on ranks, and the microbatches that go through it.

    Parameters
    ----------
    placement
        One copy of the model.
    table
        Times and activations of every stage.
    microbatches
        Microbatches m.
    limits
        Memory limit of every rank, shape ``(ranks,)``; infinite where there is none.
    recompute
        Whether each stage recomputes its forwards; empty for none.
    """

    placement: Placement
    table: CostTable
    microbatches: int
    limits: NDArray[np.float64]
    recompute: tuple[bool, ...] = ()

    @property
    def stages(self) -> int:
        """Stages S of the model."""
        return self.placement.stages

    @property
    def ranks(self) -> int:
        """Ranks p."""
        return self.placement.ranks

    @cached_property
    def homes(self) -> NDArray[np.int64]:
        """Rank of every stage."""
        return self.placement.ranks_of_stages

    @cached_property
    def recomputed(self) -> NDArray[np.bool_]:
        """Whether each stage recomputes, shape ``(stages,)``."""
        return np.array(self.recompute or (False,) * self.stages)

    @cached_property
    def recompute_time(self) -> NDArray[np.float64]:
        """Time of R where a stage recomputes, else 0; shape ``(stages,)``."""
        return np.where(self.recomputed, self.table.duration[Kind.R], 0.0)

    @cached_property
    def forward_link(self) -> NDArray[np.float64]:
        """Transfer time into every stage from the one before, 0 for the first."""
        return np.append(0.0, self.table.link[self.homes[:-1], self.homes[1:]])

    @cached_property
    def backward_link(self) -> NDArray[np.float64]:
        """Transfer time into every stage from the one after, 0 for the last."""
        return np.append(self.table.link[self.homes[1:], self.homes[:-1]], 0.0)

    @cached_property
    def backward_lag(self) -> NDArray[np.float64]:
        """Least time to the R or backward of every stage from the end of the next stage's backward.

        Negative where R can begin before the gradient arrives; 0 for the last stage.
        """
        return np.append(self.backward_link[:-1] - self.recompute_time[:-1], 0.0)

    @cached_property
    def footprint(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Memory a forward takes, and what its backward takes beside it; shapes ``(stages,)``."""
        return self.table.footprint(self.recomputed)

    @cached_property
    def smallest_limits(self) -> NDArray[np.float64]:
        """Smallest limit of every rank under which an order exists, see `smallest_memory`."""
        return smallest_memory(self.placement, self.table, self.recomputed)

    def per_rank(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of values per stage over the stages of each rank."""
        sums = np.zeros(self.ranks)
        np.add.at(sums, self.homes, values)
        return sums


def smallest_memory(
    placement: Placement, table: CostTable, recompute: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Smallest limit of every rank under which a schedule exists, shape ``(ranks,)``.

    It is what one microbatch leaves on the rank's stages together: before its first backward it
    has been through all of them, and one microbatch at a time needs no more. With recomputes it is
    what it leaves on the stages up to one, and what the backward there takes, at most.
    """
    chosen = np.zeros(placement.stages, dtype=bool) if recompute is None else recompute
    stored, more = table.footprint(chosen)
    needed = np.zeros(placement.ranks)
    held = np.zeros(placement.ranks)
    for stage, rank in enumerate(placement.ranks_of_stages):
        held[rank] += stored[stage]
        needed[rank] = max(needed[rank], held[rank] + more[stage])
    return needed


def check_memory(
    placement: Placement,
    table: CostTable,
    memory: ArrayLike,
    recompute: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Memory limits as one number per rank, shape ``(ranks,)``.

    Raises
    ------
    ParameterError
        When there are too many or too few numbers, or one is too small for any schedule.
    """
    given = np.asarray(memory, dtype=np.float64)
    if given.shape not in ((), (placement.ranks,)):
        raise ParameterError(
            f"memory has {given.size} limits for {placement.ranks} ranks; "
            "give one number, or one per rank"
        )
    limits = np.broadcast_to(given, (placement.ranks,)).copy()
    needed = smallest_memory(placement, table, recompute)
    short = np.flatnonzero(~(limits >= needed * (1 - TOLERANCE / 2)))
    if len(short):
        rank = int(short[np.argmax(needed[short])])
        verb = "leaves" if recompute is None or not recompute.any() else "needs"
        raise ParameterError(
            f"memory {limits[rank]:.12g} is too small for rank {rank}, where one microbatch "
            f"{verb} {needed[rank]:.12g}; give at least {needed[rank]:.12g}"
        )
    return limits
