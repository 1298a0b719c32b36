"""The whole problem as a constraint program for OR-Tools CP-SAT.

Times are multiplied by a factor and rounded **down** to whole numbers, so that the solver's bound,
divided by the factor, is a bound for the true times; where times are fractions with a common small
denominator nothing is lost. Memory is rounded in favor of fitting, for the same reason. An order
that comes back is simulated with the true times and measured against the true limits.

Where a fused backward is faster than its parts and both are allowed, every backward may be either:
fused, its I takes the time of B, and its W none, right after. The W of those that are split keep
microbatch order among themselves; that of a fused one may come before an older one.

Where stages recompute, every R is an action of its own that may run well ahead of its backward, and
takes its memory at its start; where it takes no time, or has to wait for the gradient, both are one
action.

Of transfers it knows their times, and the longest paths in their mode. Which cannot run at the same
time as others or as actions is left open, so that except in the mode ``"overlapped"`` the solver's
bound can be too low; with those constraints no problem that was measured had a better one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.core.kinds import KINDS, Kind, Of
from debubble.engine.timeline import Timeline
from debubble.optimize.bounds.paths import (
    last_stages,
    longest_paths,
    memory_lag,
    spare_microbatches,
)
from debubble.optimize.cp_sat.from_start_times import programs_by_start, starts_by_number
from debubble.optimize.cp_sat.rounding import (
    FRACTIONS,
    MEMORY_UNITS,
    all_times,
    factor_for,
    fused_times,
    round_times,
    units_apart,
    whole_units,
)
from debubble.optimize.cp_sat.solver import SolverModel
from debubble.optimize.problem import Problem, without_recompute_time, without_recomputes
from debubble.optimize.programs.backward import fusable, fused_ones, relaxed, with_fused

Key: TypeAlias = tuple[int, int, int]
"""An action: the number of its kind, its stage and microbatch."""

WEIGHT, AGAIN = 2, 3
"""The numbers of W among kinds, and of R, where it is an action of its own."""


@dataclass(frozen=True)
class Solution:
    """Result of the solver: an order unless it found none, and its bound."""

    programs: list[Program] | None
    bound: float
    proven: bool
    """True if the order is optimal for the rounded times."""


class ExactModel(SolverModel):
    """Variables, constraints and objective of a problem; :meth:`solve` runs the solver.

    The makespan of a `known` order that fits is the horizon, and the solver starts from it.
    """

    def __init__(self, problem: Problem, known: Sequence[Program], bound: float = 0.0) -> None:
        super().__init__()
        apart = problem.can_run_ahead
        known = known if apart else without_recomputes(known)
        order = problem.schedule(known)
        self.known = problem.timeline(order).makespan
        self.factor = factor_for(all_times(problem), self.known)
        self.whole = round_times(problem, self.factor)
        self.again: list[int] = np.flatnonzero(problem.recomputed).tolist() if apart else []
        self.problem = without_recompute_time(self.whole) if self.again else self.whole
        timeline = self.whole.timeline(order)
        self.horizon = round(timeline.makespan)
        self.fusable = fusable(problem)
        self.together = fused_times(self.problem)
        self.start = self._starts()
        self.fused = {
            (int(stage), b): self.model.new_bool_var("")
            for stage in np.flatnonzero(self.fusable)
            for b in range(problem.microbatches)
        }
        self._literals: dict[tuple[Key, Key], Any] = {}
        self._add_ranks()
        self._add_data()
        self._add_memory()
        self._minimize(bound)
        self._add_hints(known, timeline)

    def _starts(self) -> dict[Key, Any]:
        """Return a start for every action, between its head and its tail."""
        least = relaxed(self.whole)
        heads, tails, *_ = longest_paths(least)
        redo = least.recompute_time[:, None]
        latest = self.horizon - tails - least.pass_times[:, :, None]
        # From here on the first and last start of R, or of R with its backward.
        first, last = heads[0] + least.pass_times[0, :, None], latest[1] - redo
        if self.fusable.any():
            # These W may come before older ones: only their own I is sure to come first.
            heads[2, self.fusable] = (heads[1] + least.pass_times[1, :, None])[self.fusable]
            latest[2, self.fusable] = self.horizon
        if not self.again:
            heads[1], latest[1] = heads[1] - redo, last
        start = {}
        for place in np.ndindex(heads.shape):
            low, high = int(heads[place]), int(latest[place])
            start[place] = self.model.new_int_var(low, high, "")
        for s, b in product(self.again, range(self.problem.microbatches)):
            low, high = int(first[s, b]), int(last[s, b])
            start[AGAIN, s, b] = self.model.new_int_var(low, high, "")
        return start

    def _end(self, kind: int, stage: int, microbatch: int) -> Any:
        return self.start[kind, stage, microbatch] + self._time(kind, stage, microbatch)

    def _time(self, kind: int, stage: int, microbatch: int) -> Any:
        """Return the duration of an action; a term of the model where that depends on fusing."""
        if kind == AGAIN:
            return int(self.whole.recompute_time[stage])
        time, fused = int(self.problem.times[kind, stage]), self.fused.get((stage, microbatch))
        if fused is None or kind == 0:
            return time
        return time + fused * ((int(self.together[stage]) if kind == 1 else 0) - time)

    def _interval(self, kind: int, stage: int, microbatch: int) -> Any:
        """Return the time in which an action runs."""
        start, time = self.start[kind, stage, microbatch], self._time(kind, stage, microbatch)
        fused = self.fused.get((stage, microbatch))
        if fused is None or kind in (0, AGAIN):
            return self.model.new_fixed_size_interval_var(start, time, "")
        if kind == 2:
            whole = int(self.problem.times[kind, stage])
            return self.model.new_optional_fixed_size_interval_var(start, whole, ~fused, "")
        end = self.model.new_int_var(0, self.horizon, "")
        return self.model.new_interval_var(start, time, end, "")

    def _add_ranks(self) -> None:
        """Let ranks run one action at a time, chains in order; add a literal for every pair."""
        add, m = self.model.add, self.problem.microbatches
        kinds = len(self.problem.kinds)
        for rank in range(self.problem.ranks):
            stages = np.flatnonzero(self.problem.homes == rank).tolist()
            chains = [(kind, stage) for stage in stages for kind in range(kinds)]
            chains += [(AGAIN, stage) for stage in stages if stage in self.again]
            intervals: list[Any] = []
            for kind, stage in chains:
                intervals += [self._interval(kind, stage, b) for b in range(m)]
            self.model.add_no_overlap(intervals)
            for chain in chains:
                if self._keeps_order(*chain):
                    for b in range(1, m):
                        add(self.start[*chain, b] >= self._end(*chain, b - 1))
                    continue
                for b, c in combinations(range(m), 2):
                    split = [~self.fused[chain[1], b], ~self.fused[chain[1], c]]
                    after = self.start[*chain, c] >= self._end(*chain, b)
                    add(after).only_enforce_if(split)
            for one, other in combinations(chains, 2):
                self._add_pair(one, other)

    def _keeps_order(self, kind: int, stage: int) -> bool:
        """Return whether a chain runs in microbatch order for any fused backwards."""
        return kind != 2 or not self.fusable[stage]

    def _add_pair(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        """Add literals for the order of all pairs of actions of two chains on a rank."""
        m = self.problem.microbatches
        for b, c in product(range(m), range(m)):
            x, y = (*one, b), (*other, c)
            first: Any
            if b <= c and follows(one, other):
                first = 1
            elif c <= b and follows(other, one):
                first = 0
            else:
                first = self.model.new_bool_var("")
                self.model.add(self.start[y] >= self._end(*x)).only_enforce_if(first)
                self.model.add(self.start[x] >= self._end(*y)).only_enforce_if(~first)
            self._literals[x, y] = first
        # What comes before one action comes before later ones of its chain.
        ordered = (self._keeps_order(*other), self._keeps_order(*one))
        for b, c in product(range(m), range(m)):
            first = self._literals[(*one, b), (*other, c)]
            pairs = (((*one, b), (*other, c + 1)), ((*one, b - 1), (*other, c)))
            for pair, keeps in zip(pairs, ordered, strict=True):
                later = self._literals.get(pair) if keeps else None
                if later is not None and not isinstance(first, int) and not isinstance(later, int):
                    self.model.add_implication(first, later)

    def _before(self, x: Key, y: Key) -> Any:
        """Return whether an action runs before another one of its rank: a literal, or 0 or 1."""
        if x[:2] == y[:2]:
            return int(x[2] < y[2])
        known = self._literals.get((x, y))
        return 1 - self._literals[y, x] if known is None else known

    def _add_data(self) -> None:
        """Start actions when their input is there, and forwards when older activations left."""
        problem = self.problem
        m, add = problem.microbatches, self.model.add
        for (chain, other, delay), b in product(problem.arcs, range(m)):
            add(self.start[*chain, b] >= self._end(*other, b) + round(delay))
        for (stage, b), fused in self.fused.items():
            add(self.start[2, stage, b] == self._end(1, stage, b)).only_enforce_if(fused)
        for stage, b, (kind, maker) in product(self.again, range(m), around_recomputes(problem)):
            add(self.start[kind, stage, b] >= self._end(maker, stage, b))
        spare, last, lag = spare_microbatches(problem), last_stages(problem), memory_lag(problem)
        # A fused backward frees at its end.
        lag[problem.homes[self.fusable]] = 0.0
        for stage in range(problem.stages):
            for older in range(m - int(spare[stage]) - 1):
                freed = self._end(1, int(last[stage]), older) + round(lag[problem.homes[stage]])
                add(self.start[0, stage, older + int(spare[stage]) + 1] >= freed)

    def _add_memory(self) -> None:
        """Limit the memory held at the start of every action that takes some."""
        problem, m = self.problem, self.problem.microbatches
        kinds = [*range(len(problem.kinds)), *([AGAIN] if self.again else [])]
        activation = problem.table.activation
        for rank in range(problem.ranks):
            stages = np.flatnonzero(problem.homes == rank).tolist()
            limit = problem.limits_with_slack[rank]
            if limit >= problem.microbatch_memory[rank] * m:
                continue
            unit = limit / MEMORY_UNITS
            if np.ptp(activation[stages]) <= 1e-12 * activation[stages[0]]:
                unit = activation[stages[0]] / FRACTIONS
            taken, changes = (units_apart if self.again else whole_units)(problem, unit)
            for kind, stage, b in product(kinds, stages, range(m)):
                if not taken[kind, stage]:
                    continue
                me = (kind, stage, b)
                held = [int(taken[kind, stage])]
                for other, c, acting in product(stages, range(m), kinds):
                    amount = int(changes[acting, other])
                    if amount and (acting, other, c) != me:
                        held.append(amount * self._before((acting, other, c), me))
                self.model.add(sum(held) <= math.floor(limit / unit + 1e-3))

    def _minimize(self, bound: float) -> None:
        low = min(math.floor(bound * self.factor * (1 - 1e-12)), self.horizon)
        makespan = self.model.new_int_var(max(low - self.problem.size, 0), self.horizon, "")
        self.model.add_hint(makespan, self.horizon)
        m = self.problem.microbatches
        for kind in range(1, len(self.problem.kinds)):
            for stage in range(self.problem.stages):
                last = m - 1 if self._keeps_order(kind, stage) else 0
                for b in range(last, m):
                    self.model.add(makespan >= self._end(kind, stage, b))
        self.model.minimize(makespan)

    def _add_hints(self, known: Sequence[Program], timeline: Timeline) -> None:
        """Add the known schedule as values of all starts and literals."""
        fused = fused_ones(self.problem, known)
        grid = starts_by_number(self.whole, known, timeline, bool(self.again))
        times = self._times(fused)
        at = dict(zip(self.start, grid.tolist(), strict=True))
        end = dict(zip(self.start, (grid + times).tolist(), strict=True))
        for key, start in self.start.items():
            self.model.add_hint(start, int(at[key]))
        for place, literal in self.fused.items():
            self.model.add_hint(literal, bool(fused[place]))
        for (x, y), first in self._literals.items():
            if not isinstance(first, int):
                self.model.add_hint(first, bool(end[x] <= at[y]))

    def _times(self, fused: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return durations of all actions where some backwards are fused, by their numbers."""
        m = self.problem.microbatches
        times = np.repeat(self.problem.times[:, :, None], m, axis=2)
        if fused.any() and not self.problem.fused:
            times[1] = np.where(fused, self.together[:, None], times[1])
            times[2, fused] = 0.0
        return np.append(times, np.repeat(self.whole.recompute_time[self.again], m))

    def solve(self, work: float, seconds: float, workers: int, seed: int) -> Solution:
        """Run the solver, within the limits of :meth:`run`."""
        parameters = self.solver.parameters
        # Order decides everything here: no linear relaxation helps, and probing costs more than it
        # saves.
        parameters.linearization_level = 0
        parameters.cp_model_probing_level = 0
        parameters.max_presolve_iterations = 1
        found = self.run(work, seconds, workers, seed)
        bound = self.solver.best_objective_bound
        if not found:
            return Solution(None, bound / self.factor, False)
        starts = np.array([self.solver.value(x) for x in self.start.values()])
        fused = np.zeros((self.problem.stages, self.problem.microbatches), dtype=bool)
        for place, literal in self.fused.items():
            fused[place] = self.solver.boolean_value(literal)
        programs = with_fused(programs_by_start(self.problem, starts, self._times(fused)), fused)
        return Solution(programs, bound / self.factor, bound >= self.solver.objective_value)


def around_recomputes(problem: Problem) -> list[tuple[int, int]]:
    """Return the pairs of kinds around a stage's R that wait for each other, by the table.

    Kinds are numbered as in the problem, R is :data:`AGAIN`.
    """
    numbers = {kind: number for number, kind in enumerate(problem.kinds)} | {Kind.R: AGAIN}
    return [
        (numbers[kind], numbers[maker])
        for kind in numbers
        for need in KINDS[kind].needs
        for maker in need.kinds
        if need.of is Of.STAGE and not need.stage and not need.slice
        and maker in numbers and Kind.R in (kind, maker)
    ]  # fmt: skip


def follows(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether a chain comes after another one on the way of each microbatch."""
    (kind, stage), (later_kind, later_stage) = one, other
    if later_kind == AGAIN:
        return kind == 0 and later_stage >= stage
    if kind == AGAIN:
        return later_kind > 0 and later_stage <= stage
    if kind == 0:
        return later_kind > 0 or later_stage > stage
    later = later_stage < stage or (later_kind == 2 and later_stage == stage)
    return kind == 1 and later_kind > 0 and later
