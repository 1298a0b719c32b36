"""Microbatches of different lengths: orders, and which microbatch runs where in them.

Orders are searched for the average microbatch first. Any microbatch may take any place in one
(:mod:`debubble.optimize.lengths.assign`), so that one can choose which runs first, and which run
beside each other. The best is annealed with every microbatch's own times, and solved exactly where
it is small (:mod:`debubble.optimize.cp_sat.lengths_model`); what comes of that is arranged once
more.

Every order that is looked at is one of a problem with the lengths as they are given, and has its
microbatches numbered like these: what costs say of microbatch 3 holds for microbatch 3 of the
result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from debubble.core.actions import Kind, Program, kinds_of, microbatches_of, stages_of
from debubble.core.cost_table import static_memory
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.schedule import Schedule
from debubble.core.stage_values import numbers_of
from debubble.engine.memory import memory_limits
from debubble.listing import TOLERANCE
from debubble.optimize.cp_sat.lengths_model import by_work
from debubble.optimize.lengths.improve import Candidate, LengthsSearch, fastest_assignment
from debubble.optimize.problem import Problem
from debubble.optimize.programs.published import own_orders, published_orders
from debubble.optimize.request import Budget, Outcome, Request
from debubble.optimize.stop import Stop, Work, run_heard, time_left
from debubble.optimize.times import lengths_of

Search: TypeAlias = Callable[[Request, Budget], Outcome]
"""Finds the fastest order of microbatches that are alike."""

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


def search_lengths(search: Search, request: Request, budget: Budget) -> Outcome:
    """Find the fastest order and assignment of microbatches of different lengths."""
    began, limit = time.monotonic(), budget.time_limit
    part = None if limit is None else AVERAGE * limit
    found, best, interrupted = _searched(search, request, budget.within(part))
    bound = min(map(by_work, request.problems))
    if request.memory is None:
        # What takes as long as the shortest, or longer, takes no less than its share of what
        # microbatches do that are all average ones.
        shortest = min(1.0, float(lengths_of(request.problems[0]).min()))
        share = shortest if request.costs.attention == 0 else shortest**2
        bound = max(bound, found.bound * share)
    own = LengthsSearch(request, best, bound)
    if not (interrupted or own.done):
        effort = budget.effort if limit is None else math.inf
        stop = Stop(time_left(limit, began), work=Work(effort, budget.seed, budget.workers))
        interrupted = run_heard(lambda: own.run(stop), stop, budget.until)
    best = own.best
    timeline = best.problem.timeline(best.schedule)
    status = "interrupted" if interrupted else "optimal" if own.done else "feasible"
    return Outcome(
        best.problem, best.schedule, timeline, own.bound, status,
        time.monotonic() - began, best.name,
    )  # fmt: skip


def entering(schedule: Schedule) -> tuple[int, ...]:
    """Microbatches in the order in which they enter stage 0."""
    actions = schedule.program(int(schedule.placement.ranks_of_stages[0]))
    first = (kinds_of(actions) == Kind.F) & (stages_of(actions) == 0)
    return tuple(microbatches_of(actions[first]).tolist())


def _searched(search: Search, request: Request, budget: Budget) -> tuple[Outcome, Candidate, bool]:
    """The search for average microbatches, its best order, and whether it was interrupted.

    The order is the fastest with its best assignment that fits. Where memory is limited a second
    search has room for the longest in place of every microbatch: its orders fit with any
    assignment, those of the first are faster where they fit.
    """
    began, limit = time.monotonic(), budget.time_limit
    longest = float(lengths_of(request.problems[0]).max())
    average = replace(request, costs=replace(request.costs, microbatch=None))
    questions = [average]
    limits = memory_limits(request.memory, request.ranks)
    if limits is not None and longest != 1:
        static = static_memory(request.costs, request.ranks)
        room = replace(average, memory=((limits - static) / longest + static).tolist())
        questions = [average, room] if longest > 1 else [room]
    results: list[tuple[Outcome, Candidate]] = []
    refused, interrupted = None, False
    for index, question in enumerate(questions):
        if results and (interrupted or time_left(limit, began) <= 0):
            break
        part = None
        if limit is not None:
            part = max(time_left(limit, began) / (len(questions) - index), LEAST)
            budget = budget.within(FIRST * part)
        if interrupted:
            budget = replace(budget, until=lambda: True)
        here = time.monotonic()
        try:
            found = search(question, budget)
        except ParameterError as error:
            if question is questions[0]:
                raise
            refused = error
            continue
        best, ended = _heard(request, found, budget, Stop(time_left(part, here)))
        interrupted = interrupted or ended
        if best is not None:
            results.append((found, best))
    if not results:
        raise ParameterError(
            "no order was found in which microbatches of these lengths fit into the memory, "
            f"the longest {longest:g} times the average one; give {longest:g} "
            "times the memory that average ones need, or recompute"
        ) from refused
    # What the second proves holds for its smaller limits alone.
    return results[0][0], min((best for _, best in results), key=lambda b: b.makespan), interrupted


def _heard(
    request: Request, found: Outcome, budget: Budget, stop: Stop
) -> tuple[Candidate | None, bool]:
    """The fastest order, within the time there is; whether Ctrl-C or `until` ended the search."""
    ended = found.status == "interrupted"
    if ended:
        stop.ask()
    made: list[Candidate | None] = []
    ended = run_heard(
        lambda: made.append(_fastest(request, found, budget.effort, stop)), stop, budget.until
    ) or ended  # fmt: skip
    return made[0], ended


def _fastest(
    request: Request, found: Outcome, effort: float, stop: Callable[[], bool]
) -> Candidate | None:
    """The fastest order with its best assignment that fits; None where none does."""
    problem, best = request.like(found.problem), None
    for name, programs in _orders(found, stop):
        if best is not None and stop():
            break
        here = fastest_assignment(problem, programs, name, effort, stop)
        faster = best is None or (
            here is not None and here.makespan < best.makespan * (1 - TOLERANCE)
        )
        if here is not None and faster:
            best = here
    return best


def _orders(found: Outcome, stop: Callable[[], bool]) -> Iterator[tuple[str, list[Program]]]:
    """The order that was found, and the fastest published ones of the same problem."""
    problem, schedule = found.problem, found.schedule
    yield found.found_by, [schedule.program(rank) for rank in range(schedule.ranks)]
    if problem.cut or stop():
        return
    rated = [
        (_makespan(problem, programs), name, programs)
        for name, published in published_orders(problem)
        for programs in own_orders(problem, published)
    ]
    rated = [row for row in rated if row[0] < math.inf]
    for _, name, programs in sorted(rated, key=lambda row: row[0])[:CANDIDATES]:
        yield name, programs


def _makespan(problem: Problem, programs: list[Program]) -> float:
    """How long an order takes without copies; infinite where it cannot run."""
    try:
        return problem.timeline(problem.schedule(programs)).makespan
    except DebubbleError:
        return math.inf
