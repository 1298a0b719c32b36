"""Counts of microbatches in flight on every rank, from the schedule alone.

A rank takes and frees activations in the order of its program, independent of times. So its largest
memory follows from numbers of microbatches, which are counted once for each schedule, and from the
bytes of one microbatch, which differ from plan to plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
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

AT_ONCE = 1 << 18
"""Most numbers that are counted at once, unless one rank has more."""

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
    if microbatches > 3 * ranks and is_steady(name, ranks, chunks):
        return in_flight(name, ranks, 2 * ranks, chunks, runtime)
    schedule = registry.made_once(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    if 2 * chunks * int(np.diff(schedule.offsets).max()) > LARGEST:
        return None
    return counted(schedule, runtime)


@lru_cache(maxsize=1 << 14)
def is_steady(name: str, ranks: int, chunks: int) -> bool:
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
    ranks, chunks = schedule.ranks, stages.shape[1]
    several = max(AT_ONCE // (2 * chunks * int(np.diff(schedule.offsets).max())), 1)
    found = [
        rows for first in range(0, ranks, several)
        for rows in _moments(schedule, first, min(first + several, ranks), slots, chunks, use)
    ]  # fmt: skip
    counts = [len(rows) for rows in found]
    whole, kept = np.split(np.concatenate(found), 2, axis=1)
    return InFlight(
        np.cumsum([0, *counts[:-1]]), stages[np.repeat(np.arange(ranks), counts)], whole, kept
    )


def _moments(
    schedule: Schedule, first: int, end: int, slots: NDArray[np.int64], chunks: int, use: MemoryUse
) -> Iterator[Counts]:
    """Yield microbatches in flight on some ranks, during groups of actions that may be a peak."""
    part = slice(int(schedule.offsets[first]), int(schedule.offsets[end]))
    program = schedule.actions[part]
    closes = ends_group(program)
    groups: NDArray[np.int64] = np.cumsum(closes) - closes
    ranks = schedule.ranks_of_actions[part][closes]
    columns = 2 * chunks * groups + slots[stages_of(program)]
    taken, freed = (
        _by_group(amounts, columns, chunks, len(ranks))
        for amounts in use.changes(schedule, use.actions[part])
    )
    # A rank frees all that it takes: the next one begins with nothing.
    during = np.cumsum(taken + freed, axis=0, dtype=np.int32) - freed
    # Where a neighbor has as many of everything, a moment is not needed.
    less = np.all(during[:-1] <= during[1:], axis=1) & (ranks[:-1] == ranks[1:])
    during, ranks = (one[~np.append(less, False)] for one in (during, ranks))
    less = np.all(during[1:] <= during[:-1], axis=1) & (ranks[:-1] == ranks[1:])
    during, ranks = (one[~np.append(False, less)] for one in (during, ranks))
    for begin, stop in pairwise(np.searchsorted(ranks, np.arange(first, end + 1)).tolist()):
        yield _needed(during[begin:stop])


def _by_group(
    amounts: NDArray[np.float64], columns: NDArray[np.int64], chunks: int, groups: int
) -> Counts:
    """Return whole microbatches, and parts for W, that every group of actions takes or frees."""
    whole = np.rint(amounts / WHOLE)
    kept = amounts - WHOLE * whole
    size = 2 * chunks * groups
    found = np.bincount(columns, whole, size) + np.bincount(columns + chunks, kept, size)
    counts: Counts = np.rint(found).astype(np.int32).reshape(groups, -1)
    return counts


def _needed(rows: Counts) -> Counts:
    """Return rows of which none has as many of everything as another."""
    rows = rows[list({row.tobytes(): at for at, row in enumerate(rows)}.values())]
    if len(rows) > COMPARED:
        return rows
    # Of two moments that differ the one with no more of anything is not needed.
    less = np.all(rows[:, None] <= rows[None], axis=2)
    np.fill_diagonal(less, val=False)
    needed: Counts = rows[~less.any(axis=1)]
    return needed
