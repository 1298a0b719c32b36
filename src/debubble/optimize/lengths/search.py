"""Microbatches of different lengths: orders, and which microbatch runs where in them.

Orders are searched for the average microbatch first. Any microbatch may take any place in one
(:mod:`debubble.optimize.lengths.assign`), so that one can choose which runs first, and which run
at the same time. The best is annealed with every microbatch's own times, and solved exactly where
it is small (:mod:`debubble.optimize.cp_sat.lengths_model`); what comes of that is arranged once
more.

Every order that is looked at is one of a problem with the lengths as they are given, and has its
microbatches numbered like these: what costs say of microbatch 3 holds for microbatch 3 of the
result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from debubble.core.actions import Program, kinds_of, microbatches_of, stages_of
from debubble.core.cost_table import static_memory
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.kind_relations import FORWARD_KIND
from debubble.core.schedule import Schedule
from debubble.core.stage_values import numbers_of
from debubble.engine.memory import memory_limits
from debubble.listing import TOLERANCE
from debubble.optimize.anneal.annealer import refine
from debubble.optimize.anneal.strategies import ROUNDS, is_small
from debubble.optimize.cp_sat.lengths_model import by_work, narrow, telling_ranks
from debubble.optimize.lengths.assign import arrange, renumbered
from debubble.optimize.problem import Problem, without_recomputes
from debubble.optimize.programs.membership import outside
from debubble.optimize.programs.offload import with_asked_copies, without_copies
from debubble.optimize.programs.published import own_orders, published_orders
from debubble.optimize.request import Budget, Outcome, Request
from debubble.optimize.stop import Stop, WorkLimit, time_left
from debubble.optimize.strategies import has_solver
from debubble.optimize.times import microbatch_lengths

Search: TypeAlias = Callable[[Request, Budget], Outcome]
"""Finds the fastest order of microbatches that are alike."""

CANDIDATES = 4
"""Published schedules that are tried, too."""

FIRST = 0.7
"""Share of its time limit that each search for an order has before its assignment."""

AVERAGE = 0.5
"""Share of the time limit for orders of average microbatches."""

LEAST = 0.5
"""Seconds that a second search has, with less room, where none of the first one's orders fits."""


ANNEALED, PROVEN = 0.3, 0.5
"""Shares of the time limit for annealing, and of the remaining time for bounds by two ranks."""

TURNS = 3
"""Most times an order is annealed and arranged anew."""

PART_WORK, WHOLE_WORK = 20.0, 20.0
"""Work of the solver for two ranks of every placement, and for all ranks."""

MOST_ACTIONS = 200
"""Actions of two ranks beyond which the solver proves nothing with that work."""


class Assigned(NamedTuple):
    """An order of a problem with lengths, and the strategy that found it."""

    problem: Problem
    schedule: Schedule
    makespan: float
    name: str

    @property
    def programs(self) -> list[Program]:
        """The order of every rank."""
        return [self.schedule.program(rank) for rank in range(self.schedule.ranks)]


def without_equal_lengths(costs: Costs, microbatches: int) -> Costs:
    """Return costs without lengths where every microbatch is an average one."""
    if costs.microbatch is None:
        return costs
    lengths = numbers_of(costs.microbatch, "microbatch", "microbatch", microbatches)
    return replace(costs, microbatch=None) if np.all(lengths == 1) else costs


