"""Assignment of microbatches of different lengths to the places of a schedule.

All assignments are tried where there are few, else swaps of two microbatches from several first
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import MICROBATCH_SHIFT, Program, microbatches_of
from debubble.core.cost_table import CostTable
from debubble.core.costs import Costs
from debubble.core.kinds import COPY_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.action_times import with_times
from debubble.engine.graph import P2PMode, compile_graph
from debubble.engine.memory import Limit, measure_memory, memory_limits
from debubble.engine.timeline import timeline_of
from debubble.engine.validate import has
from debubble.listing import TOLERANCE

Times = NDArray[np.float64]
Assignment = tuple[int, ...]

ALL_UP_TO = 7
"""Most microbatches of which every order is tried."""

EVALUATIONS = 4000
"""Assignments that are evaluated for one order where not all of them are."""

MOST_SIMULATED = 100
"""Assignments, fastest first, whose memory is simulated where activations leave their ranks."""

BLOCK = 64
"""Assignments that are evaluated at once."""


@dataclass(frozen=True)
class Arranged:
    """An order with a microbatch for each of its places."""

    makespan: float
    """Of the order, where place i has microbatch ``microbatches[i]``."""
    microbatches: Assignment
    """The microbatch of every place."""


def arrange(
    schedule: Schedule,
    costs: Costs,
    memory: Limit | None = None,
    mode: P2PMode = "overlapped",
    effort: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
) -> Arranged | None:
    """Return the best microbatch for every place of a schedule; None where none tried fits.

    `effort` multiplies the number of assignments tried where there are too many to try all. Once
    `stop` is true, the best of those that were tried is taken.
    """
    table = costs.table(schedule)
    if table.lengths is None:
        table = replace(table, lengths=np.ones(schedule.microbatches))
    lengths = table.lengths
    assert lengths is not None
    judge = _Assignments(schedule, table, memory, mode, stop)
    if len(lengths) <= ALL_UP_TO:
        return judge.best_of(_different(lengths))
    left = int(EVALUATIONS * effort)
    best: Arranged | None = None
    starts = _first_orders(lengths)
    for start in starts:
        if best is not None and stop():
            break
        here = judge.best_of([start])
        spent = 1
        while spent < left // len(starts) and not stop():
            at = start if here is None else here.microbatches
            moved = list(_swapped(at, lengths))
            spent += len(moved)
            better = judge.best_of(moved)
            if better is None or (
                here is not None and better.makespan >= here.makespan * (1 - TOLERANCE)
            ):
                break
            here = better
        if here is not None and (best is None or here.makespan < best.makespan):
            best = here
    return best


def renumbered(programs: Sequence[Program], microbatches: Assignment) -> list[Program]:
    """Return an order in which every microbatch has the number of the one that takes its place."""
    numbers = np.array(microbatches)
    return [
        program + ((numbers[own] - own) << MICROBATCH_SHIFT)
        for program, own in ((program, microbatches_of(program)) for program in programs)
    ]


class _Assignments:
    """Makespans and memory of one order with different assignments."""

    def __init__(
        self, schedule: Schedule, table: CostTable, memory: Limit | None, mode: P2PMode,
        stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.schedule, self.table, self.stop = schedule, table, stop
        self.graph = compile_graph(schedule, mode, table.costs.host_link_shared_by)
        self.copies = has(schedule, COPY_KINDS)
        self.limits = memory_limits(memory, schedule.ranks)
        assert table.lengths is not None
        self.lengths = table.lengths

    def best_of(self, orders: Sequence[Assignment]) -> Arranged | None:
        """Return the fastest of some assignments that fits; the first of those that are alike."""
        found = [np.zeros(0)]
        for begin in range(0, len(orders), BLOCK):
            if begin and self.stop():
                break
            found.append(self._makespans(orders[begin : begin + BLOCK]))
        makespans = np.concatenate(found)
        tried = np.argsort(np.round(makespans, 12), kind="stable").tolist()
        for index in tried[: MOST_SIMULATED if self.copies else None]:
            if self.fits(orders[index]):
                return Arranged(float(makespans[index]), tuple(orders[index]))
        return None

    def fits(self, order: Assignment) -> bool:
        """Return whether every rank stays within its memory, with copies when they are made."""
        if self.limits is None:
            return True
        table = self._assigned(order)
        if self.copies:
            peak = timeline_of(self.graph, table).peak_activation
        else:
            peak = measure_memory(self.schedule, table).peak
        return bool(np.all(peak <= self.limits * (1 + TOLERANCE)))

    def _assigned(self, order: Assignment) -> CostTable:
        return replace(self.table, lengths=self.lengths[list(order)])

    def _makespans(self, orders: Sequence[Assignment]) -> Times:
        own = [with_times(self.graph, self._assigned(order)) for order in orders]
        return own[0][0].makespans(np.array([vector for _, vector in own]))


def _different(lengths: Times) -> list[Assignment]:
    """Return every assignment; one of those in which equal lengths change places."""
    found: dict[tuple[float, ...], Assignment] = {}
    for order in permutations(range(len(lengths))):
        found.setdefault(tuple(lengths[list(order)].tolist()), order)
    return list(found.values())


def _first_orders(lengths: Times) -> list[Assignment]:
    """Return first assignments: as given, shortest or longest first, short ones at both ends."""
    rising = np.argsort(lengths, kind="stable").tolist()
    ends = rising[::2] + rising[1::2][::-1]
    orders = [tuple(range(len(lengths))), tuple(rising), tuple(rising[::-1]), tuple(ends)]
    return list(dict.fromkeys(orders))


def _swapped(order: Assignment, lengths: Times) -> Iterator[Assignment]:
    """Yield orders in which two microbatches of different lengths have changed places."""
    for a, b in combinations(range(len(order)), 2):
        if lengths[order[a]] != lengths[order[b]]:
            other = list(order)
            other[a], other[b] = other[b], other[a]
            yield tuple(other)
