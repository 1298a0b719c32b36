"""Ranks of a problem as a constraint program, with a time for every action.

A rank computes one action at a time, and carries one copy to the host at a time. Actions start when
what they need on the rank is over: W after I, R between its forward and its backward; an activation
that is copied leaves after its forward and is back before its backward. Memory is a cumulative
constraint over intervals, in parts that leave with I, W or a copy.

Ranks, the order of microbatches in a chain, and the objective come from what builds on this:
:mod:`.model`, :mod:`.lengths_model`, :mod:`.copy_model`, and the bounds of one rank with its copies
(:mod:`debubble.optimize.bounds.exact_rank_copies`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.optimize.cp_sat.from_start_times import programs_by_start
from debubble.optimize.problem import Problem
from debubble.optimize.times import microbatch_lengths

WEIGHT, AGAIN, OUT, BACK = 2, 3, 4, 5
"""The numbers of W, R, OFFLOAD and RELOAD among kinds."""

MOST_TIME = 1 << 40
"""Whole numbers of time that are held at most."""

Chain: TypeAlias = tuple[int, int]
"""The number of a kind, and a stage."""

Key: TypeAlias = tuple[int, int, int]
"""An action: the number of its kind, its stage and microbatch."""


class IntervalModel:
    """Variables and constraints of some ranks; nothing starts after the horizon.

    `units` are times of all actions in whole numbers, shape ``(kinds, stages, microbatches)`` with
    rows for R, OFFLOAD and RELOAD after those of the problem.
    """

    def __init__(
        self, problem: Problem, ranks: Iterable[int], units: NDArray[np.int64], horizon: int
    ) -> None:
        from ortools.sat.python import cp_model

        self.model, self.solver = cp_model.CpModel(), cp_model.CpSolver()
        self.problem, self.ranks, self.units, self.horizon = problem, sorted(ranks), units, horizon
        self.start: dict[Key, Any] = {}
        self.away: dict[tuple[int, int], Any] = {}
        """True if the activation of a stage and microbatch is copied."""
        for rank in self.ranks:
            for key in (*self.passes(rank), *self.copies(rank)):
                self.start[key] = self.model.new_int_var(0, max(horizon, 0), "")
                if key[0] == OUT:
                    self.away[key[1:]] = self.model.new_bool_var("")
        for rank in self.ranks:
            self._add_machines(rank)
            self._add_data(rank)

    def stages(self, rank: int) -> list[int]:
        """Return the stages of a rank."""
        found: list[int] = np.flatnonzero(self.problem.homes == rank).tolist()
        return found

    def passes(self, rank: int) -> list[Key]:
        """Return everything that a rank computes, R where it takes time."""
        stages, count = self.stages(rank), range(self.problem.microbatches)
        again = [stage for stage in stages if self.problem.recompute_time[stage] > 0]
        kinds = range(len(self.problem.kinds))
        return [*product(kinds, stages, count), *product((AGAIN,), again, count)]

    def copies(self, rank: int) -> list[Key]:
        """Return every copy that a rank may carry."""
        away = self.problem.offload or (False,) * self.problem.stages
        stages = [stage for stage in self.stages(rank) if away[stage]]
        return list(product((OUT, BACK), stages, range(self.problem.microbatches)))

    @cached_property
    def way(self) -> list[Chain]:
        """Chains of F and I or B here, in the order in which a microbatch passes them."""
        stages = np.flatnonzero(np.isin(self.problem.homes, self.ranks)).tolist()
        return [(0, stage) for stage in stages] + [(1, stage) for stage in reversed(stages)]

    def time(self, key: Key) -> int:
        """Return the time of an action or a copy."""
        return int(self.units[key])

    def end(self, *key: int) -> Any:
        """Return the end of an action or a copy as a term."""
        kind, stage, microbatch = key
        return self.start[kind, stage, microbatch] + int(self.units[kind, stage, microbatch])

    def interval(self, key: Key) -> Any:
        """Return the time in which an action runs."""
        return self.model.new_fixed_size_interval_var(self.start[key], self.time(key), "")

    def numbered(self, apart: bool) -> list[Key]:
        """Return all actions by their numbers in the problem, R as well where they are `apart`."""
        problem = self.problem
        again = np.flatnonzero(problem.recomputed).tolist() if apart else []
        chains = [*product(range(len(problem.kinds)), range(problem.stages)),
                  *product((AGAIN,), again)]  # fmt: skip
        return [(*chain, b) for chain in chains for b in range(problem.microbatches)]

    @property
    def programs(self) -> list[Program]:
        """The order that was found, where all ranks are modeled."""
        keys = self.numbered(True)
        # R that takes no time goes right ahead of its backward.
        own = [self.start[key if key in self.start else (1, *key[1:])] for key in keys]
        ends = [
            self.end(*key) if key in self.start else at for key, at in zip(keys, own, strict=True)
        ]
        starts, over = np.array([[self.solver.value(at) for at in row] for row in (own, ends)])
        return programs_by_start(self.problem, starts, over - starts)

    def run(self, work: float, seconds: float, workers: int, seed: int) -> bool | None:
        """Return whether there is a solution; None where that is open.

        `work` is the solver's own unit, about a second; :meth:`stop` ends it early. Ctrl-C is not
        the solver's: searches hear it.
        """
        from ortools.sat.python import cp_model

        parameters = self.solver.parameters
        parameters.max_deterministic_time = work
        parameters.max_time_in_seconds = seconds
        parameters.num_workers = workers
        parameters.random_seed = seed
        parameters.catch_sigint_signal = False
        status = self.solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            return False
        return True if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None

    def stop(self) -> None:
        """End a running search soon; callable from another thread."""
        self.solver.stop_search()

    @property
    def spent(self) -> float:
        """Work that the last run took."""
        return float(self.solver.response_proto.deterministic_time)

    def add_order(self, keys: Iterable[Key]) -> None:
        """Keep microbatches of one length in the order of their numbers in every chain."""
        lengths = microbatch_lengths(self.problem)
        for kind, stage, b in keys:
            later = np.flatnonzero(lengths[b + 1 :] == lengths[b])
            if len(later):
                after = self.start[kind, stage, b + 1 + int(later[0])]
                self.model.add(after >= self.end(kind, stage, b))

    def _add_machines(self, rank: int) -> None:
        self.model.add_no_overlap(self.interval(key) for key in self.passes(rank))
        self.model.add_no_overlap(
            self.model.new_optional_fixed_size_interval_var(
                self.start[key], self.time(key), self.away[key[1:]], ""
            )
            for key in self.copies(rank)
        )

    def _add_data(self, rank: int) -> None:
        """Start W after I, R between forward and backward, and copies between these, too."""
        for kind, stage, b in self.passes(rank):
            if kind == WEIGHT:
                self.model.add(self.start[WEIGHT, stage, b] >= self.end(1, stage, b))
            elif kind == AGAIN:
                self.model.add(self.start[AGAIN, stage, b] >= self.end(0, stage, b))
                self.model.add(self.start[1, stage, b] >= self.end(AGAIN, stage, b))
        for kind, stage, b in self.copies(rank):
            if kind == OUT:
                for one, other in pairwise((0, OUT, BACK, 1)):
                    self.model.add(
                        self.start[other, stage, b] >= self.end(one, stage, b)
                    ).only_enforce_if(self.away[stage, b])

    def add_delays(self, delays: NDArray[np.int64]) -> None:
        """Delay each chain of the way after the one ahead of it, shape ``(chains, microbatches)``.

        The first chain is delayed after the beginning.
        """
        for c, b in product(range(len(self.way)), range(self.problem.microbatches)):
            ready = self.end(*self.way[c - 1], b) if c else 0
            self.model.add(self.start[*self.way[c], b] >= ready + int(delays[c, b]))

    def add_memory(self, rank: int, unit: float) -> None:
        """Limit the memory of a rank, in whole units; held memory is rounded down."""
        problem, lengths = self.problem, microbatch_lengths(self.problem)
        limit = problem.limits_with_slack[rank]
        if limit >= problem.microbatch_memory[rank] * lengths.sum():
            return
        intervals, sizes = [], []
        for stage in self.stages(rank):
            for begin, last, amount, copied in held_parts(problem, stage):
                for b, length in enumerate(lengths.tolist()):
                    if size := int(amount * length / unit + 1e-6):
                        until = self.end(last, stage, b)
                        there: Any = True
                        if copied is not None:
                            there = self.away[stage, b] if copied else ~self.away[stage, b]
                        held = self.model.new_int_var(0, MOST_TIME, "")
                        intervals.append(self.model.new_optional_interval_var(
                            self.start[begin, stage, b], held, until, there, ""
                        ))  # fmt: skip
                        sizes.append(size)
        self.model.add_cumulative(intervals, sizes, int(limit / unit + 1e-3))

    def add_reasons(
        self, key: Key, passes: Iterable[Key], copies: Iterable[Key], times: Sequence[Any] = ()
    ) -> None:
        """Let an action start at the end of one of these, or at one of the times.

        A copy is a reason where it is made, and needs one only then.
        """
        reasons = [~self.away[key[1:]]] if key[0] >= OUT else []
        ends = (self.end(*other) for other in passes)
        reasons += [self._starts_at(key, time) for time in (*ends, *times)]
        for other in copies:
            reasons.append(self._starts_at(key, self.end(*other)))
            self.model.add_implication(reasons[-1], self.away[other[1:]])
        self.model.add_bool_or(reasons)

    def _starts_at(self, key: Key, time: Any) -> Any:
        literal = self.model.new_bool_var("")
        self.model.add(self.start[key] == time).only_enforce_if(literal)
        return literal


def copy_units(times: NDArray[Any], copies: NDArray[Any]) -> NDArray[np.int64]:
    """Return whole times of all kinds, shape ``(6, stages)``; of a problem without recomputes."""
    units = np.zeros((BACK + 1, len(copies)), dtype=np.int64)
    units[: len(times)] = times
    units[[OUT, BACK]] = copies
    return units


def held_parts(problem: Problem, stage: int) -> Iterator[tuple[int, int, float, bool | None]]:
    """Yield parts of a stage's memory: first kind, last kind, amount, and condition.

    A part is held from the start of the first kind to the end of the last. The condition is true
    if this holds for copied activations, false for those that stay, and None for both.
    """
    moved = 0.0
    if problem.offload and problem.offload[stage]:
        moved = float(problem.table.moved(problem.recomputed)[stage])
    for first, last, amount in _taken_and_freed(problem, stage):
        # Which of both parts is moved first makes no difference: it is back before any leaves.
        part = min(moved, amount) if first == 0 else 0.0
        moved -= part
        yield first, last, amount - part, None
        if part > 0:
            yield first, last, part, False
            yield first, OUT, part, True
            yield BACK, last, part, True


def _taken_and_freed(problem: Problem, stage: int) -> Iterator[tuple[int, int, float]]:
    """Yield the memory that a kind takes at its start and another frees at its end."""
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
