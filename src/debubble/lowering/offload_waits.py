"""Waits for offloads: a rank goes on when it has the memory, however long its copies take.

An OFFLOAD frees memory when it ends, and nothing that its rank computes waits for that of itself.
In front of what may have no room before, a WAIT_OFFLOAD holds the rank up.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import COPY_KINDS, STAGE_SHIFT, Program, among, group_bounds, kinds_of
from debubble.core.cost_table import CostTable
from debubble.core.kinds import WAIT_KINDS
from debubble.core.schedule import Schedule
from debubble.core.sequence import as_kind
from debubble.engine.memory import ROUNDING, measure_memory

Floats = NDArray[np.float64]

(_WAIT,) = WAIT_KINDS


def with_waits(schedule: Schedule, table: CostTable, limits: Floats) -> Schedule:
    """Return a schedule with copies in which ranks wait for the memory that these give back.

    It keeps `limits`, of every rank and infinite for none, whatever its actions and copies take, if
    the order keeps them with copies that are over at once. It is the same schedule where that needs
    no waits. Of the table only memory matters.
    """
    use = measure_memory(schedule, table)
    programs = []
    for rank in range(schedule.ranks):
        room = float(limits[rank] * (1 + ROUNDING) - use.static[rank])
        added, freed = use.deltas(schedule, rank)
        programs.append(_held_up(schedule.program(rank), added, freed, room))
    longer = sum(map(len, programs)) > len(schedule)
    return schedule.with_programs(programs) if longer else schedule


def without_and_with_waits(
    schedule: Schedule, table: CostTable, limits: Floats
) -> Iterator[Schedule]:
    """Return the schedule, and the one of :func:`with_waits` where that is another."""
    yield schedule
    held_up = with_waits(schedule, table, limits)
    if held_up is not schedule:
        yield held_up


class _Copy(NamedTuple):
    """A copy that may be under way."""

    position: int
    cell: int
    """Stage and microbatch."""
    change: float
    """Memory that it adds: less than nothing for an OFFLOAD."""


def _held_up(program: Program, added: Floats, freed: Floats, room: float) -> Program:
    """Return a program with waits; `added` and `freed` are what starts and ends of actions change.

    Copies of a rank run one after the other. How many of those that were issued are over is open,
    but for those in front of one that was waited for, or that brought back what is read.
    """
    copies, cells = among(kinds_of(program), COPY_KINDS), program >> STAGE_SHIFT
    begin, stop = group_bounds(program)
    heads = np.flatnonzero(begin == np.arange(len(program)))
    if not len(heads):
        return program
    # Members of a group start together, and end together.
    change = [np.add.reduceat(values, heads).tolist() for values in (added, freed)]
    ends, cell, is_copy = (column.tolist() for column in (stop, cells, copies))
    held, open_copies = 0.0, list[_Copy]()
    spots, waited = list[int](), list[int]()
    for first, taken, given in zip(heads.tolist(), *change, strict=True):
        if is_copy[first]:
            open_copies.append(_Copy(first, cell[first], taken + given))
            continue
        if open_copies:
            here = cell[first : ends[first]]
            over = _back(open_copies, here)
            held += sum(copy.change for copy in open_copies[:over])
            open_copies = open_copies[over:]
            if held + taken + _most(open_copies) > room:
                over = _waited(open_copies, room - held - taken)
                if over:
                    spots.append(first)
                    waited.append(open_copies[over - 1].position)
                held += sum(copy.change for copy in open_copies[:over])
                open_copies = open_copies[over:]
        held += taken + given
    return np.insert(program, spots, as_kind(program[waited], _WAIT))


def _back(copies: list[_Copy], cells: list[int]) -> int:
    """Count the copies up to the last one that brings back activations some cells read."""
    back = (i for i, copy in enumerate(copies, 1) if copy.change > 0 and copy.cell in cells)
    return max(back, default=0)


def _most(copies: list[_Copy]) -> float:
    """Return the largest change of memory while copies end one after the other."""
    return max(accumulate((copy.change for copy in copies), initial=0.0))


def _waited(copies: list[_Copy], room: float) -> int:
    """Count the copies up to the OFFLOAD that must end so that the others leave this room.

    Where none leave it, as many as there are up to the last OFFLOAD.
    """
    best, held = 0, 0.0
    for count, copy in enumerate(copies, 1):
        held += copy.change
        rest = copies[count:]
        if copy.change < 0 and all(other.cell != copy.cell for other in rest):
            best = count
            if held + _most(rest) <= room:
                break
    return best
