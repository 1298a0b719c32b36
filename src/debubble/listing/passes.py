"""Passes of the list scheduler over a workload, and the measure of their results."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program
from debubble.core.kind_relations import FORWARD_KIND, INPUT_KIND, WEIGHT_KIND
from debubble.core.schedule import Schedule
from debubble.engine.graph import compile_graph
from debubble.engine.memory import measure_memory
from debubble.engine.timeline import timeline_of
from debubble.listing.pass_state import (
    KEYS,
    NEVER,
    PARAMETERS,
    PARENTS,
    ListProblem,
    PassProgress,
    SearchTerms,
    TriedPolicies,
)
from debubble.listing.policies import Policy, draws_for
from debubble.listing.policy_search import key_into, try_policies
from debubble.listing.workload import TOLERANCE, Workload
from debubble.lowering.recompute import RecomputeAt, add_recompute

BATCH = 8
"""Policies that are tried before the best of all are varied again."""

GIVE_UP = 0.02
"""Share by which a pass may be worse than the best before it is dropped."""

ITERATIONS = 4
"""Loop iterations of the kernel for each action of an order: decisions, and looks at ranks."""


class ListCandidate(NamedTuple):
    """A result; `programs` is empty while policies are only compared."""

    key: tuple[float, float, float]
    """The objective, the other time and the largest share of a memory limit, to be minimised in
    this order. Times are rounded, so that rounding errors do not decide."""
    time: float
    programs: list[Program]


def key_of(candidate: ListCandidate) -> tuple[float, float, float]:
    """Return the key of a candidate."""
    return candidate.key


class Passes:
    """A workload as the arrays of the kernel, with scratch space.

    The objective is ``"makespan"`` or ``"stage-time"``; `late` if recomputes wait for the gradient,
    too.
    """

    def __init__(self, work: Workload, objective: str, late: bool = False) -> None:
        self.work, self.objective, self.late = work, objective, late
        self.microbatches = work.microbatches
        ranks, stages, homes, table = work.ranks, work.stages, work.homes, work.table
        self.offsets = np.concatenate([[0], np.cumsum(np.bincount(homes, minlength=ranks))])
        F, I, W = table.duration[[FORWARD_KIND, INPUT_KIND, WEIGHT_KIND]]
        I += work.recompute_time
        self._busy = work.per_rank(F + I + W)
        self.period = float(self._busy.max())

        # When a microbatch that is alone gets everywhere.
        to_backward = work.backward_link if late else work.backward_lag
        forward_at = np.append(0.0, np.cumsum(F[:-1] + work.forward_link[1:]))
        way_back = np.append(0.0, np.cumsum((I[1:] + to_backward[:-1])[::-1]))[::-1]
        input_at = forward_at[-1] + F[-1] + way_back
        lifespan = input_at + I - forward_at
        self._alone = float(input_at[0] + I[0] + W[0])
        self._first = np.full(ranks, -np.inf)
        self._first[homes[::-1]] = forward_at[::-1]

        stored, more = work.footprint
        filled = work.per_rank(stored)
        # What the backwards of a microbatch take beside what it leaves on all stages.
        extra = work.smallest_limits - filled
        unlimited = np.full(ranks, np.inf)
        self.in_flight = np.divide(work.limits - extra, filled, where=filled > 0, out=unlimited)
        self._most = work.per_rank(stored + more).max()
        self._problem = ListProblem(
            self.microbatches, self.period, 1e-9 * self.period,
            homes, F, I, W, work.forward_link, to_backward, stored, more, np.array(table.kept),
            forward_at, input_at, lifespan, self.offsets, np.argsort(homes, kind="stable"),
            work.limits, filled, extra, work.per_rank(stored * lifespan), self._busy,
            work.per_rank(more) > 0,
        )  # fmt: skip
        cells = stages * (self.microbatches + 1)
        self.scratch = PassProgress(
            *_arrays("f8", cells, 2), *_arrays("i8", stages, 4), *_arrays("f8", stages, 6),
            *_arrays("f8", ranks, 3), *_arrays("i8", ranks), *_arrays("f8", ranks),
            *_arrays("i8", ranks),
        )  # fmt: skip
        self.order = np.zeros(self.size, dtype=np.int64)

    @property
    def size(self) -> int:
        """Number of actions of a schedule."""
        return 3 * self.work.stages * self.microbatches

    @property
    def scale(self) -> float:
        """Time in which keys count times."""
        return self.microbatches * self.period or 1.0

    @property
    def bound(self) -> float:
        """A lower bound of the objective."""
        busy = self.microbatches * self._busy
        if self.objective == "stage-time":
            return float(busy.max())
        return max(self._alone, float((self._first + busy).max()))

    def shortened(self, microbatches: int) -> Passes:
        """Return the pass with fewer microbatches, in the same arrays."""
        other = copy(self)
        other.microbatches = microbatches
        return other

    def problem(self) -> ListProblem:
        """Return what the kernel takes, for the microbatches of this object."""
        # Beyond everything at once a limit means nothing, and infinity has no shares.
        most = 1e6 * self.microbatches * self._most
        return self._problem._replace(
            microbatches=self.microbatches,
            memory=np.minimum(self.work.limits, most) * (1 + TOLERANCE),
            work=self.microbatches * self._busy,
        )

    def question(self) -> tuple[object, ...]:
        """Return all that results depend on, to be compared."""
        arrays = (*self._problem[3:], self._first)
        return (
            self.objective, self.late, self.microbatches, self.work.stages, self._alone,
            *(array.tobytes() for array in arrays),
        )  # fmt: skip

    def compare(
        self, policies: Sequence[Policy], *, batch: int = BATCH, most: int = 0,
        budget: float = NEVER, tolerance: float = GIVE_UP,
    ) -> dict[Policy, ListCandidate]:  # fmt: skip
        """Try policies, then variations of the best until `most` are tried; return all results.

        They are tried `batch` at a time, as long as the budget of placed actions lasts.
        """
        most = max(most, len(policies))
        budget = min(budget, float(most * self.size))
        tried = TriedPolicies(
            np.zeros((most + 1) * PARAMETERS), np.zeros(most * KEYS), np.zeros(most),
            np.zeros(PARENTS, dtype=np.int64),
        )  # fmt: skip
        tried.policies[: len(policies) * PARAMETERS] = np.ravel(policies)
        terms = SearchTerms(
            batch, most, budget, tolerance, self.bound * (1 + TOLERANCE),
            self.objective == "stage-time", self.scale,
        )  # fmt: skip
        count, _ = try_policies.run(
            int(ITERATIONS * max(budget, self.size)), len(policies),
            self.problem(), terms, draws_for(most), self.scratch, tried, self.order,
        )  # fmt: skip
        names = map(tuple, tried.policies.reshape(-1, PARAMETERS)[:count].tolist())
        keys = map(tuple, tried.keys.reshape(-1, KEYS)[:count].tolist())
        found = map(ListCandidate, keys, tried.times[:count].tolist(), repeat([]))
        return dict(zip(names, found, strict=True))

    def solved(self, policy: Policy) -> ListCandidate:
        """Return the complete order one policy leads to."""
        (candidate,) = self.compare([policy]).values()
        ends = 3 * self.microbatches * self.offsets
        programs = [self.order[a:b].copy() for a, b in pairwise(ends.tolist())]
        return candidate._replace(programs=programs)

    def measured(self, programs: Sequence[Program]) -> ListCandidate | None:
        """Return an order from elsewhere, simulated; None when it does not fit into the memory."""
        work = self.work
        order = Schedule.from_programs("order", work.placement, self.microbatches, programs)
        if work.recompute:
            at: RecomputeAt = "with-backward" if self.late else "just-in-time"
            order = add_recompute(order, np.flatnonzero(work.recomputed).tolist(), at=at)
        peak = measure_memory(order, work.table).peak
        if np.any(peak > work.limits * (1 + TOLERANCE)):
            return None
        timeline = timeline_of(compile_graph(order), work.table)
        share = float(np.max(peak / np.maximum(work.limits, np.finfo(float).tiny)))
        time, other = timeline.makespan, float(timeline.stage_time.max())
        if self.objective == "stage-time":
            time, other = other, time
        key = np.zeros(KEYS)
        key_into(key, 0, time, other, share, self.scale)
        first, second, third = key.tolist()
        return ListCandidate((first, second, third), time, list(programs))

    def meets_bound(self, candidate: ListCandidate) -> bool:
        """Return whether nothing can be better, except where times are equal."""
        return candidate.time <= self.bound * (1 + TOLERANCE)


def _arrays(dtype: str, size: int, count: int = 1) -> list[NDArray[Any]]:
    return [np.zeros(size, dtype) for _ in range(count)]
