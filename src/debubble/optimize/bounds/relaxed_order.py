"""A schedule of all ranks by the fastest one of a single rank.

If one rank is modeled exactly (:mod:`debubble.optimize.bounds.exact_rank`), its fastest order gives
the starts of its actions, and from these the starts of the other ranks' actions if nothing delayed
them: as late as the next action of the exact rank allows, and after its last one as soon as
possible. Waiting in between is then before a microbatch goes on to other ranks, where it takes no
memory of theirs. Every rank runs its forwards and backwards by these times, each W where it fits
into a gap or frees memory that is needed, and puts off a forward for which there is no room.

Orders like this know nothing of the other ranks' work, and are slow as they are. They differ from
those that grow action by action, so that annealing comes from them to other places.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.optimize.bounds.exact_rank import StateBudget, relax_others, starts_before
from debubble.optimize.cp_sat.rounding import all_times, factor_for
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop

Times: TypeAlias = NDArray[np.float64]

SLACK = (1.001, 1.01, 1.05, 1.2)
"""Makespans within which an order of the exact rank is sought, over its bound."""


def relaxed_order(
    problem: Problem, rank: int, bound: float, left: StateBudget, stop: Stop
) -> list[Program] | None:
    """Return programs of all ranks by the fastest schedule of one; None where that has none.

    The problem has relaxed times, and a bound of about that of the rank.
    """
    factor = factor_for(all_times(problem), 2 * bound)
    kept = relax_others(problem, [rank], factor)
    for slack in SLACK:
        if stop() or left.spent:
            break
        starts = starts_before(kept, int(bound * factor * slack) + 1, left, stop)
        if starts is not None:
            programs = _programs(problem, _planned(problem, rank, starts / factor))
            return programs if problem.makespan(problem.schedule(programs)) < np.inf else None
    return None


def _planned(problem: Problem, rank: int, starts: Times) -> Times:
    """Return planned starts of every F and I or B, shape ``(2, stages, microbatches)``."""
    stages = range(problem.stages)
    way = [(0, s) for s in stages] + [(1, s) for s in reversed(stages)]
    lags = [*problem.forward_link, *problem.backward_lag[::-1]]
    kept = [number for number, (_, s) in enumerate(way) if problem.homes[s] == rank]
    plan = np.zeros((2, problem.stages, problem.microbatches))
    for row, number in enumerate(kept):
        kind, s = way[number]
        plan[kind, s] = starts[row] - kind * problem.recompute_time[s]
    for number in reversed(range(kept[-1])):
        if number not in kept:
            here = way[number]
            plan[here] = plan[way[number + 1]] - lags[number + 1] - problem.times[here]
    for number in range(kept[-1] + 1, len(way)):
        before = way[number - 1]
        plan[way[number]] = plan[before] + problem.times[before] + lags[number]
    return plan


def _programs(problem: Problem, plan: Times) -> list[Program]:
    """Return every rank's order by planned starts."""
    orders = [_by_plan(problem, rank, plan) for rank in range(problem.ranks)]
    return problem.programs(np.concatenate(orders))


def _by_plan(problem: Problem, rank: int, plan: Times) -> NDArray[np.int64]:
    """Return a rank's actions by planned starts, as far as memory allows it."""
    stages = np.flatnonzero(problem.homes == rank).tolist()
    m, room = problem.microbatches, float(problem.limits_with_slack[rank])
    taken, freed, times = problem.taken, problem.freed, problem.times
    waiting = sorted(
        (float(plan[kind, s, b]), kind, s, b) for kind in (0, 1) for s in stages for b in range(m)
    )
    ready: list[tuple[int, int]] = []
    order: list[int] = []
    now = -np.inf

    def run(kind: int, s: int, b: int) -> None:
        nonlocal now, room
        now += times[kind, s]
        room += freed[kind, s] - taken[kind, s]
        order.append((kind * problem.stages + s) * m + b)

    while waiting:
        number = 0
        while number < len(waiting):
            _, kind, s, _ = waiting[number]
            while taken[kind, s] > room and ready:
                run(2, *ready.pop(0))
            if taken[kind, s] <= room:
                break
            number += 1
        # Where nothing fits the order is of no use, but it is one.
        start, kind, s, b = waiting.pop(number if number < len(waiting) else 0)
        while ready and now + times[2, ready[0][0]] <= start:
            run(2, *ready.pop(0))
        now = max(now, start)
        run(kind, s, b)
        if kind and not problem.fused:
            ready.append((s, b))
    while ready:
        run(2, *ready.pop(0))
    return np.array(order, dtype=np.int64)
