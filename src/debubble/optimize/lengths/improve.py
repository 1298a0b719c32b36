"""Orders of microbatches of different lengths, annealed and solved with every one's own times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from debubble.core.actions import Program
from debubble.core.errors import DebubbleError
from debubble.core.schedule import Schedule
from debubble.listing import TOLERANCE
from debubble.optimize.anneal.annealer import refine
from debubble.optimize.anneal.strategies import ROUNDS, is_small
from debubble.optimize.cp_sat.lengths_model import by_work, narrow, telling_ranks
from debubble.optimize.lengths.assign import arrange, renumbered
from debubble.optimize.problem import Problem, without_recomputes
from debubble.optimize.programs.membership import outside
from debubble.optimize.programs.offload import with_asked_copies, without_copies
from debubble.optimize.request import Request
from debubble.optimize.stop import Stop
from debubble.optimize.strategies import has_solver

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
        if not self.done and is_small(self.best.problem):
            table = self.best.problem.placement.table
            own = [problem.placement.table for problem in problems].index(table)
            proven = self._solve(bounds[own] if bounds else 0.0, stop)
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

    def _solve(self, low: float, stop: Stop) -> float:
        """Solve all ranks; a time that no order with the best one's placement beats."""
        problem = self.best.problem

        def found(programs: list[Program]) -> None:
            self._offer(programs, "exact solving", stop)

        work = WHOLE_WORK * stop.work.effort
        return narrow(problem, range(problem.ranks), low, self.best.makespan, work, stop, found)
