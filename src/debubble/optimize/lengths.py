"""Microbatches of different lengths: which of them runs where in an order.

Orders are searched for the average microbatch. Any microbatch may take any place in an order, so
that one can choose which runs first, and which run beside each other: all assignments are tried
where there are few, else swaps of two microbatches from several first ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import pairs_of
from debubble.core.cost_table import CostTable
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.kind_relations import PASS_KINDS
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.core.stage_values import numbers_of
from debubble.engine.graph import P2PMode, compile_graph
from debubble.engine.memory import Limit, measure_memory, memory_limits
from debubble.engine.own_times import with_times
from debubble.engine.timeline import simulate
from debubble.listing import TOLERANCE
from debubble.optimize.offload import is_none
from debubble.optimize.published import compare_with_published
from debubble.optimize.result import Result
from debubble.optimize.stop import Stop, run_heard, time_left

Floats = NDArray[np.float64]
Order = tuple[int, ...]

ALL_UP_TO = 7
"""Most microbatches of which every order is tried."""

CANDIDATES = 4
"""Published orders that are tried beside the one that was found."""

EVALUATIONS = 4000
"""Assignments that are evaluated for one order where not all of them are."""

FIRST = 0.7
"""Share of a time limit that the search for the order has."""

LEAST = 0.5
"""Seconds that a second search has, with less room, where none of the first one's orders fits."""

BLOCK = 64
"""Assignments that are evaluated at once."""


@dataclass(frozen=True)
class Arranged:
    """An order with a microbatch for each of its places."""

    makespan: float
    """Of the order, where place i has microbatch ``microbatches[i]``."""
    microbatches: Order
    """The microbatch of every place."""


def without_equal_lengths(costs: Costs, microbatches: int) -> Costs:
    """The same costs, without lengths where every microbatch is an average one."""
    if costs.microbatch is None:
        return costs
    lengths = numbers_of(costs.microbatch, "microbatch", "microbatch", microbatches)
    return replace(costs, microbatch=None) if np.all(lengths == 1) else costs


def optimize_lengths(
    search: Callable[..., Result],
    costs: Costs,
    memory: Limit | None,
    placements: Sequence[Placement],
    **options: Any,
) -> Result:
    """Find the fastest order and assignment of microbatches of different lengths.

    Parameters
    ----------
    search
        :func:`debubble.optimize`.
    costs
        With the length of every microbatch.
    memory, **options
        All that `search` takes beside.
    placements
        Every placement that the search tries.
    """
    began = time.monotonic()
    average = replace(costs, microbatch=None)
    lengths = numbers_of(
        costs.microbatch or 1.0, "microbatch", "microbatch", options["microbatches"]
    )
    mode, published = options["p2p_mode"], options.pop("published")
    found, best, interrupted = _searched(search, costs, average, memory, lengths, options)
    schedule, name, arranged = best
    own = _costs_of(found, costs, lengths[list(arranged.microbatches)])
    timeline = simulate(schedule, own, mode)
    unlimited = found.lower_bound if memory is None else None
    bound = _bound(costs, lengths, placements, unlimited, cut=found.costs is not None)
    compared = None
    if published and not interrupted:
        compared = compare_with_published(
            timeline if found.costs is not None else schedule, own, memory, mode,
            recompute=options["recompute"], copies=not is_none(options["offload"]),
        )  # fmt: skip
    status = "interrupted" if interrupted else found.status
    if status != "interrupted":
        status = "optimal" if timeline.makespan <= bound * (1 + TOLERANCE) else "feasible"
    return replace(
        found, schedule=schedule, timeline=timeline, makespan=timeline.makespan, lower_bound=bound,
        status=status, seconds=time.monotonic() - began, found_by=name, cached=False,
        published=compared, costs=None if found.costs is None else own,
        why="", microbatches=arranged.microbatches,
    )  # fmt: skip


