"""Refine an order: simulated annealing with exact, incremental evaluation.

A move takes two neighboring blocks of actions on one rank, of up to four actions each, and lets
them change places. It is only a candidate where the first action of the second block is on the
critical path and starts when its rank's previous action ends: no other move can help at once. Every
stage keeps the order of microbatches of equal length, which loses nothing (see
:mod:`debubble.optimize.bounds.paths`), and memory its limit, which only the actions between the two
ends of a move can break.

Where stages recompute, R and its backward are one action, or two: then R moves by itself, between
its own forward and its own backward.

All actions stand in one topological order. A move concerns the part of it from its first action to
its last: successors of the delayed block move after the rest, and if the other block is among them,
the move would be a deadlock. New ends within that part, together with the known longest paths
from every later action to the end, give the length of the longest path through the part; if that is
too long the move is refused without looking at anything else; most moves end so.
After a move that is accepted, times are propagated as far as they change.

Rounds of annealing at different temperatures follow each other, each from the best order so far: a
cold one first, for the improvements at hand, then hot ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.listing import TOLERANCE
from debubble.optimize.anneal._kernel import COUNTERS, anneal
from debubble.optimize.anneal._times import OrderState
from debubble.optimize.anneal.moves import ActionArrays, Cooling
from debubble.optimize.problem import Problem, without_recompute_time, without_recomputes
from debubble.optimize.programs.backward import fused_ones, separate, with_fused
from debubble.optimize.stop import Stop
from debubble.optimize.times import (
    backward_lags,
    link_times,
    microbatch_lengths,
    recompute_times,
    whole_times,
)

TEMPERATURES = ((0.06, 0.01), (0.5, 0.03), (1.0, 0.05), (0.2, 0.02))
"""Temperature at the beginning and end of a round, in mean times of an action."""

PIECES = 8
"""Calls of the kernel per round: between them it can stop and report."""

WORK_PER_ROUND = 400_000_000
"""Moves of a round times actions, so that a round takes about as long whatever the size."""

MOST_MOVES = 1_000_000
FEWEST_MOVES = 50_000
MOST_DOUBLINGS = 4
"""Most doublings of the length of rounds, which cannot be interrupted within a piece."""


def random_state(seed: int) -> int:
    """Return the first state of the random numbers of a seed; a float can have it."""
    return (seed + 1) * 7919 % (1 << 47)


class Annealer:
    """A schedule that is being annealed.

    Transfers take time and no link here, in every mode. Where backwards are free, those that are
    fused stay so. Places from and to in every rank's program may be `fixed`. If R may run `ahead`
    of its backward, the order has all of them.
    """

    def __init__(
        self,
        problem: Problem,
        programs: Sequence[Program],
        seed: int = 0,
        fixed: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
        ahead: bool = False,
    ) -> None:
        self.problem = problem
        self._fused = fused_ones(problem, programs) & (not problem.fused)
        programs = separate(problem, programs if ahead else without_recomputes(programs))
        self.best = problem.actions(programs)
        self.makespan = float("inf")
        self.mean = float(problem.times.mean()) or 1.0
        self.halt = np.zeros(1, dtype=np.int64)
        self._counters = np.zeros(COUNTERS)
        self._counters[3] = random_state(seed)
        self._actions = actions_of(problem, self._fused, ahead)
        if fixed is not None:
            begin, end = (self._actions.offsets[:-1] + places for places in fixed)
            self._actions = self._actions._replace(fixed_from=begin, fixed_to=end)

    def is_ready(self, stop: Stop) -> bool:
        """Return whether its kernel is compiled; False if the time for that is over."""
        if stop.left == float("inf"):
            return True
        order = self.best.copy()
        cooling, state = Cooling(1, 1.0, 1.0, 0.0, 1.0), empty_state(order)
        args = (cooling, self._actions, state, order, self._counters, self.halt)
        return anneal.wait_for(args, stop)

    def run(
        self, moves: int, hot: float, cold: float, stop_at: float, order: NDArray[np.int64]
    ) -> None:
        """Anneal `order` in place; temperatures in mean times of an action."""
        best, tiny = order.copy(), TOLERANCE * self.mean
        cooling = Cooling(moves, hot * self.mean, cold * self.mean, stop_at, tiny)
        anneal.compiled(cooling, self._actions, empty_state(order), best, self._counters, self.halt)
        if self._counters[1] < self.makespan:
            self.makespan = float(self._counters[1])
            self.best = best

    @property
    def programs(self) -> list[Program]:
        """The best order so far."""
        return with_fused(self.problem.programs(self.best), self._fused)


def refine(
    problem: Problem,
    programs: Sequence[Program],
    stop: Stop,
    rounds: float,
    *,
    stop_at: float = 0.0,
    seed: int = 0,
    fixed: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    ahead: bool = False,
    found: Callable[[list[Program]], None] | None = None,
) -> list[Program]:
    """Anneal an order round after round; most parameters are those of :class:`Annealer`.

    There may be infinitely many rounds, as many as the time allows. After every cycle of
    temperatures they become twice as long, up to a limit. The search ends when asked at once, by
    its time between the pieces of a round, and at the lower bound `stop_at`. `found` is called with
    every better order.
    """
    annealer = Annealer(problem, programs, seed, fixed, ahead)
    moves = int(np.clip(WORK_PER_ROUND // problem.size, FEWEST_MOVES, MOST_MOVES)) // PIECES
    count = 0
    rounds = rounds if annealer.is_ready(stop) else 0
    while count < rounds and not stop() and annealer.makespan > stop_at:
        hot, cold = TEMPERATURES[count % len(TEMPERATURES)]
        order = annealer.best.copy()
        step = (cold / hot) ** (1 / PIECES)
        for piece in range(PIECES):
            before = annealer.makespan
            longer = moves << min(count // len(TEMPERATURES), MOST_DOUBLINGS)
            with stop.ending(lambda: annealer.halt.fill(1)):
                annealer.run(longer, hot * step**piece, hot * step ** (piece + 1), stop_at, order)
            if found is not None and annealer.makespan < before:
                found(annealer.programs)
            if stop():
                break
        count += 1
    return annealer.programs


def empty_state(order: NDArray[np.int64]) -> OrderState:
    """Return the state of an order of which nothing else is known."""
    whole, times = np.zeros((5, len(order)), dtype=np.int64), np.zeros((4, len(order)))
    place, line, at, fresh, marked = whole
    before, head, tail, trial = times
    return OrderState(order, place, before, line, at, head, tail, fresh, trial, marked)


def actions_of(problem: Problem, fused: NDArray[np.bool_], ahead: bool = False) -> ActionArrays:
    """Return the actions of a problem, with no place that is fixed.

    If backwards are `fused`, I stands for B, and W, on a chain of its own, does nothing. Every R
    is an action of its own if it may run `ahead`; where it is in its rank's order, no path that it
    is on is longer by what it needs.
    """
    redo, lengths = recompute_times(problem), microbatch_lengths(problem)
    problem = without_recompute_time(problem) if ahead else problem
    kinds, S, m = len(problem.kinds), problem.stages, problem.microbatches
    number = np.arange(problem.size).reshape(kinds, S, m)
    needs, consumer, other = (np.full((kinds, S, m), -1) for _ in range(3))
    lag = np.zeros((kinds, S, m))
    lag[:2] = link_times(problem)[0], backward_lags(problem)
    for chain, input_of, _ in problem.arcs:
        if needs[*chain, 0] >= 0:
            # R needs its forward, which comes before the gradient anyway.
            continue
        needs[chain] = number[input_of]
        users = other if chain[0] == 2 else consumer
        users[input_of] = number[chain]
    grids = (needs, lag, consumer, other)
    times = whole_times(problem, fused)
    added, freed = (values[:, :, None] * lengths for values in (problem.taken, problem.freed))
    alike = np.unique(lengths, return_inverse=True)[1]
    chains = number // m * m + alike
    if fused.any():
        freed[1] += np.where(fused, freed[2], 0.0)
        freed[2, fused] = 0.0
        chains[2, fused] = 2 * problem.size + number[2, fused]
    ranks, mate = np.repeat(np.tile(problem.homes, kinds), m), np.full((kinds, S, m), -1)
    passes = (ranks, chains, times, *grids, mate, added, freed)
    if not ahead:
        return _with_ranks(problem, passes)
    again = np.flatnonzero(problem.recomputed)
    redone = problem.size + np.arange(len(again) * m).reshape(-1, m)
    mate[1, again] = redone
    back = problem.taken_by_recompute[again, None] * lengths
    added[1, again] -= back
    alone = (
        problem.homes[again, None], redone // m * m + alike, redo[again],
        number[0, again], 0.0, -1, -1, -1, back, 0.0,
    )  # fmt: skip
    both = zip(passes, alone, strict=True)
    appended = (
        np.append(one.ravel(), np.broadcast_to(np.asarray(other, one.dtype), redone.shape))
        for one, other in both
    )
    return _with_ranks(problem, appended)


def _with_ranks(problem: Problem, columns: Iterable[NDArray[Any]]) -> ActionArrays:
    """Return actions with the places and limits of their ranks."""
    rank, *others = (column.ravel() for column in columns)
    memory = problem.limits_with_slack
    offsets = np.cumsum(np.append(0, np.bincount(rank, minlength=problem.ranks)))
    none_fixed = offsets[1:]
    return ActionArrays._make([offsets, rank, *others, memory, none_fixed, none_fixed])
