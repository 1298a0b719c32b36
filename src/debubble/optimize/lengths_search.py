"""Orders of microbatches of different lengths, annealed and solved with every one's own times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from debubble.core.actions import Program, pairs_of
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError
from debubble.core.kinds import COPY_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.exist import has
from debubble.engine.graph import P2PMode
from debubble.engine.memory import Limit, beside_static, memory_limits
from debubble.listing import TOLERANCE
from debubble.optimize.annealing import ROUNDS, small
from debubble.optimize.arranging import Arranged, Floats, arrange
from debubble.optimize.choices import choice_in, with_choice
from debubble.optimize.lengths_model import by_work, narrow, telling_ranks
from debubble.optimize.offload import is_none
from debubble.optimize.problem import Problem
from debubble.optimize.refine import refine
from debubble.optimize.stop import Stop
from debubble.optimize.strategies import has_solver

ANNEALED, PROVEN = 0.3, 0.5
"""Shares of the time limit for annealing, and of what is left then for bounds by two ranks."""

TURNS = 3
"""How often an order is annealed and arranged anew, at most."""

PART_WORK, WHOLE_WORK = 20.0, 20.0
"""Work of the solver for two ranks of every placement, and for all ranks."""

MOST_ACTIONS = 200
"""Actions of two ranks beyond which the solver proves nothing with that work."""


class Found(NamedTuple):
    """An order, what found it, and the microbatches of its places."""

    schedule: Schedule
    name: str
    arranged: Arranged

    @property
    def programs(self) -> list[Program]:
        """The order of every rank."""
        return [self.schedule.program(rank) for rank in range(self.schedule.ranks)]


class LengthsSearch:
    """The best order and the bound, while these are improved.

    Parameters
    ----------
    best, bound
        The order to begin with, and a time that none beats.
    costs, lengths
        Those of the order, and the length of every microbatch.
    memory, mode, options
        What :func:`debubble.optimize` was asked for.
    """

    def __init__(
        self, best: Found, bound: float, costs: Costs, lengths: Floats, memory: Limit | None,
        mode: P2PMode, options: dict[str, Any],
    ) -> None:  # fmt: skip
        self.best, self.bound, self.costs, self.lengths = best, bound, costs, lengths
        self.memory, self.mode, self.options = memory, mode, options

    @property
    def done(self) -> bool:
        """Whether nothing can be faster."""
        return self.best.arranged.makespan <= self.bound * (1 + TOLERANCE)

    def run(self, problems: Sequence[Problem], stop: Stop) -> None:
        """Anneal the best order, raise the bound, and solve what is small.

        Parameters
        ----------
        problems
            One for every placement, and for every choice for all stages.
        stop
            Ends this early; its work says how much to do.
        """
        schedule = self.best.schedule
        if has(schedule, COPY_KINDS) or np.any(pairs_of(schedule.actions)):
            return
        self._anneal(Stop(ANNEALED * stop.left, stop))
        if self.done or stop() or not has_solver():
            return
        # Where stages may choose, or layers be cut, there are more problems than these.
        chooses = self.options["recompute"] == "free" or not is_none(self.options["offload"])
        bounds: list[float] = []
        if not chooses and self.options["layers"] is None:
            bounds = self._prove(problems, Stop(PROVEN * stop.left, stop))
        if not self.done and small(self._problem()[0]):
            table = self.best.schedule.placement.table
            own = [problem.placement.table for problem in problems].index(table)
            proven = self._solve(bounds[own] if bounds else 0.0, stop)
            if bounds:
                bounds[own] = max(bounds[own], proven)
                self.bound = max(self.bound, min(*bounds, self.best.arranged.makespan))

    def _problem(self) -> tuple[Problem, tuple[int, ...]]:
        """What the best order solves, and the microbatches of its places."""
        schedule, places = self.best.schedule, self.best.arranged.microbatches
        room, alone = beside_static(self.memory, self._costs(places), schedule.ranks)
        limits = memory_limits(room, schedule.ranks)
        if limits is None:
            limits = np.full(schedule.ranks, math.inf)
        problem = Problem(
            schedule.placement, alone.table(schedule), schedule.microbatches,
            np.broadcast_to(limits, (schedule.ranks,)), mode=self.mode,
            backward=self.options["backward"],
        )  # fmt: skip
        return with_choice(problem, choice_in(schedule)), places

    def _costs(self, places: tuple[int, ...]) -> Costs:
        return replace(self.costs, microbatch=self.lengths[list(places)].tolist())

    def _offer(
        self, problem: Problem, places: tuple[int, ...], programs: Sequence[Program], name: str,
        stop: Stop,
    ) -> bool:  # fmt: skip
        """Keep an order of a problem with these microbatches in its places, arranged anew.

        If it fits and is faster than the best.
        """
        schedule = problem.schedule(programs)
        try:
            if not problem.fits(schedule):
                return False
            arranged = Arranged(problem.timeline(schedule).makespan, places)
        except DebubbleError:
            return False
        effort = min(stop.work.effort, 1.0)
        again = arrange(schedule, self._costs(places), self.memory, self.mode, effort, stop)
        if again is not None and again.makespan < arranged.makespan * (1 - TOLERANCE):
            moved = tuple(places[place] for place in again.microbatches)
            arranged = Arranged(again.makespan, moved)
        if not arranged.makespan < self.best.arranged.makespan * (1 - TOLERANCE):
            return False
        self.best = Found(schedule, name, arranged)
        return True

    def _anneal(self, stop: Stop) -> None:
        for turn in range(TURNS):
            (problem, places), seed = self._problem(), stop.work.seed + turn
            rounds = ROUNDS * min(stop.work.effort, 2.0)
            better = refine(
                problem, self.best.programs, stop, rounds, stop_at=self.bound, seed=seed
            )
            if not self._offer(problem, places, better, "annealing", stop) or self.done or stop():
                return

    def _prove(self, problems: Sequence[Problem], stop: Stop) -> list[float]:
        """Raise the bound by two ranks of every placement; the bound of each."""
        bounds = []
        for left, problem in zip(range(len(problems), 0, -1), problems, strict=True):
            bound, ranks = by_work(problem), telling_ranks(problem)
            makespan = self.best.arranged.makespan
            kept = np.count_nonzero(np.isin(problem.homes, ranks)) * len(problem.kinds)
            if bound < makespan * (1 - TOLERANCE) and kept * problem.microbatches <= MOST_ACTIONS:
                work = PART_WORK * stop.work.effort / len(problems)
                until = Stop(stop.left / left, stop)
                bound = narrow(problem, ranks, bound, makespan, work, until)
            bounds.append(bound)
        self.bound = max(self.bound, min(*bounds, self.best.arranged.makespan))
        return bounds

    def _solve(self, low: float, stop: Stop) -> float:
        """Solve all ranks; a time that no order with the best one's placement beats."""
        (problem, places), makespan = self._problem(), self.best.arranged.makespan

        def found(programs: list[Program]) -> None:
            self._offer(problem, places, programs, "exact solving", stop)

        work = WHOLE_WORK * stop.work.effort
        return narrow(problem, range(problem.ranks), low, makespan, work, stop, found)
