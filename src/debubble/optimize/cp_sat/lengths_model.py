"""Microbatches of different lengths as a constraint program: all ranks, or some of them.

**The relaxation.** Some ranks are kept with all their actions and their memory over time. Of the
others nothing is left but the time a microbatch takes on its way through them, each with its own
length. Every order of the whole problem is an order here, in all modes of transfers, so that none
is faster than the fastest one here. The ranks of the first and of the last stage say the most
together: the one has nothing to do until gradients come back, the other nothing until forwards
arrive. With all ranks kept nothing is relaxed but what a mode asks of transfers.

**Equal ones.** Microbatches of one length are interchangeable: among them, give the b-th start of
every chain to the b-th one, and no action ends later, as in :mod:`debubble.optimize.bounds.paths`.
So each chain keeps their order.

**Rounding.** Times are multiplied by a factor and rounded down to whole numbers, and so is what an
action takes of the memory: that relaxes once more. Where a fused backward may be chosen and is
faster than its parts, each part takes the least that it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.core.kind_relations import FUSED_KIND
from debubble.listing import TOLERANCE
from debubble.optimize.cp_sat.from_start_times import in_order
from debubble.optimize.cp_sat.model import AGAIN, Key
from debubble.optimize.cp_sat.rounding import MEMORY_UNITS, factor_for, rounded_down
from debubble.optimize.cp_sat.solver import run
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop
from debubble.optimize.times import (
    Grids,
    lengths_of,
    links_of,
    recompute_times,
    times_of,
)

PRECISION = 0.01
"""Gap from which on the next target is the makespan itself, relative to it."""

LEAST_WORK = 0.01
"""Share of the work that a target takes at least: making the model is not counted."""

CONFLICTS = 10_000
"""Conflicts of the solver per unit of its work, at most; it seldom comes near."""

Chain: TypeAlias = tuple[int, int]
"""The number of a kind, and a stage."""


class Model:
    """The program for some ranks of a problem; :meth:`makespan_below` runs the solver.

    Parameters
    ----------
    problem
        With the length of every microbatch.
    ranks
        Those that are kept.
    best
        A makespan that is reached: nothing above it is sought.
    bound
        A proven lower bound.
    """

    def __init__(
        self, problem: Problem, ranks: Sequence[int], best: float, bound: float = 0.0
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.ranks = problem, sorted(ranks)
        times, redo, links = least_times(problem), recompute_times(problem), links_of(problem)
        self.factor = factor_for(np.concatenate([x.ravel() for x in (times, redo, links)]), best)
        self.times = np.concatenate(
            [times, np.zeros((AGAIN - len(times), *redo.shape)), redo[None]]
        )
        self.units = rounded_down(self.times, self.factor).astype(np.int64)
        self.horizon = int(best * self.factor * (1 + TOLERANCE))
        self.model, self.solver = cp_model.CpModel(), cp_model.CpSolver()
        least = int(bound * self.factor * (1 - TOLERANCE))
        self.makespan = self.model.new_int_var(min(least, self.horizon), self.horizon, "")
        self.start: dict[Key, Any] = {}
        self._add_ranks()
        self._add_ways(links)
        self._add_memory()

    def _chains(self, rank: int) -> list[Chain]:
        """The chains of a rank, R where it takes time."""
        kinds, problem = range(len(self.problem.kinds)), self.problem
        stages = np.flatnonzero(problem.homes == rank).tolist()
        again = [s for s in stages if problem.recompute_time[s] > 0]
        return [(kind, s) for s in stages for kind in kinds] + [(AGAIN, s) for s in again]

    def _end(self, *key: int) -> Any:
        kind, stage, b = key
        return self.start[kind, stage, b] + int(self.units[key])

    def _add_ranks(self) -> None:
        """Ranks run one action at a time, and equal ones of a chain in their order."""
        lengths, m = lengths_of(self.problem), self.problem.microbatches
        for rank in self.ranks:
            chains = self._chains(rank)
            intervals = []
            for chain in chains:
                for b in range(m):
                    start = self.start[*chain, b] = self.model.new_int_var(0, self.horizon, "")
                    time = int(self.units[*chain, b])
                    intervals.append(self.model.new_fixed_size_interval_var(start, time, ""))
                for b, c in _next_equal(lengths):
                    self.model.add(self.start[*chain, c] >= self._end(*chain, b))
            self.model.add_no_overlap(intervals)
            for kind, stage in chains:
                if kind in (0, 1):
                    continue
                before = 0 if kind == AGAIN else 1
                for b in range(m):
                    self.model.add(self.start[kind, stage, b] >= self._end(before, stage, b))
                    # A backward comes after its R, and the end of all after W.
                    after = self.start[1, stage, b] if kind == AGAIN else self.makespan
                    self.model.add(after >= self._end(kind, stage, b))

    def _add_ways(self, links: Grids) -> None:
        """Microbatches pass the stages one after the other; what is not kept is a delay."""
        problem, S = self.problem, self.problem.stages
        kept = np.isin(problem.homes, self.ranks)
        for b in range(problem.microbatches):
            last: Chain | None = None
            gap, after = 0.0, 0.0
            for back, stage in [*((0, s) for s in range(S)), *((1, s) for s in range(S)[::-1])]:
                gap += links[back, stage, b]
                if back and stage == S - 1 and not kept[stage]:
                    gap += self.times[AGAIN, stage, b]
                if kept[stage]:
                    self._add_delay(last, (back, stage), gap, b)
                    last, gap, after = (back, stage), 0.0, 0.0
                    continue
                gap += self.times[back, stage, b]
                if back:
                    weight = self.times[2, stage, b] if len(problem.kinds) > 2 else 0.0
                    after = max(after, gap + weight)
            assert last is not None, "some rank is kept"
            # The rest of the way, with the last W of it.
            self.model.add(self.makespan >= self._end(*last, b) + self._whole(after))

    def _add_delay(self, last: Chain | None, chain: Chain, gap: float, b: int) -> None:
        ready = 0 if last is None else self._end(*last, b)
        self.model.add(self.start[*chain, b] >= ready + self._whole(gap))

    def _whole(self, time: float) -> int:
        return int(rounded_down(np.array(time), self.factor))

    def _add_memory(self) -> None:
        """What is held at any time fits."""
        problem, lengths = self.problem, lengths_of(self.problem)
        for rank in self.ranks:
            limit = problem.limits_with_slack[rank]
            if limit >= problem.microbatch_memory[rank] * lengths.sum():
                continue
            unit, intervals, held = limit / MEMORY_UNITS, [], []
            for stage in np.flatnonzero(problem.homes == rank).tolist():
                for first, last, amount in self._holds(stage):
                    for b, length in enumerate(lengths.tolist()):
                        begin, end = self.start[first, stage, b], self._end(last, stage, b)
                        size = self.model.new_int_var(0, self.horizon, "")
                        intervals.append(self.model.new_interval_var(begin, size, end, ""))
                        held.append(int(amount * length / unit + 1e-6))
            self.model.add_cumulative(intervals, held, MEMORY_UNITS)

    def _holds(self, stage: int) -> Iterator[tuple[int, int, float]]:
        """Parts of a stage's memory: from the start of which kind to the end of which, how much."""
        problem = self.problem
        back = problem.taken_by_recompute[stage] if problem.recompute_time[stage] > 0 else 0.0
        taken = [(0, problem.taken[0, stage]), (AGAIN, back), (1, problem.taken[1, stage] - back)]
        freed = [(k, problem.freed[k, stage]) for k in range(1, len(problem.kinds))]
        while taken and freed:
            (first, more), (last, less) = taken[0], freed[-1]
            part = min(more, less)
            if part > 0:
                yield first, last, float(part)
            taken[0], freed[-1] = (first, more - part), (last, less - part)
            if taken[0][1] <= 0:
                taken.pop(0)
            if freed[-1][1] <= 0:
                freed.pop()

    def _rows(self, again: Sequence[int]) -> Iterator[tuple[Chain, int]]:
        """Every chain, with its row among the numbers of actions."""
        S, kinds = self.problem.stages, len(self.problem.kinds)
        yield from (((kind, s), kind * S + s) for kind in range(kinds) for s in range(S))
        yield from (((AGAIN, s), kinds * S + j) for j, s in enumerate(again))

    def makespan_below(self, target: float, work: float, stop: Stop) -> float | None:
        """A makespan below a target that an order has, or the target if none does.

        None where that is open after some `work`, the solver's own unit of about a second;
        :attr:`spent` says how much of it was needed.
        """
        from ortools.sat.python import cp_model

        highest = math.ceil(target * self.factor * (1 - TOLERANCE)) - 1
        self.model.add(self.makespan <= highest)
        parameters = self.solver.parameters
        parameters.linearization_level = 0
        parameters.cp_model_probing_level = 0
        # Else starts may be pushed on one unit at a time, which the solver does not count as work.
        parameters.use_dynamic_precedence_in_disjunctive = True
        parameters.max_number_of_conflicts = int(CONFLICTS * work)
        with stop.ending(self.solver.stop_search):
            # One thread needs a tenth of the work that several do.
            status = run(self.solver, self.model, work, stop.left, 1, stop.work.seed)
        if status == cp_model.INFEASIBLE:
            return target
        found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return self.solver.value(self.makespan) / self.factor if found else None

    @property
    def spent(self) -> float:
        """Work that the last run took."""
        return float(self.solver.response_proto.deterministic_time)

    @property
    def programs(self) -> list[Program]:
        """The order that was found, where all ranks are kept."""
        problem, m = self.problem, self.problem.microbatches
        again = np.flatnonzero(problem.recomputed).tolist()
        rows = list(self._rows(again))
        starts, times = np.zeros((2, len(rows), m))
        for (kind, stage), row in rows:
            times[row] = self.units[kind, stage]
            for b in range(m):
                key = (kind, stage, b) if (kind, stage, b) in self.start else (1, stage, b)
                starts[row, b] = self.solver.value(self.start[key])
        return in_order(problem, starts.ravel(), times.ravel())


