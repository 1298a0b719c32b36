r"""Bounds with the time of copies to the host: one rank is modeled exactly, with its copies.

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
from debubble.optimize.bounds._exact_rank_kernel import Relaxation
from debubble.optimize.bounds.exact_rank import relax_others
from debubble.optimize.cp_sat.interval_model import OUT, IntervalModel, copy_units
from debubble.optimize.cp_sat.rounding import FRACTIONS, all_times, factor_for, whole_times
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.programs.offload import relax_copies
from debubble.optimize.stop import Stop

PRECISION = 2e-3
"""Tolerance of the largest target, relative to it."""

FIRST_STEPS = 8
"""Targets between the bound that is known and the makespan to beat, to begin with."""

FIRST_SHARE = 0.125
"""Share of the work that is left for a target, as long as every one is refuted; then it is half."""

MOST_UNITS, FEWER_UNITS = 20_000, 2_000
"""Whole numbers that the makespan is spread over at most, and where times have to be rounded."""

WHOLE = 1e-9
"""Largest distance from a whole number at which a time counts as whole, relative to it."""


def may_help(problem: Problem, rank: int) -> bool:
    """Return whether the rank copies anything, and all that it does is modeled."""
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
    """Return the largest target that one rank with its copies does not meet, and the work spent.

    It is sought between a bound `low` and a makespan `best`. Work is in the solver's own unit of
    about a second. :func:`may_help` holds for the rank.
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
        with stop.ending(model.stop):
            if stop():
                break
            met = model.met((work - used) * (FIRST_SHARE if grows else 0.5), stop)
        used += model.spent
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


class RankModel(IntervalModel):
    """A rank with its copies; :meth:`met` decides a target in whole numbers.

    `copies` are times of a copy of every stage, shape ``(stages,)``. If times are `whole`, none is
    rounded down, and the actions that never wait are known.
    """

    def __init__(
        self, problem: Problem, rank: int, factor: float, target: int, copies: Any, whole: bool
    ) -> None:
        easy = relaxed(problem)
        units = copy_units(whole_times(easy.pass_times, factor), whole_times(copies, factor))
        units = np.repeat(units[:, :, None], problem.microbatches, axis=2)
        super().__init__(problem, [rank], units, target - 1)
        self.first = [key for key in self.passes(rank) if key[:2] == self.way[0]]
        for one, other in pairwise(self.first):
            self.model.add(self.start[other] >= self.end(*one))
        kept = relax_others(relax_copies(easy), [rank], factor)
        self.add_delays(np.repeat(kept.delays[:, None], problem.microbatches, axis=1))
        self._add_heads_and_tails(kept)
        for key in self.copies(rank):
            # The start of a copy that is not made is 0.
            self.model.add(self.start[key] == 0).only_enforce_if(~self.away[key[1:]])
        self.add_memory(rank, problem.microbatch_memory[rank] / FRACTIONS)
        if whole and not MODE[problem.mode].blocks and _parts_are_whole(problem, self.stages(rank)):
            self._add_reasons(rank)

    def _add_heads_and_tails(self, kept: Relaxation) -> None:
        """Add heads and tails to the model; microbatches are numbered by their first forwards."""
        for c, b in product(range(len(self.way)), range(self.problem.microbatches)):
            key = (*self.way[c], b)
            self.model.add(self.start[key] >= int(kept.heads[c, b if c == 0 else 0]))
            self.model.add(self.end(*key) <= self.horizon - int(kept.tails[c].min()))
        for key in self.passes(self.ranks[0]):
            if key[0] == 2:
                self.model.add(self.end(*key) <= self.horizon)

    def _add_reasons(self, rank: int) -> None:
        """Start actions that wait for no other rank or RELOAD when an action or OFFLOAD ends."""
        homes = self.problem.homes
        for key in self.passes(rank):
            row, stage, b = key
            sent = stage > 0 and homes[stage - 1] != homes[stage]
            if row == 1 or (row == 0 and sent):
                continue
            passes = [
                other for other in self.passes(rank)
                if not (other[1:] == (stage, b) and other[0] >= row)
                and not (key in self.first and other in self.first and other[2] != b - 1)
            ]  # fmt: skip
            copies = [
                other for other in self.copies(rank)
                if other[0] == OUT and other[1:] != (stage, b)
            ]  # fmt: skip
            self.add_reasons(key, passes, copies, [0] if key == (0, 0, 0) else [])

    def met(self, work: float, stop: Stop) -> bool | None:
        """Return whether an order ends before the target; None where that took too much.

        Half of the time, as of the work, is left for others.
        """
        if self.horizon < 0:
            return False
        self.solver.parameters.linearization_level = 0
        return self.run(work, stop.left / 2, 1, stop.work.seed)


def _parts_are_whole(problem: Problem, stages: list[int]) -> bool:
    """Return whether fused backwards, where there may be some, take as long as their parts."""
    duration = problem.table.duration[:, stages]
    both = duration[list(SPLIT_KINDS)].sum(axis=0)
    return problem.backward != "free" or np.allclose(duration[FUSED_KIND], both, rtol=TOLERANCE)
