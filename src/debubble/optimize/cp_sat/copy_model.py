"""Orders of compute and copies to the host together, as a constraint program for OR-Tools CP-SAT.

Elsewhere copies are put into an order that knows none (:mod:`debubble.optimize.programs.offload`),
all of them the same number of actions early. Here every forward's activation is copied or stays,
and when copies begin is sought together with when everything else does.

Each action starts when the one before it on its rank is over, its input is there, and the OFFLOAD
is over that it waits for, if any. So every start needs a *reason*, the end of something that it
waits for or follows; without, the order would not run as it was planned. The reason of an OFFLOAD
is its forward or another copy, that of a RELOAD any end on its rank, behind which it is issued.

Chains run in microbatch order. That is no loss in a problem without copies, but here it is one: a
microbatch that waits on the host until the end makes room for all others with two copies. So what
the solver proves is no bound. Leaving open which microbatch a copy belongs to would make it one,
but a few copies that are away for long are then enough, however long each of them takes.

Times and memory are rounded; an order that is found is simulated and measured as always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from debubble.core.actions import COPY_KINDS, KIND_MASK, Program, microbatches_of, pack, stages_of
from debubble.core.kinds import WAIT_KINDS
from debubble.core.schedule import Schedule
from debubble.optimize.cp_sat.model import Key, follows
from debubble.optimize.cp_sat.rounding import FRACTIONS, all_times, factor_for
from debubble.optimize.cp_sat.solver import run
from debubble.optimize.problem import Problem

OFFLOAD, RELOAD = COPY_KINDS
(WAIT,) = WAIT_KINDS

OUT, BACK = 4, 5
"""The numbers of OFFLOAD and RELOAD among kinds."""

MOST_TIME = 1 << 40
"""Whole numbers of time that are held at most."""


class CopyModel:
    """Variables, constraints and objective of a problem; :meth:`solve` runs the solver.

    Parameters
    ----------
    problem
        What to solve, with stages whose activations may be copied and none that recompute.
    known
        An order within memory; its makespan is the horizon, and the solver starts from it.
    bound
        A proven lower bound.
    """

    def __init__(self, problem: Problem, known: Schedule, bound: float) -> None:
        from ortools.sat.python import cp_model

        self.problem = problem
        table, m = problem.table, problem.microbatches
        timeline = problem.timeline(known)
        moved = np.where(problem.offload, table.moved(problem.recomputed), 0.0)
        copied = np.flatnonzero(moved)
        copy = np.zeros(problem.stages)
        copy[copied] = [table.copy(OFFLOAD, stage, None) for stage in copied.tolist()]
        self.factor = factor_for(np.append(all_times(problem), copy), timeline.makespan)
        self.times = np.round(problem.pass_times * self.factor).astype(np.int64)
        self.copy = np.round(copy * self.factor).astype(np.int64)
        self.horizon = int(np.ceil(timeline.makespan * self.factor))
        self.model = cp_model.CpModel()
        self.solver = cp_model.CpSolver()
        passes = list(product(range(len(problem.kinds)), range(problem.stages), range(m)))
        copies = list(product((OUT, BACK), copied.tolist(), range(m)))
        self.start: dict[Key, Any] = {
            key: self.model.new_int_var(0, self.horizon, "") for key in (*passes, *copies)
        }
        self.away = {key[1:]: self.model.new_bool_var("") for key in copies if key[0] == OUT}
        for rank in range(problem.ranks):
            mine = [[k for k in keys if problem.homes[k[1]] == rank] for keys in (passes, copies)]
            self._add_rank(*mine)
            if np.isfinite(problem.limits[rank]):
                add_memory(self.model, problem, rank, self.start, self._time, self.away)
        self._add_data()
        self._add_hints(timeline)
        floor = int(bound * self.factor * (1 - 1e-9))
        makespan = self.model.new_int_var(min(floor, self.horizon), self.horizon, "")
        for key in passes:
            if key[0]:
                self.model.add(makespan >= self._end(key))
        self.model.minimize(makespan)

    def _time(self, key: Key) -> int:
        return int(self.copy[key[1]] if key[0] >= OUT else self.times[key[:2]])

    def _end(self, key: Key) -> Any:
        return self.start[key] + self._time(key)

    def _add_rank(self, passes: list[Key], copies: list[Key]) -> None:
        """One action and one copy at a time, and a reason for every start."""
        for keys in (passes, copies):
            add_machine(self.model, keys, self.start, self._time, self.away)
        for key in passes:
            chain, b = key[:2], key[2]
            if b:
                self.model.add(self.start[key] >= self._end((*chain, b - 1)))
            before = [
                other
                for other in passes
                if (other[2] == b - 1 if other[:2] == chain else True)
                and not (other[2] >= b and follows(chain, other[:2]))
            ]
            gone = [other for other in copies if other[0] == OUT and other[1:] != key[1:]]
            self._add_reasons(key, before, gone)
        for key in copies:
            own = (0, *key[1:])
            before = [own] if key[0] == OUT else [k for k in passes if k != (1, *key[1:])]
            self._add_reasons(key, before, [other for other in copies if other != key])

    def _add_reasons(self, key: Key, passes: list[Key], copies: list[Key]) -> None:
        """A start is the end of one of these, or where inputs or the beginning say so."""
        model, start = self.model, self.start[key]
        reasons = [~self.away[key[1:]]] if key[0] >= OUT else []

        def add(time: Any) -> Any:
            reasons.append(model.new_bool_var(""))
            model.add(start == time).only_enforce_if(reasons[-1])
            return reasons[-1]

        for other in passes:
            add(self._end(other))
        for other in copies:
            model.add_implication(add(self._end(other)), self.away[other[1:]])
        if key[0] < OUT:
            for time in self._inputs(key):
                add(time)
            if key[0] == 1 and key[1:] in self.away:
                model.add_implication(add(self._end((BACK, *key[1:]))), self.away[key[1:]])
            if key[0] == 0 and key[1] == 0:
                add(0)
        model.add_bool_or(reasons)

    def _inputs(self, key: Key) -> Iterator[Any]:
        """When the results arrive that an action waits for."""
        for chain, other, lag in self.problem.arcs:
            if chain == key[:2]:
                yield self._end((*other, key[2])) + round(lag * self.factor)

    def _add_data(self) -> None:
        """Actions start when their input is there, copies behind the forward and each other."""
        for key, start in self.start.items():
            if key[0] < OUT:
                for time in self._inputs(key):
                    self.model.add(start >= time)
        add_copies(self.model, self.start, self._time, self.away)

    def _add_hints(self, timeline: Any) -> None:
        packed = timeline.schedule.actions
        rows = {int(kind): row for row, kind in enumerate(self.problem.kinds)}
        rows |= {int(OFFLOAD): OUT, int(RELOAD): BACK}
        columns = (packed & KIND_MASK, stages_of(packed), microbatches_of(packed))
        keys = zip(*(column.tolist() for column in columns), strict=True)
        known = set()
        for (kind, stage, b), time in zip(keys, timeline.start.tolist(), strict=True):
            key = (rows.get(kind, -1), stage, b)
            if key in self.start:
                known.add(key)
                self.model.add_hint(self.start[key], round(time * self.factor))
        for place, away in self.away.items():
            self.model.add_hint(away, (OUT, *place) in known)

    def solve(self, work: float, seconds: float, workers: int, seed: int) -> list[Program] | None:
        """Programs with copies; None where none were found.

        `work` is the solver's own unit, about a second; :meth:`stop` ends it early.
        """
        from ortools.sat.python import cp_model

        status = run(self.solver, self.model, work, seconds, workers, seed)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        begin = {
            key: int(self.solver.value(start))
            for key, start in self.start.items()
            if key[0] < OUT or self.solver.boolean_value(self.away[key[1:]])
        }
        return [self._program(rank, begin) for rank in range(self.problem.ranks)]

    def _program(self, rank: int, begin: Mapping[Key, int]) -> Program:
        """What a rank does, by the starts of all that is done."""
        kinds = {**dict(enumerate(self.problem.kinds)), OUT: OFFLOAD, BACK: RELOAD}
        mine = {key: at for key, at in begin.items() if self.problem.homes[key[1]] == rank}
        passes = sorted((at + self._time(key), at, key) for key, at in mine.items() if key[0] < OUT)
        copies = {key: at for key, at in mine.items() if key[0] >= OUT}
        left = {
            at + self._time(key): key[1:]
            for key, at in copies.items()
            if key[0] == OUT and self._time(key)
        }
        # A wait, and then a copy, is issued behind what is over when it begins.
        placed = [(at, 2, at, kinds[key[0]], *key[1:]) for key, at in copies.items()]
        free = 0
        for end, at, key in passes:
            placed.append((end, 0, at, kinds[key[0]], *key[1:]))
            if at in left and at > max(free, self._there(key, begin)):
                placed.append((at, 1, at, WAIT, *left[at]))
            free = end
        parts = [pack(kind, stage, b) for *_, kind, stage, b in sorted(placed)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def _there(self, key: Key, begin: Mapping[Key, int]) -> int:
        """When everything is there that an action computes with."""
        lags = [
            begin[*other, key[2]] + self._time((*other, key[2])) + round(lag * self.factor)
            for chain, other, lag in self.problem.arcs
            if chain == key[:2]
        ]
        back = (BACK, *key[1:])
        if key[0] == 1 and back in begin:
            lags.append(begin[back] + self._time(back))
        return max(lags, default=0)

    def stop(self) -> None:
        """End a running :meth:`solve` soon; callable from another thread."""
        self.solver.stop_search()


def add_machine(
    model: Any, keys: Sequence[Key], start: Mapping[Key, Any], time: Callable[[Key], int],
    away: Mapping[tuple[int, int], Any],
) -> None:  # fmt: skip
    """Run one action, or one copy, at a time; see :func:`add_memory`."""
    model.add_no_overlap(
        [
            model.new_fixed_size_interval_var(start[key], time(key), "")
            if key[0] < OUT
            else model.new_optional_fixed_size_interval_var(
                start[key], time(key), away[key[1:]], ""
            )
            for key in keys
        ]
    )


def add_copies(
    model: Any, start: Mapping[Key, Any], time: Callable[[Key], int],
    away: Mapping[tuple[int, int], Any],
) -> None:  # fmt: skip
    """Copy out behind the forward and back before the backward; see :func:`add_memory`."""
    for (stage, b), copied in away.items():
        way = [(0, stage, b), (OUT, stage, b), (BACK, stage, b), (1, stage, b)]
        for one, other in pairwise(way):
            model.add(start[other] >= start[one] + time(one)).only_enforce_if(copied)


def add_memory(
    model: Any, problem: Problem, rank: int, start: Mapping[Key, Any],
    time: Callable[[Key], int], away: Mapping[tuple[int, int], Any],
) -> None:  # fmt: skip
    """Limit what a rank holds from every forward on, in parts that leave with I, W or a copy.

    Parameters
    ----------
    model
        The solver's, which gets the constraint.
    start, time, away
        Starts and times of actions and copies, and whether activations are copied.
    """
    unit = problem.microbatch_memory[rank] / FRACTIONS
    stages = np.flatnonzero(problem.homes == rank).tolist()
    intervals, sizes = [], []
    for stage, b in product(stages, range(problem.microbatches)):
        for begin, end, part, copied in held_parts(problem, stage):
            if not (size := int(part / unit + 1e-6)):
                continue
            last = (end, stage, b)
            until = start[last] + time(last)
            there = True if copied is None else away[stage, b] if copied else ~away[stage, b]
            length = model.new_int_var(0, MOST_TIME, "")
            intervals.append(
                model.new_optional_interval_var(start[begin, stage, b], length, until, there, "")
            )
            sizes.append(size)
    model.add_cumulative(intervals, sizes, int(problem.limits_with_slack[rank] / unit + 1e-3))


def held_parts(problem: Problem, stage: int) -> Iterator[tuple[int, int, float, bool | None]]:
    """What a microbatch holds: from the start of which kind to the end of which, and how much.

    The last says whether that is so where its activation is copied, or stays; None for both.
    """
    moved = 0.0
    if problem.offload and problem.offload[stage]:
        moved = float(problem.table.moved(problem.recomputed)[stage])
    yield 1, 1, float(problem.taken[1, stage]), None
    stays = [problem.taken[0, stage] - problem.freed[2:, stage].sum()]
    stays += problem.freed[2:, stage].tolist()
    # Which of both parts is moved first makes no difference: it is back before any leaves.
    for last, size in reversed(list(enumerate(stays, start=1))):
        part = min(moved, float(size))
        moved -= part
        yield 0, last, float(size) - part, None
        if part > 0:
            yield 0, last, part, False
            yield 0, OUT, part, True
            yield BACK, last, part, True