def _searched(
    search: Callable[..., Result],
    costs: Costs,
    average: Costs,
    memory: Limit | None,
    lengths: Floats,
    options: dict[str, Any],
) -> tuple[Result, tuple[Schedule, str, Arranged], bool]:
    """The search for average microbatches, its best order, and whether it was interrupted.

    The order is the fastest with its best assignment that fits. Where memory is limited a second
    search has room for the longest in place of every microbatch: its orders fit with any
    assignment, those of the first are faster where they fit.
    """
    began, time_limit = time.monotonic(), options["time_limit"]
    limits = [memory]
    if memory is not None:
        limits.append((np.asarray(memory) / lengths.max()).tolist())
    results: list[tuple[Result, tuple[Schedule, str, Arranged]]] = []
    refused, interrupted = None, False
    for index, limit in enumerate(limits):
        if interrupted and results:
            break
        part = None
        if time_limit is not None:
            part = max(time_left(time_limit, began) / (len(limits) - index), LEAST)
            options = options | {"time_limit": FIRST * part}
        if interrupted:
            options = options | {"until": lambda: True}
        here = time.monotonic()
        try:
            found = search(costs=average, memory=limit, published=True, **options)
        except ParameterError as error:
            if limit is memory:
                raise
            refused = error
            continue
        best, ended = _heard(found, costs, lengths, memory, here, part, options)
        interrupted = interrupted or ended
        if best is not None:
            results.append((found, best))
    if not results:
        raise ParameterError(
            "no order was found in which microbatches of these lengths fit into the memory, "
            f"the longest {lengths.max():g} times the average one; give {lengths.max():g} "
            "times the memory that average ones need, or recompute"
        ) from refused
    return *min(results, key=lambda result: result[1][2].makespan), interrupted


def _costs_of(found: Result, costs: Costs, lengths: Floats) -> Costs:
    """The costs of a found order with these lengths, of its own cut where layers were cut."""
    return replace(found.costs or costs, microbatch=lengths.tolist())


def _heard(
    found: Result, costs: Costs, lengths: Floats, memory: Limit | None, began: float,
    limit: float | None, options: dict[str, Any],
) -> tuple[tuple[Schedule, str, Arranged] | None, bool]:  # fmt: skip
    """The fastest order, within the time there is; whether Ctrl-C or `until` ended the search."""
    stop = Stop(time_left(limit, began))
    ended = found.status == "interrupted"
    if ended:
        stop.ask()
    made: list[tuple[Schedule, str, Arranged] | None] = []
    mode, effort = options["p2p_mode"], options["effort"]

    def work() -> None:
        made.append(_fastest(found, costs, lengths, memory, mode, effort, stop))

    ended = run_heard(work, stop, options["until"]) or ended
    return made[0], ended


def _fastest(
    found: Result, costs: Costs, lengths: Floats, memory: Limit | None, mode: P2PMode,
    effort: float, stop: Callable[[], bool],
) -> tuple[Schedule, str, Arranged] | None:  # fmt: skip
    """The fastest order with its best assignment that fits; None where none does."""
    orders = [(found.schedule, found.found_by)]
    if found.published is not None and found.costs is None:
        rows = (row for row in found.published.rows if _alike(row.schedule, found.schedule))
        orders += [(row.schedule, row.name) for row in islice(rows, CANDIDATES)]
    best: tuple[Schedule, str, Arranged] | None = None
    for schedule, name in orders:
        if best is not None and stop():
            break
        own = _costs_of(found, costs, lengths)
        arranged = arrange(schedule, own, memory, mode, effort, stop)
        faster = best is None or (
            arranged is not None and arranged.makespan < best[2].makespan * (1 - TOLERANCE)
        )
        if arranged is not None and faster:
            best = schedule, name, arranged
    return best


def _alike(one: Schedule, other: Schedule) -> bool:
    """Whether a published order is one that the search could have found."""
    same = one is not other and one.placement.table == other.placement.table
    return same and not np.any(pairs_of(one.actions))


def arrange(
    schedule: Schedule,
    costs: Costs,
    memory: Limit | None = None,
    mode: P2PMode = "overlapped",
    effort: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
) -> Arranged | None:
    """The best microbatch for every place of an order; None where no assignment tried fits.

    Parameters
    ----------
    schedule
        The order.
    costs
        With the length of every microbatch.
    memory
        Limit of every rank, or one for each.
    mode
        The p2p mode.
    effort
        Multiplies the number of assignments tried where there are too many to try all.
    stop
        Once it is true, the best of those that were tried is taken.
    """
    table = costs.table(schedule)
    if table.lengths is None:
        table = replace(table, lengths=np.ones(schedule.microbatches))
    lengths = table.lengths
    assert lengths is not None
    judge = _Judge(schedule, table, memory, mode, stop)
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


