"""Microbatches of different lengths: orders, and which microbatch runs where in them.

Orders are searched for the average microbatch first. Any microbatch may take any place in one
(:mod:`debubble.optimize.arranging`), so that one can choose which runs first, and which run beside
each other. The best is annealed with every microbatch's own times, and solved exactly where it is
small (:mod:`debubble.optimize.lengths_model`); what comes of that is arranged once more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from debubble.core.actions import pairs_of
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.core.stage_values import numbers_of
from debubble.engine.graph import P2PMode
from debubble.engine.memory import Limit
from debubble.engine.timeline import simulate
from debubble.listing import TOLERANCE
from debubble.optimize.arranging import Floats, arrange
from debubble.optimize.lengths_model import by_work
from debubble.optimize.lengths_search import Found, LengthsSearch
from debubble.optimize.offload import is_none
from debubble.optimize.problem import Problem
from debubble.optimize.published import compare_with_published
from debubble.optimize.result import Result
from debubble.optimize.stop import Stop, Work, run_heard, time_left

CANDIDATES = 4
"""Published orders that are tried beside the one that was found."""

FIRST = 0.7
"""Share of its time limit that each search for an order has before its assignment."""

AVERAGE = 0.5
"""Share of the time limit for orders of average microbatches."""

LEAST = 0.5
"""Seconds that a second search has, with less room, where none of the first one's orders fits."""


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
    problems: Sequence[Problem],
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
    problems
        One for every placement and choice that the search tries.
    """
    began = time.monotonic()
    average = replace(costs, microbatch=None)
    lengths = numbers_of(
        costs.microbatch or 1.0, "microbatch", "microbatch", options["microbatches"]
    )
    mode, published = options["p2p_mode"], options.pop("published")
    problems = [
        replace(problem, table=problem.table.for_microbatches(problem.microbatches))
        for problem in problems
    ]
    limit = options["time_limit"]
    part = None if limit is None else AVERAGE * limit
    found, best, interrupted = _searched(
        search, costs, average, memory, lengths, options | {"time_limit": part}
    )
    bound = min(map(by_work, problems))
    if memory is None:
        # What takes as long as the shortest, or longer, takes no less than its share of what
        # microbatches do that are all average ones.
        shortest = min(1.0, float(lengths.min()))
        share = shortest if costs.attention == 0 else shortest**2
        bound = max(bound, found.lower_bound * share)
    own_search = LengthsSearch(best, bound, found.costs or costs, lengths, memory, mode, options)
    if not (interrupted or own_search.done):
        effort = options["effort"] if limit is None else math.inf
        work = Work(effort, options["seed"], options["workers"])
        stop = Stop(time_left(limit, began), work=work)
        interrupted = run_heard(lambda: own_search.run(problems, stop), stop, options["until"])
    (schedule, name, arranged), bound = own_search.best, own_search.bound
    own = _costs_of(found, costs, lengths[list(arranged.microbatches)])
    timeline = simulate(schedule, own, mode)
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
) -> tuple[Result, Found, bool]:
    """The search for average microbatches, its best order, and whether it was interrupted.

    The order is the fastest with its best assignment that fits. Where memory is limited a second
    search has room for the longest in place of every microbatch: its orders fit with any
    assignment, those of the first are faster where they fit.
    """
    began, time_limit = time.monotonic(), options["time_limit"]
    limits = [memory]
    if memory is not None:
        limits.append((np.asarray(memory) / lengths.max()).tolist())
    results: list[tuple[Result, Found]] = []
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
) -> tuple[Found | None, bool]:  # fmt: skip
    """The fastest order, within the time there is; whether Ctrl-C or `until` ended the search."""
    stop = Stop(time_left(limit, began))
    ended = found.status == "interrupted"
    if ended:
        stop.ask()
    made: list[Found | None] = []
    mode, effort = options["p2p_mode"], options["effort"]

    def work() -> None:
        made.append(_fastest(found, costs, lengths, memory, mode, effort, stop))

    ended = run_heard(work, stop, options["until"]) or ended
    return made[0], ended


def _fastest(
    found: Result, costs: Costs, lengths: Floats, memory: Limit | None, mode: P2PMode,
    effort: float, stop: Callable[[], bool],
) -> Found | None:  # fmt: skip
    """The fastest order with its best assignment that fits; None where none does."""
    orders = [(found.schedule, found.found_by)]
    if found.published is not None and found.costs is None:
        rows = (row for row in found.published.rows if _alike(row.schedule, found.schedule))
        orders += [(row.schedule, row.name) for row in islice(rows, CANDIDATES)]
    best: Found | None = None
    for schedule, name in orders:
        if best is not None and stop():
            break
        own = _costs_of(found, costs, lengths)
        arranged = arrange(schedule, own, memory, mode, effort, stop)
        faster = best is None or (
            arranged is not None and arranged.makespan < best[2].makespan * (1 - TOLERANCE)
        )
        if arranged is not None and faster:
            best = Found(schedule, name, arranged)
    return best


def _alike(one: Schedule, other: Schedule) -> bool:
    """Whether a published order is one that the search could have found."""
    same = one is not other and one.placement.table == other.placement.table
    return same and not np.any(pairs_of(one.actions))
