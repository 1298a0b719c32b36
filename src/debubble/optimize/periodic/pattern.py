"""Repeating patterns: the steady state of many microbatches, found on a few.

A pattern gives the starts of the actions of `width` consecutive microbatches, and repeats after a
`period`: action k of microbatch b starts at σ(k, b mod width) + ⌊b / width⌋ · period. This is
modulo scheduling, or software pipelining. On its rank an action has a *phase* within the period,
counted from the rank's first forward, and a *lap*, the number of whole periods since:

    σ = base(rank) + period · lap + phase.

Phases of one rank must not overlap. How many activations a rank holds when a forward starts follows
from laps, and from which phases come before it. The size of the program does not depend on the
number of microbatches. Periods are tried from the smallest that the busiest rank allows; for one
that works the patterns with the shortest way of a microbatch through all stages and back are
sought, because that is what filling and draining cost.

Times are rounded to a grid: a pattern is only used for its order, which is simulated with the true
times afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.optimize.cp_sat.from_start_times import programs_by_start
from debubble.optimize.cp_sat.model import Key
from debubble.optimize.cp_sat.rounding import FRACTIONS, all_times, factor_for
from debubble.optimize.cp_sat.solver import run_solver
from debubble.optimize.problem import NO_MEMORY, Problem
from debubble.optimize.stop import Stop

GRID = 240
"""Steps of the busiest rank's work for one microbatch, where times have no common divisor."""

LOOSEST = 1.3
"""Period that is tried after the smallest, relative to it; between the two it is bisected."""

RESOLUTION = 128
"""Parts of the smallest period: the resolution of the search for the period."""


@dataclass(frozen=True)
class Pattern:
    """A repeating order.

    Parameters
    ----------
    period
        Time after which it repeats, in grid steps.
    width
        Microbatches per period.
    starts
        Start of every action of the first `width` microbatches in grid steps, shape
        ``(kinds, stages, width)``.
    laps
        Period in which an action runs, counted from the rank's first forward; the same shape.
    step
        True time of one grid step.
    tight
        True if the busiest rank never waits, so that no pattern is faster.
    """

    period: int
    width: int
    starts: NDArray[np.int64]
    laps: NDArray[np.int64]
    step: float
    tight: bool

    @property
    def depth(self) -> int:
        """Whole periods between a microbatch's first and last action on any rank."""
        return int(self.laps.max())

    def unroll(self, problem: Problem) -> list[Program]:
        """Return the order for all microbatches, repeated as it is."""
        lap, inner = np.divmod(np.arange(problem.microbatches), self.width)
        starts = self.starts[:, :, inner] + self.period * lap
        times = np.repeat(problem.times.ravel(), problem.microbatches)
        return programs_by_start(problem, starts.ravel(), times)


