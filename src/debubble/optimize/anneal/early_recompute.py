"""Recomputes further ahead than right before their backwards.

Other strategies take R and its backward for one action. An R that stands earlier, where its rank
waits anyway, no longer delays the gradient, but holds its memory from there on. So when the others
are done every R becomes an action of its own. First each moves into a wait that has room for it and
memory for what it brings back, in the best order so far and in published ones; then the fastest of
these is annealed, R and all.

The search begins with the results of the others, so that it can only improve them.
"""

from __future__ import annotations

from collections.abc import Sequence

from debubble.core.actions import Program
from debubble.core.errors import DebubbleError
from debubble.lowering.bubbles import into_waits
from debubble.optimize.anneal.annealer import refine
from debubble.optimize.anneal.strategies import LARGEST, SMALL_ROUNDS, is_small
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import separate
from debubble.optimize.stop import Stop

ROUNDS = 8
"""Rounds of annealing, but for small problems."""


def can_recompute_early(problem: Problem) -> bool:
    """Return whether R may run ahead; next to copies each stays right before its backward."""
    return problem.can_run_ahead and not problem.offload


def recompute_early(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Offer orders in which recomputes run well ahead of their backwards."""
    known = incumbent.known.get((problem.placement.table, problem.cut), ())
    orders = [(incumbent.found_by, incumbent.programs)]
    orders += [(name, separate(problem, programs)) for name, programs in known]
    for name, programs in orders:
        if incumbent.done or stop():
            return
        filled = in_waits(problem, programs)
        if filled:
            incumbent.offer(filled, f"{name}, recomputes ahead")
    if problem.size > LARGEST:
        return

    def found(better: list[Program]) -> None:
        incumbent.offer(better, "annealing, recomputes ahead")

    schedule = problem.schedule(incumbent.programs)
    start = [schedule.program(rank) for rank in range(problem.ranks)]
    effort = stop.work.effort
    rounds = SMALL_ROUNDS * min(effort, 2.0) if is_small(problem) else ROUNDS * effort
    refine(
        problem, start, stop, rounds,
        stop_at=incumbent.bound, seed=stop.work.seed, ahead=True, found=found,
    )  # fmt: skip


def in_waits(problem: Problem, programs: Sequence[Program]) -> list[Program]:
    """Return programs with recomputes moved into waits; empty where they cannot run or fit."""
    schedule = problem.schedule(programs)
    try:
        timeline = problem.timeline(schedule)
    except DebubbleError:
        return []
    if not problem.fits(schedule):
        return []
    found = into_waits(timeline, problem.limits_with_slack, problem.timeline).schedule
    return [found.program(rank) for rank in range(problem.ranks)]