def search_lengths(search: Search, request: Request, budget: Budget) -> Outcome:
    """Find the fastest order and assignment of microbatches of different lengths."""
    began, limit = time.monotonic(), budget.time_limit
    part = None if limit is None else AVERAGE * limit
    found, best = _searched(search, request, budget.within(part))
    bound = min(map(by_work, request.problems))
    if request.memory is None:
        # What takes as long as the shortest, or longer, takes no less than its share of what
        # microbatches do that are all average ones.
        shortest = min(1.0, float(microbatch_lengths(request.problems[0]).min()))
        share = shortest if request.costs.attention == 0 else shortest**2
        bound = max(bound, found.bound * share)
    own = LengthsSearch(request, best, bound)
    if not (budget.stop.asked or own.done):
        work = WorkLimit(budget.effort if limit is None else math.inf, budget.seed, budget.workers)
        own.run(Stop(time_left(limit, began), budget.stop, work))
    best = own.best
    timeline = best.problem.timeline(best.schedule)
    status = "interrupted" if budget.stop.asked else "optimal" if own.done else "feasible"
    return Outcome(
        best.problem, best.schedule, timeline, own.bound, status,
        time.monotonic() - began, best.name,
    )  # fmt: skip


def entering(schedule: Schedule) -> tuple[int, ...]:
    """Return microbatches in the order in which they enter stage 0."""
    actions = schedule.program(int(schedule.placement.ranks_of_stages[0]))
    first = (kinds_of(actions) == FORWARD_KIND) & (stages_of(actions) == 0)
    return tuple(microbatches_of(actions[first]).tolist())


def _searched(search: Search, request: Request, budget: Budget) -> tuple[Outcome, Assigned]:
    """Search average microbatches; return the result, and the best schedule of them all.

    The order is the fastest with its best assignment that fits. Where memory is limited a second
    search has room for the longest in place of every microbatch: its orders fit with any
    assignment, those of the first are faster where they fit.
    """
    began, limit = time.monotonic(), budget.time_limit
    longest = float(microbatch_lengths(request.problems[0]).max())
    average = replace(request, costs=replace(request.costs, microbatch=None))
    questions = [average]
    limits = memory_limits(request.memory, request.ranks)
    if limits is not None and longest != 1:
        static = static_memory(request.costs, request.ranks)
        room = replace(average, memory=((limits - static) / longest + static).tolist())
        questions = [average, room] if longest > 1 else [room]
    results: list[tuple[Outcome, Assigned]] = []
    refused = None
    for index, question in enumerate(questions):
        if results and (budget.stop.asked or time_left(limit, began) <= 0):
            break
        part = None
        if limit is not None:
            part = max(time_left(limit, began) / (len(questions) - index), LEAST)
            budget = budget.within(FIRST * part)
        here = time.monotonic()
        try:
            found = search(question, budget)
        except ParameterError as error:
            if question is questions[0]:
                raise
            refused = error
            continue
        best = _fastest(request, found, budget.effort, Stop(time_left(part, here), budget.stop))
        if best is not None:
            results.append((found, best))
    if not results:
        raise ParameterError(
            "no order was found in which microbatches of these lengths fit into the memory, "
            f"the longest {longest:g} times the average one; give {longest:g} "
            "times the memory that average ones need, or recompute"
        ) from refused
    # What the second proves holds for its smaller limits alone.
    return results[0][0], min((best for _, best in results), key=lambda b: b.makespan)


def _fastest(
    request: Request, found: Outcome, effort: float, stop: Callable[[], bool]
) -> Assigned | None:
    """Return the fastest order with its best assignment that fits; None where none does."""
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
    """Yield the schedule that was found, and the fastest published ones of its problem."""
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
    """Return the makespan without copies; infinite where the schedule cannot run."""
    try:
        return problem.timeline(problem.schedule(programs)).makespan
    except DebubbleError:
        return math.inf


def fastest_assignment(
    problem: Problem, programs: Sequence[Program], name: str, effort: float,
    stop: Callable[[], bool],
) -> Assigned | None:  # fmt: skip
    """Return a schedule with the best microbatch in every place; None where none tried fits.

    Copies to the host are placed anew for each assignment.
    """
    bare = without_copies(programs)
    if not problem.can_run_ahead:
        bare = without_recomputes(bare)
    costs, limits = problem.table.costs, problem.limits.tolist()
    assignments = {tuple(range(problem.microbatches))}
    ways = list(with_asked_copies(problem, bare))
    for way in ways:
        if stop() and len(ways) > 1:
            break
        for memory in (limits, None) if len(ways) > 1 else (limits,):
            try:
                found = arrange(way, costs, memory, problem.mode, effort / len(ways), stop)
            except DebubbleError:
                continue
            if found is not None:
                assignments.add(found.microbatches)
    best: Assigned | None = None
    for assignment in sorted(assignments):
        if best is not None and stop():
            break
        for schedule in with_asked_copies(problem, renumbered(bare, assignment)):
            makespan = problem.makespan(schedule)
            limit = np.inf if best is None else best.makespan * (1 - TOLERANCE)
            if makespan < limit and not outside(problem, schedule):
                best = Assigned(problem, schedule, makespan, name)
    return best


