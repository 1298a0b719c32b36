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
from typing import Any

import numpy as np

from debubble.core.actions import Program
from debubble.engine.timeline import Timeline
from debubble.optimize.bounds.paths import longest_paths, memory_arcs
from debubble.optimize.cp_sat.from_start_times import starts_by_number
from debubble.optimize.cp_sat.interval_model import AGAIN, WEIGHT, IntervalModel, Key
from debubble.optimize.cp_sat.rounding import (
    FRACTIONS,
    MEMORY_UNITS,
    all_times,
    factor_for,
    fused_times,
    round_times,
    whole_units,
)
from debubble.optimize.problem import Problem, without_recompute_time, without_recomputes
from debubble.optimize.programs.backward import fusable, fused_ones, relaxed, with_fused


@dataclass(frozen=True)
class Solution:
    """Result of the solver: an order unless it found none, and its bound."""

    programs: list[Program] | None
    bound: float
    proven: bool
    """True if the order is optimal for the rounded times."""


class ExactModel(IntervalModel):
    """All ranks of a problem, with heads and tails; :meth:`solve` runs the solver.

    The makespan of a `known` order that fits is the horizon, and the solver starts from it.
    """

    def __init__(self, problem: Problem, known: Sequence[Program], bound: float = 0.0) -> None:
        apart = problem.can_run_ahead
        known = known if apart else without_recomputes(known)
        order = problem.schedule(known)
        makespan = problem.timeline(order).makespan
        self.factor = factor_for(all_times(problem), makespan)
        self.whole = round_times(problem, self.factor)
        timeline = self.whole.timeline(order)
        self.fusable = fusable(problem)
        self.fused: dict[tuple[int, int], Any] = {}
        """True if the backward of a stage and microbatch is one action."""
        self.ends: dict[Key, Any] = {}
        """Ends of actions whose time depends on that."""
        easy = without_recompute_time(self.whole)
        kept, self.timed = (self.whole, easy) if apart else (easy, self.whole)
        self.together = fused_times(self.timed)
        self._literals: dict[tuple[Key, Key], Any] = {}
        units = np.zeros((AGAIN + 1, problem.stages), dtype=np.int64)
        units[: len(problem.kinds)] = self.timed.times
        units[AGAIN] = kept.recompute_time
        units = np.repeat(units[:, :, None], problem.microbatches, axis=2)
        super().__init__(kept, range(problem.ranks), units, round(timeline.makespan))
        self._add_heads_and_tails()
        self._add_arcs()
        for rank in self.ranks:
            self._add_order(rank)
            self._add_memory(rank)
        self._minimize(math.floor(bound * self.factor * (1 - 1e-12)))
        self._add_hints(known, timeline, apart)

    def passes(self, rank: int) -> list[Key]:
        """Return everything that a rank computes, all R or none: those of no time hold memory."""
        found = super().passes(rank)
        again = [s for s in self.stages(rank) if self.problem.recomputed[s]]
        missing = again if self.problem.can_run_ahead else []
        rest = product((AGAIN,), missing, range(self.problem.microbatches))
        return list(dict.fromkeys([*found, *rest]))

    def end(self, *key: int) -> Any:
        """Return the end of an action as a variable or a term."""
        kind, stage, microbatch = key
        return self.ends.get((kind, stage, microbatch), super().end(*key))

    def interval(self, key: Key) -> Any:
        """Return the time in which an action runs, by whether its backward is fused."""
        kind, stage, b = key
        if kind not in (1, WEIGHT) or not self.fusable[stage]:
            return super().interval(key)
        if key[1:] not in self.fused:
            self.fused[stage, b] = self.model.new_bool_var("")
        less = (int(self.together[stage]) if kind == 1 else 0) - self.time(key)
        self.ends[key] = self.model.new_int_var(0, self.horizon, "")
        time = self.time(key) + less * self.fused[stage, b]
        return self.model.new_interval_var(self.start[key], time, self.ends[key], "")

    def _add_heads_and_tails(self) -> None:
        """Start every action between its head and its tail."""
        least = relaxed(self.whole)
        heads, tails, *_ = longest_paths(least)
        redo = least.recompute_time[:, None]
        latest = self.horizon - tails - least.pass_times[:, :, None]
        # The first and last start of R, or of R with its backward.
        first, last = heads[0] + least.pass_times[0, :, None], latest[1] - redo
        if self.fusable.any():
            # These W may come before older ones: only their own I is sure to come first.
            heads[2, self.fusable] = (heads[1] + least.pass_times[1, :, None])[self.fusable]
            latest[2, self.fusable] = self.horizon
        if not self.problem.can_run_ahead:
            heads[1], latest[1] = heads[1] - redo, last
        for key, start in self.start.items():
            low, high = (first, last) if key[0] == AGAIN else (heads[key[0]], latest[key[0]])
            self.model.add_linear_constraint(start, int(low[key[1:]]), int(high[key[1:]]))

    def _add_order(self, rank: int) -> None:
        """Keep chains in microbatch order but W of fused backwards; add literals for all pairs."""
        self.add_order(key for key in self.passes(rank) if self._keeps_order(*key[:2]))
        for kind, stage, b in self.passes(rank):
            if not self._keeps_order(kind, stage):
                for c in range(b + 1, self.problem.microbatches):
                    split = [~self.fused[stage, b], ~self.fused[stage, c]]
                    after = self.start[kind, stage, c] >= self.end(kind, stage, b)
                    self.model.add(after).only_enforce_if(split)
        chains = list(dict.fromkeys(key[:2] for key in self.passes(rank)))
        for one, other in combinations(chains, 2):
            self._add_pair(one, other)

    def _keeps_order(self, kind: int, stage: int) -> bool:
        """Return whether a chain runs in microbatch order for any fused backwards."""
        return kind != WEIGHT or not self.fusable[stage]

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
                self.model.add(self.start[y] >= self.end(*x)).only_enforce_if(first)
                self.model.add(self.start[x] >= self.end(*y)).only_enforce_if(~first)
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

    def _add_memory(self, rank: int) -> None:
        """Limit the memory held at the start of every action that takes some.

        With a cumulative constraint over intervals the solver took 0.7, 2.0 and 3.9 times the work
        on three problems of four ranks.
        """
        problem, keys = self.problem, self.passes(rank)
        limit, activation = problem.limits_with_slack[rank], problem.table.activation
        if limit >= problem.microbatch_memory[rank] * problem.microbatches:
            return
        stages, unit = self.stages(rank), limit / MEMORY_UNITS
        if np.ptp(activation[stages]) <= 1e-12 * activation[stages[0]]:
            unit = activation[stages[0]] / FRACTIONS
        taken, changes = whole_units(problem, unit, problem.can_run_ahead)
        for me in keys:
            if taken[me[:2]]:
                held = [int(taken[me[:2]])]
                held += [
                    int(changes[key[:2]]) * self._before(key, me)
                    for key in keys if changes[key[:2]] and key != me
                ]  # fmt: skip
                self.model.add(sum(held) <= math.floor(limit / unit + 1e-3))

    def _add_arcs(self) -> None:
        """Start actions when their input is there, and forwards when older activations left."""
        problem = self.timed
        m, add = problem.microbatches, self.model.add
        for (chain, other, delay), b in product([*problem.arcs, *problem.carried], range(m)):
            add(self.start[*chain, b] >= self.end(*other, b) + round(delay))
        for (stage, b), fused in self.fused.items():
            add(self.start[WEIGHT, stage, b] == self.end(1, stage, b)).only_enforce_if(fused)
        arcs, homes = memory_arcs(problem), problem.homes
        # A fused backward frees at its end.
        lags = np.where(np.isin(homes, homes[self.fusable]), 0.0, arcs.lag)
        columns = (values.tolist() for values in (arcs.last, arcs.later, lags))
        for stage, (last, later, lag) in enumerate(zip(*columns, strict=True)):
            for older in range(m - later):
                add(self.start[0, stage, older + later] >= self.end(1, last, older) + round(lag))

    def _minimize(self, bound: int) -> None:
        low = min(bound, self.horizon) - self.problem.size
        makespan = self.model.new_int_var(max(low, 0), self.horizon, "")
        self.model.add_hint(makespan, self.horizon)
        for key in self.start:
            if key[0] in (1, WEIGHT):
                self.model.add(makespan >= self.end(*key))
        self.model.minimize(makespan)

    def _add_hints(self, known: Sequence[Program], timeline: Timeline, apart: bool) -> None:
        """Add the known schedule as values of all starts and choices."""
        grid = starts_by_number(self.whole, known, timeline, apart).tolist()
        starts = dict(zip(self.numbered(apart), map(round, grid), strict=True))
        for key, start in self.start.items():
            self.model.add_hint(start, starts[key])
        fused = fused_ones(self.whole, known)
        for place, literal in self.fused.items():
            self.model.add_hint(literal, bool(fused[place]))
        over = {key: at + self.time(key) for key, at in starts.items() if key in self.start}
        over |= {(WEIGHT, *place): starts[WEIGHT, *place] for place in self.fused if fused[place]}
        for (x, y), first in self._literals.items():
            if not isinstance(first, int):
                self.model.add_hint(first, (starts[x], over[x]) <= (starts[y], over[y]))

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
        fused = np.zeros((self.problem.stages, self.problem.microbatches), dtype=bool)
        for place, literal in self.fused.items():
            fused[place] = self.solver.boolean_value(literal)
        programs = with_fused(self.programs, fused)
        return Solution(programs, bound / self.factor, bound >= self.solver.objective_value)


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