class PatternModel:
    """The search for a pattern with a given period, as a constraint program.

    Parameters
    ----------
    grid
        The problem with times in grid steps.
    width, period
        As in :class:`Pattern`.
    depth
        Most periods between the actions of a microbatch on one rank.
    """

    def __init__(self, grid: Problem, width: int, period: int, depth: int) -> None:
        from ortools.sat.python import cp_model

        self.grid, self.width, self.period, self.depth = grid, width, period, depth
        self.model = cp_model.CpModel()
        self.solver = cp_model.CpSolver()
        self.lap: dict[Key, Any] = {}
        self.phase: dict[Key, Any] = {}
        self.base = [self.model.new_int_var(0, period * (depth + 1), "") for _ in range(grid.ranks)]
        self.model.add(self.base[grid.homes[0]] == 0)
        for rank in range(grid.ranks):
            stages = np.flatnonzero(grid.homes == rank).tolist()
            if stages:
                self._add_rank(stages)
                self._add_memory(rank, stages)
        self._add_data()
        self.last = self._end((1, 0, width - 1))

    def _time(self, key: Key) -> int:
        return int(self.grid.times[key[:2]])

    def _start(self, key: Key) -> Any:
        rank = self.grid.homes[key[1]]
        return self.base[rank] + self.period * self.lap[key] + self.phase[key]

    def _end(self, key: Key) -> Any:
        return self._start(key) + self._time(key)

    def _add_rank(self, stages: list[int]) -> None:
        """Add laps and phases; the cycle is cut where the rank's first forward starts."""
        intervals = []
        kinds = range(len(self.grid.kinds))
        for key in product(kinds, stages, range(self.width)):
            first = key == (0, stages[0], 0)
            latest = 0 if first else self.period - self._time(key)
            self.lap[key] = self.model.new_int_var(0, 0 if first else self.depth, "")
            self.phase[key] = self.model.new_int_var(0, latest, "")
            intervals.append(
                self.model.new_fixed_size_interval_var(self.phase[key], self._time(key), "")
            )
        self.model.add_no_overlap(intervals)

    def _add_data(self) -> None:
        """Start actions when their input is there, and keep chains in microbatch order."""
        grid, add = self.grid, self.model.add
        for (chain, other, lag), j in product(grid.arcs, range(self.width)):
            add(self._start((*chain, j)) >= self._end((*other, j)) + int(lag))
        for kind, s, j in product(range(len(grid.kinds)), range(grid.stages), range(self.width)):
            start = self._start((kind, s, j))
            if j:
                add(start >= self._end((kind, s, j - 1)))
            elif self.width > 1:
                add(start + self.period >= self._end((kind, s, self.width - 1)))

    def _add_memory(self, rank: int, stages: list[int]) -> None:
        """Limit memory whenever some is taken: the sum of earlier starts, less freed memory."""
        grid = self.grid
        if not np.isfinite(grid.limits[rank]):
            return
        activation = grid.taken.sum(axis=0)
        unit = activation[stages].max() / FRACTIONS
        if unit == 0:
            return
        items = list(product(stages, range(self.width)))
        # What F takes is what is freed later, less what the backward takes in between.
        later = np.round((grid.freed - grid.taken)[1:] / unit).astype(np.int64)
        taken = np.round(grid.taken / unit).astype(np.int64)
        for acting, (stage, j) in product(range(len(grid.kinds)), items):
            if not taken[acting, stage]:
                continue
            me = (acting, stage, j)
            held: list[Any] = [] if acting == 0 else [int(taken[acting, stage])]
            for other, i in items:
                forward = (0, other, i)
                begun = 1 if forward == me else self._before(forward, me)
                for kind, amount in enumerate(later[:, other].tolist(), start=1):
                    if amount:
                        key = (kind, other, i)
                        laps = self.lap[key] - self.lap[forward]
                        done = 0 if key == me else self._before(key, me)
                        held.append(amount * (laps + begun - done))
            self.model.add(sum(held) <= math.floor(grid.limits_with_slack[rank] / unit + 1e-3))

    def _before(self, key: Key, other: Key) -> Any:
        """Return whether an action's phase comes before another's, as a literal."""
        first = self.model.new_bool_var("")
        gap, gap_back = self._time(key), self._time(other)
        self.model.add(self.phase[key] + gap <= self.phase[other]).only_enforce_if(first)
        self.model.add(self.phase[other] + gap_back <= self.phase[key]).only_enforce_if(~first)
        return first

    def solve(self, work: float, seconds: float, seed: int, known: Pattern | None = None) -> Any:
        """Return a pattern; False if there is none, None if the time was too short.

        Parameters
        ----------
        work, seconds
            Limits in the solver's own unit of work, about a second, and in seconds.
        seed
            Seed of the solver.
        known
            A pattern with this period: look for one that fills and drains sooner.
        """
        from ortools.sat.python import cp_model

        if known is None:
            self.solver.parameters.stop_after_first_solution = True
        else:
            self.model.minimize(self.last)
            bases = known.starts - known.laps * self.period
            for key in self.lap:
                rank = self.grid.homes[key[1]]
                first = np.flatnonzero(self.grid.homes == rank)[0]
                self.model.add_hint(self.lap[key], int(known.laps[key]))
                self.model.add_hint(self.phase[key], int(bases[key] - known.starts[0, first, 0]))
        # The second worker looks for any solution, and usually is the one that finds it.
        status = run_solver(self.solver, self.model, work, seconds, 2, seed)
        if status == cp_model.INFEASIBLE:
            return False
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        shape = (len(self.grid.kinds), self.grid.stages, self.width)
        starts, laps = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for key in self.lap:
            starts[key] = self.solver.value(self._start(key))
            laps[key] = self.solver.value(self.lap[key])
        return starts, laps


def find_pattern(
    problem: Problem, width: int, stop: Stop, effort: float, seed: int = 0
) -> Pattern | None:
    """Return the pattern with the smallest period that is found within the effort.

    Parameters
    ----------
    problem
        Stages, times and limits; its number of microbatches does not matter.
    width
        Microbatches per period.
    stop
        Ends the search early.
    effort
        Solver work per period tried, about seconds.
    seed
        Seed of the solver.

    Returns
    -------
    Pattern or None
        None when none was found.
    """
    grid, step = on_grid(problem, width)
    smallest = round(grid.work.max() * width)
    if smallest == 0:
        return None
    longest = grid.times.sum() + grid.forward_link.sum() + grid.backward_link.sum()
    depth = math.ceil(longest / smallest) + 2
    tight = grid.limits_with_slack / np.maximum(grid.microbatch_memory, np.finfo(float).tiny)
    if np.isfinite(tight).all():
        # No rank holds more microbatches than fit when only its smallest stage holds any.
        least = np.full(grid.ranks, np.inf)
        np.minimum.at(least, grid.homes, np.maximum(grid.taken[0], NO_MEMORY))
        depth = min(depth, math.ceil((grid.limits_with_slack / least).max() / width) + 1)

    def attempt(period: int, known: Pattern | None = None) -> Pattern | None:
        if stop():
            return None
        model = PatternModel(grid, width, period, depth)
        with stop.ending(model.solver.stop_search):
            found = model.solve(effort, stop.left, seed, known)
        if not found:
            return None
        starts, laps = found
        return Pattern(period, width, starts, laps, step, period == smallest)

    best = attempt(smallest)
    if best is None:
        too_small, period = smallest, round(LOOSEST * smallest)
        while best is None and not stop() and period < 4 * smallest:
            best = attempt(period)
            too_small, period = (period, 2 * period) if best is None else (too_small, period)
        while best is not None and best.period - too_small > max(1, smallest // RESOLUTION):
            middle = (best.period + too_small) // 2
            found = attempt(middle)
            if stop():
                break
            best, too_small = (best, middle) if found is None else (found, too_small)
    return (best and attempt(best.period, best)) or best


def on_grid(problem: Problem, width: int) -> tuple[Problem, float]:
    """Return the problem with times in whole grid steps, and the time of a step."""
    times = all_times(problem)
    work = problem.work.max()
    factor = factor_for(times, work)
    if factor * work * width > 2 * GRID:
        factor = GRID / (work * width) if work else 1.0
    table = problem.table
    changed = {name: np.round(getattr(table, name) * factor) for name in ("duration", "link")}
    return replace(problem, table=replace(table, **changed)), 1 / factor