class LengthsSearch:
    """The best order and the bound, while these are improved."""

    def __init__(self, request: Request, best: Assigned, bound: float) -> None:
        self.asked, self.best, self.bound = request, best, bound

    @property
    def done(self) -> bool:
        """True if nothing can be faster."""
        return self.best.makespan <= self.bound * (1 + TOLERANCE)

    def run(self, stop: Stop) -> None:
        """Anneal the best order, raise the bound, and solve small problems.

        `stop` ends this early; its work limits the search.
        """
        if self.best.problem.offload:
            return
        self._anneal(Stop(ANNEALED * stop.left, stop))
        if self.done or stop() or not has_solver():
            return
        # Where stages may choose, or layers be cut, there are more problems than these.
        problems = self.asked.problems
        open_to = self.asked.ways(problems[0].stages)
        bounds: list[float] = []
        if max(map(len, open_to)) == 1 and self.asked.layers is None:
            bounds = self._prove(problems, Stop(PROVEN * stop.left, stop))
        problem = self.best.problem
        if not self.done and is_small(problem):
            tables = [other.placement.table for other in problems]
            own = tables.index(problem.placement.table)
            low, work = bounds[own] if bounds else 0.0, WHOLE_WORK * stop.work.effort

            def found(programs: list[Program]) -> None:
                self._offer(programs, "exact solving", stop)

            everywhere = range(problem.ranks)
            proven = narrow(problem, everywhere, low, self.best.makespan, work, stop, found)
            if bounds:
                bounds[own] = max(bounds[own], proven)
                self.bound = max(self.bound, min(*bounds, self.best.makespan))

    def _offer(self, programs: Sequence[Program], name: str, stop: Stop) -> bool:
        """Keep an order, arranged anew, if it fits and is faster than the best."""
        effort = min(stop.work.effort, 1.0)
        found = fastest_assignment(self.best.problem, programs, name, effort, stop)
        if found is None or not found.makespan < self.best.makespan * (1 - TOLERANCE):
            return False
        self.best = found
        return True

    def _anneal(self, stop: Stop) -> None:
        for turn in range(TURNS):
            rounds = ROUNDS * min(stop.work.effort, 2.0)
            better = refine(
                self.best.problem, self.best.programs, stop, rounds,
                stop_at=self.bound, seed=stop.work.seed + turn,
            )  # fmt: skip
            if not self._offer(better, "annealing", stop) or self.done or stop():
                return

    def _prove(self, problems: Sequence[Problem], stop: Stop) -> list[float]:
        """Raise the bound by two ranks of every placement; the bound of each."""
        bounds = []
        for left, problem in zip(range(len(problems), 0, -1), problems, strict=True):
            bound, ranks = by_work(problem), telling_ranks(problem)
            kept = np.count_nonzero(np.isin(problem.homes, ranks)) * len(problem.kinds)
            beaten = bound < self.best.makespan * (1 - TOLERANCE)
            if beaten and kept * problem.microbatches <= MOST_ACTIONS:
                work = PART_WORK * stop.work.effort / len(problems)
                until = Stop(stop.left / left, stop)
                bound = narrow(problem, ranks, bound, self.best.makespan, work, until)
            bounds.append(bound)
        self.bound = max(self.bound, min(*bounds, self.best.makespan))
        return bounds
