"""Orders that repeat, annealed for their period.

A *cycle* is what every rank does again and again in the steady state: each action of `width`
consecutive microbatches once, and for how many repetitions to come. Its period is that of its
slowest circle of waiting: the time around it, divided by the repetitions that pass meanwhile. What
a rank holds only depends on its own order, so that memory is exact, and the number of actions does
not depend on that of all microbatches. An annealer exchanges blocks of actions as in
:mod:`debubble.optimize.anneal.annealer`, mostly on the slowest circle.

With its starts a cycle is a *pattern*, which unrolls to any number of microbatches: action k of
microbatch b starts at σ(k, b mod width) + ⌊b / width⌋ · period.

Where times are uneven and memory is short, cycles of several microbatches are faster than any of
one: what a rank holds on average is then a fraction, and nearer to its limit. A good start for one
of two or four microbatches is the best of half as many, twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.listing import TOLERANCE
from debubble.optimize.anneal.annealer import TEMPERATURES, actions_of, random_state
from debubble.optimize.anneal.moves import ActionArrays, Cooling
from debubble.optimize.periodic._critical_cycle import CycleState
from debubble.optimize.periodic._cycle_kernel import Best, anneal_cycle
from debubble.optimize.periodic.unroll import STEPS, Pattern, Places
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop

LEAST_TIME = 1e-4
"""Least time of an action, in mean times: what waits for itself has to show in its starts."""


@dataclass(frozen=True)
class Cycle:
    """An order that repeats.

    Parameters
    ----------
    width
        Microbatches per period.
    order
        Actions of all ranks, rank after rank; action ``(k · S + s) · width + j`` is the k-th kind
        of stage s and of the j-th microbatch of its period.
    ahead
        Of every action, by its number: in repetition q it is that of period q + ahead.
    period
        Time between two repetitions; infinite where the order is a deadlock.
    """

    width: int
    order: NDArray[np.int64]
    ahead: NDArray[np.int64]
    period: float

    @property
    def pace(self) -> float:
        """Time per microbatch."""
        return self.period / self.width


def as_cycle(
    problem: Problem, programs: Sequence[Program], places: Places, width: int,
    stop: Stop | None = None,
) -> Cycle:  # fmt: skip
    """Return a part of programs as a cycle, see :func:`.unroll.repeatable`.

    Its period is infinite where it has none, or was not computed before `stop`.
    """
    parts = [program[begin:end] for program, begin, end in zip(programs, *places, strict=True)]
    row, microbatch = np.divmod(problem.actions(parts), problem.microbatches)
    period, inner = np.divmod(microbatch, width)
    order = row * width + inner
    ahead = np.empty(len(order), dtype=np.int64)
    ahead[order] = period
    return _run(problem, Cycle(width, order, ahead, np.inf), stop=stop)[0]


def annealed(problem: Problem, cycle: Cycle, moves: int, stop: Stop, seed: int = 0) -> Cycle:
    """Return the fastest cycle after one round of annealing at every temperature."""
    for number, (hot, cold) in enumerate(TEMPERATURES):
        if stop():
            break
        found, _ = _run(problem, cycle, moves, hot, cold, seed + number, stop)
        cycle = min(cycle, found, key=lambda one: one.period)
    return cycle


def repeated(problem: Problem, cycle: Cycle, times: int) -> Cycle:
    """Return the same order with `times` as many microbatches per period."""
    width, n = cycle.width, len(cycle.order)
    rows, inner = np.divmod(cycle.order, width)
    group = np.arange(times)[:, None] + cycle.ahead[cycle.order]
    order = ((rows * times + group % times) * width + inner).ravel()
    ahead = np.empty(times * n, dtype=np.int64)
    ahead[order] = (group // times).ravel()
    by_rank = np.argsort(np.tile(problem.homes[rows % problem.stages], times), kind="stable")
    return Cycle(times * width, order[by_rank], ahead, times * cycle.period)


def pattern_of(problem: Problem, cycle: Cycle) -> Pattern:
    """Return the pattern of a cycle without deadlock."""
    cycle, starts = _run(problem, cycle)
    shape = (len(problem.kinds), problem.stages, cycle.width)
    whole = np.round(starts / cycle.period * STEPS).astype(np.int64) - cycle.ahead * STEPS
    whole = (whole - whole[0]).reshape(shape)
    first = np.array([np.argmax(problem.homes == rank) for rank in problem.homes])
    return Pattern(cycle.width, whole, (whole - whole[0, first, 0][:, None]) // STEPS)


def _run(
    problem: Problem, cycle: Cycle, moves: int = 0, hot: float = 1.0, cold: float = 1.0,
    seed: int = 0, stop: Stop | None = None,
) -> tuple[Cycle, NDArray[np.float64]]:  # fmt: skip
    """Return the fastest cycle of one round, and the starts of the last in repetition 0.

    That is the cycle as it is, and no starts, where the kernel is not compiled before `stop`.
    """
    stop, mean = stop or Stop(), float(problem.times.mean()) or 1.0
    best = Best(cycle.order.copy(), cycle.ahead.copy())
    place, by_input, critical, mark, stack, queue, queued, block = np.zeros(
        (8, len(cycle.order)), np.int64
    )
    start, trial, ratio = np.zeros((3, len(cycle.order)))
    state = CycleState(
        cycle.order.copy(), cycle.ahead.copy(), place, start, by_input, critical, mark, stack,
        queue, queued, block, trial, ratio,
    )  # fmt: skip
    counters, halt = np.array([0.0, random_state(seed)]), np.zeros(1, dtype=np.int64)
    cooling = Cooling(moves, hot * mean, cold * mean, 0.0, TOLERANCE * mean)
    args = cooling, _actions(problem, cycle.width), state, best, counters, halt
    if stop.left < float("inf") and not anneal_cycle.wait_for(args, stop):
        return cycle, start
    with stop.ending(lambda: halt.fill(1)):
        anneal_cycle.compiled(*args)
    return replace(cycle, **best._asdict(), period=float(counters[0])), start


def _actions(problem: Problem, width: int) -> ActionArrays:
    """Return the actions of one period, with lags from start to start."""
    one = problem.shortened(width)
    actions = actions_of(one, np.zeros((one.stages, width), dtype=bool))
    mean = float(problem.times.mean()) or 1.0
    duration = np.maximum(actions.duration, LEAST_TIME * mean)
    waits = actions.pred >= 0
    lag = np.where(waits, duration[actions.pred] + actions.lag, 0.0)
    return actions._replace(duration=duration, lag=lag)
