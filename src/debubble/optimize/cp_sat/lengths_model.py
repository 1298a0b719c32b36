"""Microbatches of different lengths as a constraint program: all ranks, or some of them.

**The relaxation.** Some ranks are modeled with all their actions and their memory over time. Of the
others nothing is left but the time a microbatch takes on its way through them, each with its own
length. Every order of the whole problem is an order here, in all modes of transfers, so that none
is faster than the fastest one here. The ranks of the first and of the last stage say the most
together: the one has nothing to do until gradients come back, the other nothing until forwards
arrive. With all ranks modeled nothing is relaxed but the constraints on transfers.

**Equal ones.** Microbatches of one length are interchangeable: among them, give the b-th start of
every chain to the b-th one, and no action ends later, as in :mod:`debubble.optimize.bounds.paths`.
So each chain keeps their order.

**Rounding.** Times are multiplied by a factor and rounded down to whole numbers, and so is what an
action takes of the memory: that relaxes once more. Where a fused backward may be chosen and is
faster than its parts, each part takes the least that it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from debubble.core.actions import Program
from debubble.core.kind_relations import FUSED_KIND
from debubble.listing import TOLERANCE
from debubble.optimize.cp_sat.interval_model import AGAIN, WEIGHT, IntervalModel
from debubble.optimize.cp_sat.rounding import MEMORY_UNITS, Whole, factor_for, whole_times
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop
from debubble.optimize.times import (
    Grids,
    action_times,
    link_times,
    recompute_times,
)

PRECISION = 0.01
"""Gap from which on the next target is the makespan itself, relative to it."""

LEAST_WORK = 0.01
"""Share of the work that a target takes at least: making the model is not counted."""

CONFLICTS = 10_000
"""Conflicts of the solver per unit of its work, at most; it seldom comes near."""


class LengthsModel(IntervalModel):
    """Some ranks of a problem, all others as delays; :meth:`makespan_below` runs the solver.

    Nothing above the makespan `best` is sought, and `bound` is proven.
    """

    def __init__(
        self, problem: Problem, ranks: Sequence[int], best: float, bound: float = 0.0
    ) -> None:
        times, redo, links = least_times(problem), recompute_times(problem), link_times(problem)
        self.factor = factor_for(np.concatenate([x.ravel() for x in (times, redo, links)]), best)
        no_weights = np.zeros((AGAIN - len(times), *redo.shape))
        self.times = np.concatenate([times, no_weights, redo[None]])
        units = whole_times(self.times, self.factor)
        super().__init__(problem, ranks, units, int(best * self.factor * (1 + TOLERANCE)))
        least = int(bound * self.factor * (1 - TOLERANCE))
        self.makespan = self.model.new_int_var(min(least, self.horizon), self.horizon, "")
        for rank in self.ranks:
            self.add_order(self.passes(rank))
            for key in self.passes(rank):
                if key[0] == WEIGHT:
                    self.model.add(self.makespan >= self.end(*key))
            self.add_memory(rank, problem.limits_with_slack[rank] / MEMORY_UNITS)
        delays, rests = self._delays(links)
        self.add_delays(delays)
        for b, rest in enumerate(rests.tolist()):
            self.model.add(self.makespan >= self.end(*self.way[-1], b) + rest)

    def _delays(self, links: Grids) -> tuple[Whole, Whole]:
        """Return delays for :meth:`add_delays`, and the time from each last end to the end of all.

        Microbatches pass the stages one after the other; ranks that are not modeled are delays.
        """
        S, ahead = self.problem.stages, set(self.way)
        gap, rest = np.zeros((2, self.problem.microbatches))
        delays = []
        for back, stage in [*((0, s) for s in range(S)), *((1, s) for s in range(S)[::-1])]:
            gap = gap + links[back, stage]
            if (back, stage) in ahead:
                delays.append(gap)
                gap, rest = np.zeros((2, self.problem.microbatches))
                continue
            if back and stage == S - 1:
                gap = gap + self.times[AGAIN, stage]
            gap = gap + self.times[back, stage]
            if back:
                weight = 0.0 if self.problem.fused else self.times[WEIGHT, stage]
                rest = np.maximum(rest, gap + weight)
        return whole_times(np.array(delays), self.factor), whole_times(rest, self.factor)

    def makespan_below(self, target: float, work: float, stop: Stop) -> float | None:
        """Return a makespan below a target that a schedule has, or the target if none does.

        None if that is open after some `work`, the solver's own unit of about a second;
        :attr:`spent` is the part of it that was needed.
        """
        highest = math.ceil(target * self.factor * (1 - TOLERANCE)) - 1
        self.model.add(self.makespan <= highest)
        parameters = self.solver.parameters
        parameters.linearization_level = 0
        parameters.cp_model_probing_level = 0
        # Else starts may be pushed on one unit at a time, which the solver does not count as work.
        parameters.use_dynamic_precedence_in_disjunctive = True
        parameters.max_number_of_conflicts = int(CONFLICTS * work)
        with stop.ending(self.stop):
            # One thread needs a tenth of the work that several do.
            found = self.run(work, stop.left, 1, stop.work.seed)
        if found is False:
            return target
        return self.solver.value(self.makespan) / self.factor if found else None


def narrow(
    problem: Problem, ranks: Sequence[int], low: float, high: float, work: float, stop: Stop,
    found: Callable[[list[Program]], object] | None = None,
) -> float:  # fmt: skip
    """Return a time that no schedule beats, by some ranks or all.

    Targets between a bound `low` and a makespan `high` are met or refuted, one after the other:
    that is much sooner done than finding the fastest order at once, and proving it. `found` is
    called with every order; then all ranks are modeled.
    """
    least, whole = LEAST_WORK * work, True
    while high > low * (1 + TOLERANCE) and work > 0 and not stop():
        target = high if whole and high - low <= PRECISION * high else (low + high) / 2
        model = LengthsModel(problem, ranks, target, low)
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
    """Return the least time of every action, shape ``(kinds, stages, microbatches)``, R apart."""
    times = action_times(problem, problem.kinds)
    if problem.backward == "free":
        fused = action_times(problem, [FUSED_KIND])[0]
        both = np.minimum(times[1] + times[2], fused)
        times[1] = np.minimum(times[1], fused)
        times[2] = both - times[1]
    return times


def by_work(problem: Problem) -> float:
    """Return a time that no order beats, without a solver.

    A rank has the work of all microbatches, once the first of them has come to it; where layers are
    cut, ranks have equal shares at best. The longest microbatch has its own way through all stages.
    """
    times = least_times(problem)
    work = problem.per_rank(times.sum(axis=(0, 2)))
    way = float(times[:2].sum(axis=(0, 1)).max())
    if problem.layers:
        return max(way, float(work.mean()))
    before = np.concatenate([[0.0], np.cumsum(times[0].min(axis=1))[:-1]])
    return max(way, float((work + problem.least_per_rank(before)).max()))


def telling_ranks(problem: Problem) -> list[int]:
    """Return the ranks of the first and last stage; of a V, those of the first and of the turn."""
    first, last = int(problem.homes[0]), int(problem.homes[-1])
    if first == last:
        last = int(problem.homes[problem.stages // 2])
    return sorted({first, last})
