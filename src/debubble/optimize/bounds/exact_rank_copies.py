r"""Bounds that know how long copies to the host take: one rank is kept exactly, with its copies.

Elsewhere an activation that may be copied is gone when its forward ends, and there again when its
backward begins (:mod:`debubble.optimize.programs.offload`). A copy takes time, though, on a stream
of the rank that carries one at a time.

**The relaxation.** Keep one rank with all it computes and copies, and its memory over time; of all
others nothing is left but the time they take, as in :mod:`debubble.optimize.bounds.exact_rank`.
What it computes and what it copies are one machine each. Every activation is copied or stays: an
OFFLOAD follows its forward, a RELOAD follows that and comes before the backward, and what is moved
is not held between both. Copies may begin at any time.

Chains need not run in microbatch order: with copies that may be a loss. But microbatches are equal,
and so they may be numbered by the order of their forwards on the rank's first stage. An action
starts no sooner than the head, and is followed by no less than the tail, that hold for any
microbatch; those forwards in order have heads of their own. Heads and tails are those of the
problem whose copies take no time, where the b-th start of a chain has the b-th head in every order
(:mod:`debubble.optimize.bounds.paths`), and every order here is one there. So no order of the whole
problem is faster than the fastest one here.

**What never waits.** An action starts when the one before it is over, its input is there, and the
OFFLOAD is over whose memory it waits for, if any. A W, whose I is on its rank, hence starts when
another action of the rank or an OFFLOAD ends; likewise the forward of a stage whose input was made
on its rank, and of stage 0, but for the first of all, which starts at 0. That holds in all modes of
transfers but those in which ranks take part. It is only used where times are whole numbers after
multiplication by a factor, and a fused backward is as long as its parts: then a start is the end of
an action in the model, too.

**Whole numbers.** Else times are multiplied and rounded down. Then the starts and ends of an order,
rounded down, still follow each other as they did, and the model refutes less. Memory is rounded
down to parts of an activation.

CP-SAT refutes targets, one after the other: where it finds that no order of the model ends before
a target, that is a bound. Where it finds one, or its work is spent, none is.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np

from debubble.core.kind_relations import FUSED_KIND, SPLIT_KINDS
from debubble.core.kinds import COPY_KINDS
from debubble.engine.modes import MODE
from debubble.listing import TOLERANCE
from debubble.optimize.bounds.exact_rank import keep
from debubble.optimize.cp_sat.copy_model import BACK, OUT, add_copies, add_machine, add_memory
from debubble.optimize.cp_sat.rounding import all_times, factor_for, rounded_down
from debubble.optimize.cp_sat.solver import run
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.offload import eased
from debubble.optimize.stop import Stop

Key = tuple[int, int, int]
"""Kind by its number (F, I or B, W, OFFLOAD, RELOAD), stage and microbatch."""

PRECISION = 2e-3
"""How exactly the largest target is sought, relative to it."""

FIRST_STEPS = 8
"""Targets between the bound that is known and the makespan to beat, to begin with."""

FIRST_SHARE = 0.125
"""Share of the work that is left for a target, as long as every one is refuted; then it is half."""

MOST_UNITS, FEWER_UNITS = 20_000, 2_000
"""Whole numbers that the makespan is spread over at most, and where times have to be rounded."""

WHOLE = 1e-9
"""How far from a whole number a time may be that counts as one, relative to it."""


def may_help(problem: Problem, rank: int) -> bool:
    """Whether the rank copies anything, and all that it does is modelled."""
    own = problem.homes == rank
    copied = np.array(problem.offload or [False] * problem.stages)
    return bool(
        copied[own].any()
        and not problem.recomputed[own].any()
        and problem.table.lengths is None
        and problem.limits[rank] < problem.microbatch_memory[rank] * problem.microbatches
    )


def copied_bound(
    problem: Problem, rank: int, low: float, best: float, work: float, stop: Stop
) -> tuple[float, float]:
    """The largest target that one rank with its copies is shown not to meet, and the work it took.

    Parameters
    ----------
    problem
        With stages whose activations may be copied.
    rank
        The one that is kept, for which :func:`may_help` holds.
    low, best
        A bound that is known, and a makespan that is reached: nothing above it is sought.
    work
        How much the solver may do, in its own unit of about a second.
    stop
        Ends the search early.
    """
    table, used = problem.table, 0.0
    copies = np.array([table.copy(COPY_KINDS[0], s, None) for s in range(problem.stages)])
    times = np.append(all_times(problem), copies)
    factor = factor_for(times, best)
    if factor * best > MOST_UNITS:
        factor = FEWER_UNITS / best
    whole = bool(np.all(np.abs(times * factor - np.rint(times * factor)) <= WHOLE * times * factor))
    bound = int(low * factor * (1 + TOLERANCE))
    highest = int(np.ceil(best * factor * (1 - TOLERANCE)))
    step, grows = max(1, (highest - bound) // FIRST_STEPS), True
    while bound < highest and used < work and not stop():
        if not grows and highest - bound <= PRECISION * highest:
            break
        target = min(bound + step, highest)
        model = RankModel(problem, rank, factor, target, copies, whole)
        with stop.ending(model.solver.stop_search):
            if stop():
                break
            met = model.met((work - used) * (FIRST_SHARE if grows else 0.5), stop)
        used += model.solver.response_proto.deterministic_time
        if met is False:
            bound = target
            step = 2 * step if grows else max(1, (highest - bound) // 2)
        elif bound <= low * factor:
            # What is not refuted soon is hardly refuted late.
            break
        else:
            highest, grows = target - 1, False
            step = max(1, (highest - bound) // 2)
    return max(low, bound / factor), used


class RankModel:
    """A rank with its copies as a constraint program, which says whether it can end in time.

    Parameters
    ----------
    problem, rank
        Of which problem which rank is kept.
    factor
        By which times are multiplied before they are rounded down.
    target
        The target, in whole numbers.
    copies
        Time of a copy of every stage, shape ``(stages,)``.
    whole
        Whether no time is rounded, so that what never waits is known.
    """

    def __init__(
        self, problem: Problem, rank: int, factor: float, target: int, copies: Any, whole: bool
    ) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.horizon = problem, target - 1
        self.model, self.solver = cp_model.CpModel(), cp_model.CpSolver()
        easy = relaxed(problem)
        self.times = rounded_down(easy.pass_times, factor).astype(np.int64)
        self.copy = rounded_down(copies, factor).astype(np.int64)
        stages = np.flatnonzero(problem.homes == rank).tolist()
        away = [stage for stage in stages if problem.offload[stage]]
        count = range(problem.microbatches)
        self.passes = list(product(range(len(problem.kinds)), stages, count))
        self.copies = list(product((OUT, BACK), away, count))
        self.start: dict[Key, Any] = {
            key: self.model.new_int_var(0, max(self.horizon, 0), "")
            for key in (*self.passes, *self.copies)
        }
        self.away = {(s, b): self.model.new_bool_var("") for s, b in product(away, count)}
        self._add_machines()
        self._add_way(keep(eased(easy), [rank], factor), stages)
        self._add_copies()
        add_memory(self.model, problem, rank, self.start, self._time, self.away)
        if whole and not MODE[problem.mode].blocks and _parts_are_whole(problem, stages):
            self._add_reasons()

    def _time(self, key: Key) -> int:
        return int(self.copy[key[1]] if key[0] >= OUT else self.times[key[:2]])

    def _end(self, key: Key) -> Any:
        return self.start[key] + self._time(key)

    def _add_machines(self) -> None:
        """One action and one copy at a time; microbatches by their first forwards."""
        for keys in (self.passes, self.copies):
            add_machine(self.model, keys, self.start, self._time, self.away)
        first = [key for key in self.passes if key[:2] == self.passes[0][:2]]
        for one, other in pairwise(first):
            self.model.add(self.start[other] >= self._end(one))

    def _add_way(self, kept: Any, stages: list[int]) -> None:
        """Heads, tails, and what every microbatch does between its actions here."""
        chains = [(0, s) for s in stages] + [(1, s) for s in reversed(stages)]
        add = self.model.add
        for c, b in product(range(len(chains)), range(self.problem.microbatches)):
            key = (*chains[c], b)
            add(self.start[key] >= int(kept.heads[c, b if c == 0 else 0]))
            add(self._end(key) <= self.horizon - int(kept.tails[c].min()))
            if c:
                before = (*chains[c - 1], b)
                add(self.start[key] >= self._end(before) + int(kept.delays[c]))
            if chains[c][0] and not self.problem.fused:
                weight = (2, chains[c][1], b)
                add(self.start[weight] >= self._end(key))
                add(self._end(weight) <= self.horizon)

    def _add_copies(self) -> None:
        """Copies between forward and backward; the start of one that is not made is 0."""
        add_copies(self.model, self.start, self._time, self.away)
        for key in self.copies:
            self.model.add(self.start[key] == 0).only_enforce_if(~self.away[key[1:]])

    def _add_reasons(self) -> None:
        """What waits for no other rank, and no RELOAD, starts when an action or OFFLOAD ends."""
        homes, first = self.problem.homes, self.passes[0][:2]
        for key in self.passes:
            row, stage, b = key
            sent = stage > 0 and homes[stage - 1] != homes[stage]
            if row == 1 or (row < 1 and sent):
                continue
            reasons = []
            if key == (0, 0, 0):
                reasons.append(self._is(self.start[key] == 0))
            for other in self.passes:
                own = other[1:] == (stage, b) and other[0] >= row
                later = key[:2] == first == other[:2] and other[2] != b - 1
                if not own and not later:
                    reasons.append(self._is(self.start[key] == self._end(other)))
            for other in self.copies:
                if other[0] == OUT and other[1:] != (stage, b):
                    reasons.append(self._is(self.start[key] == self._end(other)))
                    self.model.add_implication(reasons[-1], self.away[other[1:]])
            self.model.add_bool_or(reasons)

    def _is(self, equal: Any) -> Any:
        literal = self.model.new_bool_var("")
        self.model.add(equal).only_enforce_if(literal)
        return literal

    def met(self, work: float, stop: Stop) -> bool | None:
        """Whether an order ends before the target; None where that took too much.

        Half of the time, as of the work, is left for others.
        """
        from ortools.sat.python import cp_model

        if self.horizon < 0:
            return False
        self.solver.parameters.linearization_level = 0
        status = run(self.solver, self.model, work, stop.left / 2, 1, stop.work.seed)
        if status == cp_model.INFEASIBLE:
            return False
        return True if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


def _parts_are_whole(problem: Problem, stages: list[int]) -> bool:
    """Whether fused backwards, where there may be some, take as long as their parts."""
    duration = problem.table.duration[:, stages]
    both = duration[list(SPLIT_KINDS)].sum(axis=0)
    return problem.backward != "free" or np.allclose(duration[FUSED_KIND], both, rtol=TOLERANCE)
