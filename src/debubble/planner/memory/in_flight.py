"""Counts of microbatches in flight on every rank, from the schedule alone.

A rank takes and frees activations in the order of its program, independent of times. So its largest
memory follows from numbers of microbatches, which are counted once for each schedule, and from the
bytes of one microbatch, which differ from plan to plan.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import ends_group, stages_of
from debubble.core.costs import Costs
from debubble.core.schedule import Schedule
from debubble.engine.memory import MemoryUse, measure_memory
from debubble.planner.plannable import fits
from debubble.schedules import registry

Counts = NDArray[np.int32]

WHOLE = 1024
"""Units of an activation, enough to distinguish one unit more."""

LARGEST = 1 << 22
"""Most numbers that are counted for one rank; larger schedules are not counted."""

COMPARED = 256
"""Most moments of a rank of which all pairs are compared."""


class InFlight(NamedTuple):
    """Microbatches in flight, at the moments of a schedule at which a rank may hold most."""

    starts: NDArray[np.int64]
    """First moment of every rank."""
    stages: NDArray[np.int64]
    """Stages of every moment's rank; shape ``(moments, chunks)``."""
    whole: Counts
    """Microbatches of each of these stages that hold all of their activations; same shape."""
    kept: Counts
    """Microbatches of each of these stages that hold the part that W needs; same shape."""

    def peaks(self, stored: NDArray[np.float64], kept: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest activations of every rank, shape ``(ranks,)``, from one microbatch's.

        The part that a stage keeps for W is at most the part that it stores.
        """
        held = (self.whole * stored[self.stages] + self.kept * kept[self.stages]).sum(axis=1)
        return np.maximum.reduceat(held, self.starts)


@lru_cache(maxsize=1 << 14)
def in_flight(
    name: str, ranks: int, microbatches: int, chunks: int, runtime: str
) -> InFlight | None:
    """Return the counts of a schedule; None if they depend on costs, or are too many."""
    if registry.find(name).uses_costs:
        return None
    if microbatches > 3 * ranks and _is_steady(name, ranks, chunks):
        return in_flight(name, ranks, 2 * ranks, chunks, runtime)
    schedule = registry.made_once(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    if 2 * chunks * int(np.diff(schedule.offsets).max()) > LARGEST:
        return None
    return counted(schedule, runtime)


@lru_cache(maxsize=1 << 14)
def _is_steady(name: str, ranks: int, chunks: int) -> bool:
    """Return whether more than two rounds of microbatches leave no more in flight.

    A schedule that holds as much with three rounds as with two goes on like that.
    """
    if not all(fits(name, ranks, chunks, rounds * ranks) for rounds in (2, 3)):
        return False
    costs = Costs(activation=1.0, kept_for_weight=0.0)
    two, three = (
        registry.made_once(name, ranks=ranks, microbatches=rounds * ranks, chunks=chunks)
        for rounds in (2, 3)
    )
    return np.array_equal(
        measure_memory(two, costs.table(two)).peak, measure_memory(three, costs.table(three)).peak
    )


def counted(schedule: Schedule, runtime: str) -> InFlight:
    """Return the counts of a schedule of whole microbatches.

    The engine gives the memory that actions take and free, for a microbatch that leaves
    :data:`WHOLE` units of which W needs one.
    """
    homes = schedule.placement.ranks_of_stages
    order = np.argsort(homes, kind="stable")
    stages = order.reshape(schedule.ranks, -1)
    slots = np.empty_like(homes)
    slots[order] = np.arange(len(order)) % stages.shape[1]
    costs = Costs(activation=WHOLE, kept_for_weight=1 / WHOLE, runtime=runtime)
    use = measure_memory(schedule, costs.table(schedule))
    found = [
        _moments(schedule, rank, slots, stages.shape[1], use) for rank in range(schedule.ranks)
    ]
    counts = [len(rows) for rows in found]
    whole, kept = np.split(np.concatenate(found), 2, axis=1)
    return InFlight(
        np.cumsum([0, *counts[:-1]]), stages[np.repeat(np.arange(schedule.ranks), counts)],
        whole, kept,
    )  # fmt: skip


def _moments(
    schedule: Schedule, rank: int, slots: NDArray[np.int64], chunks: int, use: MemoryUse
) -> Counts:
    """Return microbatches in flight during groups of actions that may be a peak."""
    program = schedule.actions[schedule.offsets[rank] : schedule.offsets[rank + 1]]
    closes = ends_group(program)
    groups: NDArray[np.int64] = np.cumsum(closes) - closes
    columns = slots[stages_of(program)]
    changes = np.zeros((2, int(groups[-1]) + 1, 2 * chunks), dtype=np.int32)
    for when, amounts in enumerate(use.deltas(schedule, rank)):
        whole = np.rint(amounts / WHOLE)
        kept = np.rint(amounts - WHOLE * whole)
        np.add.at(changes[when], (groups, columns), whole.astype(np.int32))
        np.add.at(changes[when], (groups, columns + chunks), kept.astype(np.int32))
    during = np.cumsum(changes.sum(axis=0), axis=0, dtype=np.int32) - changes[1]
    # Where a neighbor has as many of everything, a moment is not needed.
    during = during[~np.append(np.all(during[:-1] <= during[1:], axis=1), values=False)]
    during = during[~np.append(False, np.all(during[1:] <= during[:-1], axis=1))]
    rows: Counts = during[list({row.tobytes(): at for at, row in enumerate(during)}.values())]
    if len(rows) > COMPARED:
        return rows
    # Of two moments that differ the one with no more of anything is not needed.
    less = np.all(rows[:, None] <= rows[None], axis=2)
    np.fill_diagonal(less, val=False)
    needed: Counts = rows[~less.any(axis=1)]
    return needed
