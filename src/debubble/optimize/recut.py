"""Search over cuts of layers: move single layers between stages, and search deep in the best cuts.

The order found for one cut is an order for every other cut of the same placement, and an order is
evaluated for other costs at once. So all moves of a layer are ranked by what they do to the best
order; for a few of them published schedules and the list scheduler are tried, too, and the best is
where the next layer moves from. Where there are few cuts every one has its bound, and those that
can be faster are all searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

import numpy as np

from debubble.engine.graph import compile_graph
from debubble.optimize.backward import relaxed
from debubble.optimize.bounds import lower_bound
from debubble.optimize.layers import Cut, Cutting, cut_problem
from debubble.optimize.portfolio import Pool, begin, search
from debubble.optimize.problem import TOLERANCE, Problem
from debubble.optimize.stop import Stop

CLIMBS = 2
"""Cuts from which layers are moved before any of them is searched deep."""

TRIED = 4
"""Moves that are tried, of all that are evaluated."""

MOVES = 256
"""Moves of a layer that are evaluated, about: with many stages, only between near ones."""

SHARES = (1.0, 0.5, 0.5)
"""Effort of the cuts that are searched deep, and their part of the time that is left."""

LEFT_SHARE = 0.1
"""The same for others, where there are few cuts."""


class Field(Protocol):
    """Pools of different cuts."""

    pools: list[Pool]
    stop: Stop

    @property
    def best(self) -> Pool:
        """The pool with the fastest order."""

    def add(self, problem: Problem) -> Pool:
        """A pool for another cut."""

    def prove(self, bound: float) -> None:
        """Raise the bound of all cuts that have no pool."""


def seeds(roots: Sequence[Problem]) -> list[Problem]:
    """The cuts to begin with, of every placement."""
    return [cut_problem(root, cut) for root in roots for cut in Cutting(root).seeds()]


def search_cuts(
    field: Field, roots: Sequence[Problem], effort: float, seed: int, workers: int
) -> None:
    """Fill a field with promising cuts, and search in the best of them.

    Parameters
    ----------
    field
        Has a pool for every cut to begin with.
    roots
        The uncut problems, one for every placement.
    effort, seed, workers
        As for :func:`debubble.optimize.portfolio.search`; the best cut gets all of the effort.
    """
    for pool in field.pools:
        if not (field.stop() and field.best.programs):
            begin(pool)
    for pool in sorted(field.pools, key=_makespan)[:CLIMBS]:
        _climb(field, roots, pool)
    few = _every_cut(field, roots)
    searched: list[Pool] = []
    shares = list(SHARES)
    while not field.stop():
        waiting = [
            pool
            for pool in field.pools
            if pool not in searched and pool.bound < field.best.makespan * (1 - TOLERANCE)
        ]
        if not waiting or not (shares or few):
            return
        share = shares.pop(0) if shares else LEFT_SHARE
        pool = min(waiting, key=_makespan)
        searched.append(pool)
        # Of the time all of it is left for the last.
        pool.stop = Stop(field.stop.left * (share / (share + sum(shares))), field.stop)
        search(pool, effort=effort * share, seed=seed, workers=workers)
        _climb(field, roots, pool)


def _makespan(pool: Pool) -> float:
    return pool.makespan


def _climb(field: Field, roots: Sequence[Problem], pool: Pool) -> None:
    """Move a layer as long as that is faster."""
    root = next(root for root in roots if root.placement.table == pool.problem.placement.table)
    while not field.stop():
        tried = []
        for problem in islice(_moved(field, root, pool), TRIED):
            other = field.add(problem)
            other.offer(pool.programs, pool.found_by)
            if other.bound < field.best.makespan * (1 - TOLERANCE):
                begin(other)
            tried.append(other)
        best = min(tried, key=_makespan, default=pool)
        if not best.makespan < pool.makespan * (1 - TOLERANCE):
            return
        pool = best


def _moved(field: Field, root: Problem, pool: Pool) -> Iterator[Problem]:
    """Cuts with one layer on another stage, by the makespan of the pool's order, if it fits."""
    problem = pool.problem
    known = {_name(other.problem) for other in field.pools}
    schedule = problem.schedule(pool.programs)
    graph = compile_graph(schedule, problem.mode)
    moved = [cut_problem(root, cut) for cut in neighbours(problem.cut)]
    moved = [other for other in moved if _name(other) not in known]
    if not moved:
        return
    spans = graph.makespans(np.array([graph.cost_vector(other.table) for other in moved]))
    for index in np.argsort(np.round(spans, 9), kind="stable").tolist():
        if moved[index].fits(schedule):
            yield moved[index]


def neighbours(cut: Cut) -> Iterator[Cut]:
    """Cuts with one layer of a stage on another one."""
    S = len(cut)
    reach = max(1, MOVES // (2 * S))
    for source in range(S):
        for target in range(max(0, source - reach), min(S, source + reach + 1)):
            if target != source and cut[source] > 1:
                other = list(cut)
                other[source] -= 1
                other[target] += 1
                yield tuple(other)


def _every_cut(field: Field, roots: Sequence[Problem]) -> bool:
    """Add every cut that can be faster, where there are few; whether there are."""
    all_cuts = [Cutting(root).few() for root in roots]
    if any(cuts is None for cuts in all_cuts):
        return False
    known = {_name(pool.problem) for pool in field.pools}
    proven = np.inf
    for root, cuts in zip(roots, all_cuts, strict=True):
        for problem in (cut_problem(root, cut) for cut in cuts or ()):
            if _name(problem) in known:
                continue
            if field.stop():
                return False
            bound = lower_bound(relaxed(problem))
            if bound < field.best.makespan * (1 - TOLERANCE):
                begin(field.add(problem))
            else:
                proven = min(proven, bound)
    field.prove(proven)
    return True


def _name(problem: Problem) -> tuple[object, ...]:
    return problem.placement.table, problem.cut
