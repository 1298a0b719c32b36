"""Orders of compute and copies to the host together, as a constraint program for OR-Tools CP-SAT.

Elsewhere copies are put into an order that knows none (:mod:`debubble.optimize.programs.offload`),
all of them the same number of actions early. Here every forward's activation is copied or stays,
and when copies begin is sought together with when everything else does.

Each action starts when the one before it on its rank is over, its input is there, and the OFFLOAD
is over that it waits for, if any. So every start needs a *reason*, the end of something that it
waits for or follows; without, the order would not run as it was planned. The reason of an OFFLOAD
is its forward or another copy, that of a RELOAD any end on its rank, after which it is issued.

Chains run in microbatch order. That is no loss in a problem without copies, but here it is one: a
microbatch that waits on the host until the end makes room for all others with two copies. So what
the solver proves is no bound. Leaving open which microbatch a copy belongs to would make it one,
but a few copies that are away for long are then enough, however long each of them takes.

Times and memory are rounded; an order that is found is simulated and measured as always.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import COPY_KINDS, KIND_MASK, Program, microbatches_of, pack, stages_of
from debubble.core.kinds import WAIT_KINDS
from debubble.core.schedule import Schedule
from debubble.optimize.cp_sat.interval_model import BACK, OUT, IntervalModel, Key, copy_units
from debubble.optimize.cp_sat.model import follows
from debubble.optimize.cp_sat.rounding import FRACTIONS, all_times, factor_for
from debubble.optimize.problem import Problem

OFFLOAD, RELOAD = COPY_KINDS
(WAIT,) = WAIT_KINDS


class CopyModel(IntervalModel):
    """A whole problem with its copies; :meth:`solve` runs the solver.

    No stage recomputes. The makespan of a `known` schedule within memory is the horizon, and the
    solver starts from it.
    """

    def __init__(self, problem: Problem, known: Schedule, bound: float) -> None:
        timeline, table = problem.timeline(known), problem.table
        copied = np.array(problem.offload) & (table.moved(problem.recomputed) > 0)
        problem = replace(problem, offload=tuple(copied.tolist()))
        copy = np.zeros(problem.stages)
        copy[copied] = [table.copy(OFFLOAD, s, None) for s in np.flatnonzero(copied).tolist()]
        self.factor = factor_for(np.append(all_times(problem), copy), timeline.makespan)
        units = copy_units(self._whole(problem.pass_times), self._whole(copy))
        units = np.repeat(units[:, :, None], problem.microbatches, axis=2)
        horizon = int(np.ceil(timeline.makespan * self.factor))
        super().__init__(problem, range(problem.ranks), units, horizon)
        self.lags = {chain: (other, round(lag * self.factor)) for chain, other, lag in problem.arcs}
        delays = [0, *(self.lags[chain][1] for chain in self.way[1:])]
        self.add_delays(np.repeat(np.array(delays)[:, None], problem.microbatches, axis=1))
        makespan = self._makespan(bound)
        for rank in range(problem.ranks):
            self._add_rank(rank, makespan)
            if np.isfinite(problem.limits[rank]):
                self.add_memory(rank, problem.microbatch_memory[rank] / FRACTIONS)
        self._add_hints(timeline)
        self.model.minimize(makespan)

    def _whole(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.round(times * self.factor)

    def _makespan(self, bound: float) -> Any:
        floor = int(bound * self.factor * (1 - 1e-9))
        return self.model.new_int_var(min(floor, self.horizon), self.horizon, "")

    def _add_rank(self, rank: int, makespan: Any) -> None:
        """Keep chains in microbatch order, and add a reason for every start."""
        passes, copies = self.passes(rank), self.copies(rank)
        self.add_order(passes)
        for key in passes:
            chain, b = key[:2], key[2]
            if key[0]:
                self.model.add(makespan >= self.end(*key))
            before = [
                other
                for other in passes
                if (other[2] == b - 1 if other[:2] == chain else True)
                and not (other[2] >= b and follows(chain, other[:2]))
            ]
            gone = [other for other in copies if other[0] == OUT and other[1:] != key[1:]]
            times = self._inputs(key)
            if chain == (0, 0):
                times.append(0)
            back = [(BACK, *key[1:])] if key[0] == 1 and key[1:] in self.away else []
            self.add_reasons(key, before, [*gone, *back], times)
        for key in copies:
            own = (0, *key[1:])
            before = [own] if key[0] == OUT else [k for k in passes if k != (1, *key[1:])]
            self.add_reasons(key, before, [other for other in copies if other != key])

    def _inputs(self, key: Key) -> list[Any]:
        """Return the arrival time of the result that an action waits for."""
        if key[:2] not in self.lags:
            return []
        other, lag = self.lags[key[:2]]
        return [self.end(*other, key[2]) + lag]

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
        """Return programs with copies, within the limits of :meth:`run`; None if none is found."""
        if not self.run(work, seconds, workers, seed):
            return None
        begin = {
            key: int(self.solver.value(start))
            for key, start in self.start.items()
            if key[0] < OUT or self.solver.boolean_value(self.away[key[1:]])
        }
        return [self._program(rank, begin) for rank in range(self.problem.ranks)]

    def _program(self, rank: int, begin: Mapping[Key, int]) -> Program:
        """Return the program of a rank by the starts of all that is done."""
        kinds = {**dict(enumerate(self.problem.kinds)), OUT: OFFLOAD, BACK: RELOAD}
        mine = {key: at for key, at in begin.items() if self.problem.homes[key[1]] == rank}
        passes = sorted((at + self.time(key), at, key) for key, at in mine.items() if key[0] < OUT)
        copies = {key: at for key, at in mine.items() if key[0] >= OUT}
        left = {
            at + self.time(key): key[1:]
            for key, at in copies.items()
            if key[0] == OUT and self.time(key)
        }
        # A wait, and then a copy, is issued after the last action that is over when it begins.
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
        """Return the time at which all inputs of an action are there."""
        times = [0]
        if key[:2] in self.lags:
            other, lag = self.lags[key[:2]]
            times.append(begin[*other, key[2]] + self.time((*other, key[2])) + lag)
        back = (BACK, *key[1:])
        if key[0] == 1 and back in begin:
            times.append(begin[back] + self.time(back))
        return max(times)