def narrow(
    problem: Problem, ranks: Sequence[int], low: float, high: float, work: float, stop: Stop,
    found: Callable[[list[Program]], object] | None = None,
) -> float:  # fmt: skip
    """A time that no order beats, by some ranks that are kept, or all.

    Targets between a bound `low` and a makespan `high` are met or refuted, one after the other:
    that is much sooner done than finding the fastest order at once, and proving it. `found` is
    called with every order; then all ranks are kept.
    """
    least, whole = LEAST_WORK * work, True
    while high > low * (1 + TOLERANCE) and work > 0 and not stop():
        target = high if whole and high - low <= PRECISION * high else (low + high) / 2
        model = Model(problem, ranks, target, low)
        makespan = model.makespan_below(target, work / 2, Stop(stop.left / 2, stop))
        work -= max(model.spent, least)
        # Where the makespan itself is met by a little, it would be many more times.
        whole = makespan is None or target < high or makespan == target
        if makespan == target:
            low = target
            continue
        if makespan is not None and found is not None:
            found(model.programs)
        if makespan is None and target == high:
            break
        high = target if makespan is None else makespan
    return low


def least_times(problem: Problem) -> Grids:
    """Least time of every action, shape ``(kinds, stages, microbatches)``, R apart."""
    times = times_of(problem, problem.kinds)
    if problem.backward == "free":
        fused = times_of(problem, [FUSED_KIND])[0]
        both = np.minimum(times[1] + times[2], fused)
        times[1] = np.minimum(times[1], fused)
        times[2] = both - times[1]
    return times


def by_work(problem: Problem) -> float:
    """A time that no order beats, without a solver.

    A rank has the work of all microbatches, once the first of them has come to it; where layers are
    cut, ranks have equal shares at best. The longest microbatch has its own way through all stages.
    """
    times = least_times(problem)
    work = problem.per_rank(times.sum(axis=(0, 2)))
    way = float(times[:2].sum(axis=(0, 1)).max())
    if problem.layers:
        return max(way, float(work.mean()))
    before = np.concatenate([[0.0], np.cumsum(times[0].min(axis=1))[:-1]])
    first = np.full(problem.ranks, np.inf)
    np.minimum.at(first, problem.homes, before)
    return max(way, float((work + first).max()))


def telling_ranks(problem: Problem) -> list[int]:
    """The ranks of the first and the last stage; of a V, the first rank and the one at the turn."""
    first, last = int(problem.homes[0]), int(problem.homes[-1])
    if first == last:
        last = int(problem.homes[problem.stages // 2])
    return sorted({first, last})


def _next_equal(lengths: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """Every microbatch with the next one of its length."""
    for b in range(len(lengths)):
        later = np.flatnonzero(lengths[b + 1 :] == lengths[b])
        if len(later):
            yield b, b + 1 + int(later[0])
