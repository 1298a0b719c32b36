"""The problems to choose from, and which of them are searched deep."""

from __future__ import annotations

import math
import threading

from debubble.optimize import cache as store
from debubble.optimize.layers import Cutting, cut_problem
from debubble.optimize.offload import Offload
from debubble.optimize.portfolio import Pool, Report, begin, search
from debubble.optimize.problem import TOLERANCE, Problem
from debubble.optimize.recut import search_cuts, seeds
from debubble.optimize.sets import Recompute, SetSearch, with_set
from debubble.optimize.stop import Stop

EARLIER = "an earlier search"
"""What found an order that is only where the search starts."""


class Field:
    """The problems to choose from, one for every placement and cut, and the best of all.

    Parameters
    ----------
    problems
        One for every placement, uncut where there are layers to cut.
    stop
        Ends all searches.
    report
        As in :func:`debubble.optimize`.
    choices
        Where what stages do with their activations is to be chosen, what may be.
    """

    def __init__(
        self,
        problems: list[Problem],
        stop: Stop,
        report: Report | None,
        choices: tuple[Recompute, Offload] | None = None,
    ) -> None:
        self.stop = stop
        self.pools: list[Pool] = []
        self._roots = [problem for problem in problems if problem.layers]
        self._proven = min((Cutting(root).bound() for root in self._roots), default=0.0)
        self._others = self._proven if self._roots else math.inf
        self._report = report
        self._told = (math.inf, 0.0)
        self._lock = threading.Lock()
        for problem in seeds(problems) if self._roots else problems:
            self.add(problem)
        self.sets = choices and SetSearch(self.pools, choices, self._pool, stop)

    def _pool(self, problem: Problem) -> Pool:
        return Pool(problem, Stop(parent=self.stop), self._tell)

    def add(self, problem: Problem) -> Pool:
        """A pool for one more problem."""
        pool = self._pool(problem)
        self.pools.append(pool)
        return pool

    @property
    def best(self) -> Pool:
        """The pool with the fastest order."""
        return min(self.pools, key=lambda pool: pool.makespan)

    @property
    def bound(self) -> float:
        """A bound for every problem."""
        if self.sets:
            lowest = self.sets.floor
        else:
            lowest = min(self._others, *(pool.bound for pool in self.pools))
        return min(max(lowest, self._proven), self.best.makespan)

    @property
    def done(self) -> bool:
        """Whether nothing can be better."""
        return self.best.makespan <= self.bound * (1 + TOLERANCE)

    def prove(self, bound: float) -> None:
        """Raise the bound of what has no pool."""
        self._others = max(self._others, bound)

    def take(self, known: store.Entry) -> None:
        """Begin with an earlier result."""
        for root in self._roots:
            if root.placement.table == known.table:
                self.add(cut_problem(root, known.cut))
        for pool in self.pools.copy():
            if (pool.problem.placement.table, pool.problem.cut) == (known.table, known.cut):
                if self.sets:
                    pool = self.sets.pool(with_set(pool.problem, known.chosen))
                earlier = f"{EARLIER} ({known.found_by.removeprefix(EARLIER).strip(' ()')})"
                pool.offer(known.programs, earlier)
        if known.current:
            self._proven = max(self._proven, known.bound)

    def search(self, effort: float, seed: int, workers: int) -> None:
        """Look at every problem, then into the most promising, and on while one is solved."""
        if self._roots:
            search_cuts(self, self._roots, effort, seed, workers)
            return
        if self.sets:
            self.sets.search(effort, seed, workers)
            return
        for pool in self.pools:
            if not (self.stop() and self.best.programs):
                begin(pool)
        waiting = sorted(self.pools, key=lambda pool: pool.makespan)
        while waiting and not self.stop():
            pool = waiting.pop(0)
            if pool.bound < self.best.makespan * (1 - TOLERANCE):
                search(pool, effort=effort, seed=seed, workers=workers)
            if not pool.done:
                break

    def _tell(self, found_by: str) -> None:
        if self._report is None:
            return
        with self._lock:
            now = (self.best.makespan, self.bound)
            if now != self._told:
                self._told = now
                self._report(*now, found_by)
