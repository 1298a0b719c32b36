"""Search over cuts of layers: move single layers between stages, and search deep in the best cuts.

The order found for one cut is an order for every other cut of the same placement, and an order is
evaluated for other costs at once. So all moves of a layer are ranked by what they do to the best
order, and by their bounds; for the first of both, published schedules and the list scheduler are
tried. The next layer moves from the best cut that none was moved from so far. Where there are few
cuts every one has its bound, and those that can be faster are all searched.
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

TRIED = 4
"""Moves that are tried of all that are evaluated: the best under the order, and the best bounds."""

PATIENCE = 4
"""Cuts without a better neighbour after which no more are tried."""

EXPLORING_SHARE = 0.3
"""Share of the time that is left for trying moves, each time."""

MOVES = 256
"""Moves of a layer that are evaluated, about: with many stages, only between near ones."""

SHARES = (1.0, 0.5, 0.5)
"""Effort of the cuts that are searched deep, and their part of the time that is left."""

LEFT_SHARE = 0.1
"""The same for others, where there are few cuts or there is a time limit."""

ROUNDS = 8
"""How often a cut is searched deep, or more are tried where none is left, at most."""


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
    _explore(field, roots, effort)
    endless = _every_cut(field, roots) or effort == np.inf
    searched: list[Pool] = []
    shares, rounds = list(SHARES), 0
    while not field.stop() and (endless or (shares and rounds < ROUNDS)):
        rounds += 1
        waiting = [
            pool
            for pool in field.pools
            if pool not in searched and pool.bound < field.best.makespan * (1 - TOLERANCE)
        ]
        if not waiting:
            known = len(field.pools)
            _explore(field, roots, effort)
            if len(field.pools) == known:
                return
            continue
        share = shares[0] if shares else LEFT_SHARE
        pool = min(waiting, key=_makespan)
        searched.append(pool)
        others = max(sum(shares), share) if endless else sum(shares) - share
        pool.stop = Stop(field.stop.left * share / (share + others), field.stop)
        search(pool, effort=effort * share, seed=seed, workers=workers)
        _explore(field, roots, effort * share)
        # A cut that was solved took less.
        if shares and not pool.done:
            del shares[0]


def _makespan(pool: Pool) -> float:
    return pool.makespan


def _explore(field: Field, roots: Sequence[Problem], effort: float) -> None:
    """Move a layer in the best cut that was not tried so far, until that often gains nothing."""
    stop = Stop(field.stop.left * EXPLORING_SHARE, field.stop)
    left = patience = max(1, round(PATIENCE * min(effort, 1.0)))
    tried: list[Pool] = []
    while left and not stop():
        waiting = [pool for pool in field.pools if pool not in tried and pool.programs]
        if not waiting:
            return
        pool, before = min(waiting, key=_makespan), field.best.makespan
        tried.append(pool)
        root = next(root for root in roots if root.placement.table == pool.problem.placement.table)
        for problem in _moved(field, root, pool):
            if stop():
                return
            other = field.add(problem)
            other.offer(pool.programs, pool.found_by)
            if other.bound < field.best.makespan * (1 - TOLERANCE):
                begin(other)
        left = patience if field.best.makespan < before * (1 - TOLERANCE) else left - 1


def _moved(field: Field, root: Problem, pool: Pool) -> list[Problem]:
    """Cuts with one layer on another stage: first by the pool's order, and first by their bound."""
    problem, cutting = pool.problem, Cutting(root)
    known = {_name(other.problem) for other in field.pools}
    schedule = problem.schedule(pool.programs)
    graph = compile_graph(schedule, problem.mode)
    cuts = [cut for cut in neighbours(problem.cut) if cutting.fits_cut(cut)]
    moved = [cut_problem(root, cut) for cut in cuts]
    moved = [other for other in moved if _name(other) not in known]
    if not moved:
        return []
    spans = graph.makespans(np.array([graph.cost_vector(other.table) for other in moved]))
    bounds = np.array([lower_bound(relaxed(other)) for other in moved])
    same = np.round(np.stack([spans, bounds]) / (spans.max() or 1.0), 9)
    by_order = (i for i in np.lexsort(same[::-1]) if moved[i].fits(schedule))
    by_bound = np.lexsort(same)[:TRIED].tolist()
    chosen = dict.fromkeys([*islice(by_order, TRIED), *by_bound])
    return [moved[i] for i in chosen if bounds[i] < field.best.makespan * (1 - TOLERANCE)]


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
