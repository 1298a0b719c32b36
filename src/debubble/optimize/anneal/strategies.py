"""Strategies that anneal whole orders, from several first ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from debubble.core.actions import Program
from debubble.optimize.anneal.annealer import refine
from debubble.optimize.bounds.exact_rank import StateBudget
from debubble.optimize.bounds.relaxed_order import relaxed_order
from debubble.optimize.bounds.strategies import strongest
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed, separate
from debubble.optimize.stop import Stop

SMALL = 5_000
"""Pairs of actions whose order the exact solver decides, at most, to be used at once."""

LARGEST = 200_000
"""Actions up to which a whole order is annealed."""

SMALL_ROUNDS, ROUNDS, POLISH_ROUNDS = 4, 6, 2
"""Rounds of annealing without a time limit: before the exact solver, else, and at the end."""

RELAXED_TURNS, RELAXED_ROUNDS, RELAXED_STATES = 3, 4, 300_000
"""For the strongest rank's best order: number of starts, rounds of each, and states to examine
until that is found."""


def anneal(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Anneal the best order."""
    rounds = (
        SMALL_ROUNDS * min(stop.work.effort, 2.0)
        if is_small(problem)
        else stop.work.effort * ROUNDS
    )
    anneal_order(problem, incumbent.start, incumbent, stop, rounds)


def anneal_relaxed(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Anneal from an order that is best for the strongest rank alone."""
    easy = relaxed(problem)
    effort = stop.work.effort
    left = StateBudget(RELAXED_STATES * effort)
    order = relaxed_order(easy, strongest(easy)[0], incumbent.bound, left, stop)
    if order is not None:
        for turn in range(RELAXED_TURNS):
            anneal_order(problem, order, incumbent, stop, effort * RELAXED_ROUNDS, more=turn)


def anneal_again(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Anneal the best result of the strategies before."""
    if problem.can_run_ahead:
        # The other half is for recomputes that run ahead.
        stop = Stop(stop.left / 2, stop)
    rounds = stop.work.effort * POLISH_ROUNDS
    anneal_order(problem, incumbent.programs, incumbent, stop, rounds, more=1)


def anneal_order(
    problem: Problem, programs: Sequence[Program], incumbent: Incumbent, stop: Stop,
    rounds: float, more: int = 0,
) -> None:  # fmt: skip
    """Anneal an order round after round; the seed of the search is raised by `more`."""

    def found(better: list[Program]) -> None:
        incumbent.offer(better, "annealing")

    refine(
        problem, separate(problem, programs), stop, rounds,
        stop_at=incumbent.bound, seed=stop.work.seed + more, found=found,
    )  # fmt: skip


def count_pairs(problem: Problem) -> int:
    """Return the number of pairs of actions that the exact solver has to order."""
    chains = np.bincount(problem.homes, minlength=problem.ranks) * len(problem.kinds)
    return int((chains * (chains - 1) // 2).sum()) * problem.microbatches**2 // 2


def is_small(problem: Problem) -> bool:
    """Return whether the exact solver is used at once."""
    return count_pairs(problem) <= SMALL
