"""Activation memory: every action adds at its start and frees at its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    Kind,
    kinds_of,
    microbatches_of,
    stages_of,
)
from debubble.core.costs import CostTable
from debubble.core.schedule import Schedule
from debubble.engine.kernels.memory import peak_memory


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """Memory of a schedule.

    Parameters
    ----------
    peak
        Largest memory of every rank, shape ``(ranks,)``.
    left
        What is left when every rank is done; zero for a complete schedule.
    at_start, at_end
        Memory that an action of kind k on place c adds, shape ``(kinds, places)``.
    """

    peak: NDArray[np.float64]
    left: NDArray[np.float64]
    at_start: NDArray[np.float64]
    at_end: NDArray[np.float64]

    def deltas(
        self, schedule: Schedule, rank: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Memory each action of a rank adds at its start and at its end."""
        program = schedule.program(rank)
        places = stages_of(program)
        if schedule.placement.copies > 1:
            places = places + schedule.copies_of(microbatches_of(program)) * schedule.stages
        kinds = kinds_of(program)
        return self.at_start[kinds, places], self.at_end[kinds, places]


def measure_memory(schedule: Schedule, table: CostTable) -> MemoryUse:
    """Memory of every rank: F takes the activation, I keeps the share for W, W and B free it."""
    at_start = np.zeros((len(Kind), len(table.activation)))
    at_end = np.zeros_like(at_start)
    at_start[Kind.F] = table.activation
    at_end[Kind.I] = table.kept - table.activation
    at_end[Kind.W] = -table.kept
    at_end[Kind.B] = -table.activation
    peak = np.zeros(schedule.ranks)
    left = np.zeros(schedule.ranks)
    peak_memory.run(
        len(schedule),
        schedule.actions,
        schedule.offsets,
        schedule.stages,
        schedule.microbatches * schedule.slices,
        schedule.placement.copies,
        at_start.ravel(),
        at_end.ravel(),
        peak,
        left,
    )
    return MemoryUse(peak, left, at_start, at_end)