class _Judge:
    """Makespans and memory of one order with different assignments."""

    def __init__(
        self, schedule: Schedule, table: CostTable, memory: Limit | None, mode: P2PMode,
        stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.schedule, self.table, self.stop = schedule, table, stop
        self.graph = compile_graph(schedule, mode)
        self.limits = memory_limits(memory, schedule.ranks)
        assert table.lengths is not None
        self.lengths = table.lengths

    def best_of(self, orders: Sequence[Order]) -> Arranged | None:
        """The fastest of some assignments that fits; the first of those that are alike."""
        found = [np.zeros(0)]
        for begin in range(0, len(orders), BLOCK):
            if begin and self.stop():
                break
            found.append(self._makespans(orders[begin : begin + BLOCK]))
        makespans = np.concatenate(found)
        for index in np.argsort(np.round(makespans, 12), kind="stable").tolist():
            if self.fits(orders[index]):
                return Arranged(float(makespans[index]), tuple(orders[index]))
        return None

    def fits(self, order: Order) -> bool:
        """Whether every rank stays within its memory."""
        if self.limits is None:
            return True
        peak = measure_memory(self.schedule, self._assigned(order)).peak
        return bool(np.all(peak <= self.limits * (1 + TOLERANCE)))

    def _assigned(self, order: Order) -> CostTable:
        return replace(self.table, lengths=self.lengths[list(order)])

    def _makespans(self, orders: Sequence[Order]) -> Floats:
        own = [with_times(self.graph, self._assigned(order)) for order in orders]
        return own[0][0].makespans(np.array([vector for _, vector in own]))


def _different(lengths: Floats) -> list[Order]:
    """Every order of microbatches; one of those in which equal lengths change places."""
    found: dict[tuple[float, ...], Order] = {}
    for order in permutations(range(len(lengths))):
        found.setdefault(tuple(lengths[list(order)].tolist()), order)
    return list(found.values())


def _first_orders(lengths: Floats) -> list[Order]:
    """Orders to begin with: as given, shortest and longest first, and short ones at both ends."""
    rising = np.argsort(lengths, kind="stable").tolist()
    ends = rising[::2] + rising[1::2][::-1]
    orders = [tuple(range(len(lengths))), tuple(rising), tuple(rising[::-1]), tuple(ends)]
    return list(dict.fromkeys(orders))


def _swapped(order: Order, lengths: Floats) -> Iterator[Order]:
    """Orders in which two microbatches of different lengths have changed places."""
    for a, b in combinations(range(len(order)), 2):
        if lengths[order[a]] != lengths[order[b]]:
            other = list(order)
            other[a], other[b] = other[b], other[a]
            yield tuple(other)


def _bound(
    costs: Costs,
    lengths: Floats,
    placements: Sequence[Placement],
    average: float | None,
    cut: bool,
) -> float:
    """A time that no order and assignment beats, over all placements.

    On each, a rank has the work of all microbatches, once the first of them has come to it; where
    layers are cut, ranks have equal shares at best. The longest microbatch has its own way through
    all stages. `average` is the bound for microbatches that are all average ones, without a memory
    limit: what takes as long as the shortest of these, or longer, takes no less than its share of
    that.
    """
    found = math.inf
    kinds = np.array(PASS_KINDS)[:, None]
    for placement in placements:
        table = costs.resolve(placement)
        places = np.arange(placement.stages)[None, :]
        work = np.zeros(placement.ranks)
        way = 0.0
        for length in lengths.tolist():
            F, I, W, B = table.times(kinds, places, length)
            np.add.at(work, placement.ranks_of_stages, F + np.minimum(I + W, B))
            way = max(way, float((F + np.minimum(I, B)).sum()))
        forward = table.times(kinds[:1], places, float(lengths.min()))[0]
        before = np.concatenate([[0.0], np.cumsum(forward)[:-1]])
        first = np.full(placement.ranks, math.inf)
        np.minimum.at(first, placement.ranks_of_stages, before)
        busiest = float(work.mean() if cut else (work + first).max())
        found = min(found, max(way, busiest))
    if average is None:
        return found
    shortest = min(1.0, float(lengths.min()))
    return max(found, average * (shortest if costs.attention == 0 else shortest**2))
