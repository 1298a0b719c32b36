"""List scheduling under memory limits: the engine behind every schedule computed from costs.

**One pass.** Ranks take turns in the order of time. A rank that becomes free looks at the next
microbatch of each of its stages: forwards and backwards for input that could start now or at a
known time, and pending backwards for weights. It starts the most urgent forward or backward that
can start soonest. Backwards for weights fill gaps and make room when a forward needs memory.
Every stage keeps microbatch order. What "urgent" means is a *policy* of seven numbers
(:data:`debubble.listing.policies.LEVELS`):

* Due dates choose between forwards and backwards. Microbatch b is due at a stage at b·T plus the
  time a lone microbatch takes to get there, stretched by one factor on the way up and by another on
  the way down, plus an offset at the turn; T is the busiest rank's work for a microbatch. Small
  factors finish old microbatches first, large ones keep the early stages busy.
* Caps keep a stage from filling memory that its rank's other stages need. By Little's law a stage
  that keeps a pace of x microbatches per time and holds each for a time t has x·t in flight. All
  stages get the same x, the largest that every rank's memory allows; t is the round trip of a
  lone microbatch plus a delay, and x·t is rounded up or down.
* How long a gap must be for a backward for weights, as a part of it, and how long an urgent forward
  is waited for although something else could start.

**No deadlock.** Let f(s) and i(s) count the forwards and backwards for input started at stage s,
a(s) be its activation and M(r) the limit of rank r. Besides fitting into what is free, a forward
may start only if afterwards, summed over the stages s of its rank,

    Σ a(s) · max(1, f(s) − f(S−1)) ≤ M(r).

As f(S−1) only grows, this stays true. Suppose all ranks wait. Then no backward for weights is
pending, and no backward for input has its input; so every microbatch that has passed the last
stage is done everywhere, i(s) = f(S−1), and rank r holds Σ a(s)·(f(s) − f(S−1)). If work is left,
microbatch b = f(S−1) has its input at the first stage with f(s) = b. Adding a(s) there leaves the
memory at most at the sum above, which that forward does not change, and no cap applies to a
stage with nothing in flight: the forward can start. Its rank knows, for it looks again when an
input arrives and after all it runs: if it refused b before, then because of older microbatches,
whose backwards it has run since. So the ranks do not all wait.

The condition is also necessary. When b passes the last stage it holds an activation at every
stage, and so does every younger microbatch wherever it has been: f(s) − b at stage s. At the start
it reads Σ a(s) ≤ M(r): **the smallest limit that works is what one microbatch leaves on all stages
of the rank**, for any placement (:func:`smallest_memory`).

**Recomputes.** Where a stage recomputes, R and the backward after it are one action, which may
begin R before the gradient arrives. A forward takes a(s), the backward takes b(s) more when it
begins, and frees both. So a backward may have to wait for memory. It never waits forever if a rank
can always run its backwards by microbatch, the oldest first, from what it holds, and forwards are
only started where that stays true (oldest first: i(s) says which are done, and running another one
first leaves more room). With d(r) = max over stages s of b(s) − Σ a(t) over later stages t of the
rank, the condition above becomes Σ a(s) · max(1, f(s) − f(S−1)) + d(r) ≤ M(r): once microbatch
f(S−1) is everywhere, its backwards fit, too. At the start it reads, for every stage s, b(s) plus
Σ a(t) over stages t ≤ s within M(r): the smallest limit. Keys and values are such a b(s) as well.

**Many passes.** No policy is best everywhere. A list of policies is tried in order, then variations
of the best, until a lower bound is met or a budget is spent; the budget counts placed actions, so
that results do not depend on the machine. A pass is dropped as soon as the time some rank has
lost shows that it cannot come near the best. Policies for many microbatches are compared on
fewer. Published orders can take part: the result is never worse than the best that fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import Kind, Program
from debubble.core.cost_table import CostTable
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.engine.graph import compile_graph
from debubble.engine.memory import measure_memory
from debubble.engine.timeline import Timeline
from debubble.listing.kernel import NEVER, SCORES, list_schedule
from debubble.listing.policies import Policy, first_policies, variations
from debubble.lowering.recompute import RecomputeAt, add_recompute

OBJECTIVES = ("makespan", "stage-time")

TOLERANCE = 1e-9
"""Relative slack of memory limits and of equal times."""

SMALLEST_BUDGET = 100_000
"""Actions placed in a search, at least: half a second without compiled code."""

LARGE = 7500
LARGE_BUDGET = 150_000
"""The least for schedules of so many actions, for which code is compiled: 10 to 20 milliseconds."""

BUDGET_PER_ACTION = 2
"""Actions placed in a search per action of the schedule."""

MOST_PASSES = 256
FEW_MICROBATCHES = 32
"""Policies are compared on this many microbatches, or on twice as many as there are ranks or may be
in flight (at most 2p), where the schedule has at least twice as many as that."""

FINALISTS = 2
"""Policies that are tried on all microbatches after they were compared on fewer."""

BATCH = 8
"""Policies per call of the kernel."""

PARENTS = 10
"""How many of the best policies are varied."""

GIVE_UP = 0.02
"""How much worse than the best a pass may be before it is dropped."""


def schedule(
    placement: Placement,
    table: CostTable,
    microbatches: int,
    memory: ArrayLike,
    *,
    objective: str = "makespan",
    recompute: NDArray[np.bool_] | None = None,
    late: bool = False,
    published: Iterable[Sequence[Program]] = (),
    effort: float = 1.0,
) -> list[Program]:
    """Order the work of all ranks for given costs and memory limits.

    Parameters
    ----------
    placement
        Any placement of one copy of the model.
    table
        Costs of every stage and link; overlapped pairs and full backwards are not used.
    microbatches
        Microbatches m of one iteration.
    memory
        Limit for the activations on each rank, one number or shape ``(ranks,)``, in the unit of
        ``table.activation``.
    objective
        ``"makespan"`` or ``"stage-time"`` (the largest over ranks). Ties are broken by the
        other one, then by memory.
    recompute
        Whether each stage recomputes its forward right before the backward, shape ``(stages,)``.
    late
        Whether recomputes wait for the gradient, too.
    published
        Complete orders that take part in the choice where they fit into the memory.
    effort
        Multiplies how many policies are tried.

    Returns
    -------
    list of Program
        F, I and W actions of every rank; every stage in microbatch order. R is left out: it stands
        before every I of a stage that recomputes.

    Raises
    ------
    ParameterError
        When a limit is below :func:`smallest_memory`.
    """
    assert placement.copies == 1, "list scheduling needs a placement with one copy"
    if objective not in OBJECTIVES:
        raise ParameterError(
            f"objective is '{objective}'; {did_you_mean(str(objective), OBJECTIVES)}"
        )
    limits = check_memory(placement, table, memory, recompute)
    problem = _Problem(placement, table, microbatches, limits, objective, recompute, late)
    measured = (problem.measured(programs) for programs in published)
    candidates = [candidate for candidate in measured if candidate is not None]
    if not any(problem.meets_bound(candidate) for candidate in candidates):
        candidates.append(_search(problem, effort))
    return min(candidates, key=_key).programs


def smallest_memory(
    placement: Placement, table: CostTable, recompute: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Smallest limit of every rank under which a schedule exists, shape ``(ranks,)``.

    It is what one microbatch leaves on the rank's stages together: before its first backward it
    has been through all of them, and one microbatch at a time needs no more. With recomputes it is
    what it leaves on the stages up to one, and what the backward there takes, at most.
    """
    stored, more = _footprint(table, recompute)
    needed = np.zeros(placement.ranks)
    held = np.zeros(placement.ranks)
    for stage, rank in enumerate(placement.ranks_of_stages):
        held[rank] += stored[stage]
        needed[rank] = max(needed[rank], held[rank] + more[stage])
    return needed


def _footprint(
    table: CostTable, recompute: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What a forward takes, and what the backward takes beside that; shape ``(stages,)``."""
    chosen = np.zeros(len(table.activation), dtype=bool) if recompute is None else recompute
    return table.footprint(chosen)


def _per_rank(placement: Placement, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of values per stage over the stages of each rank."""
    sums = np.zeros(placement.ranks)
    np.add.at(sums, placement.ranks_of_stages, values)
    return sums


def check_memory(
    placement: Placement,
    table: CostTable,
    memory: ArrayLike,
    recompute: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """Memory limits as one number per rank, shape ``(ranks,)``.

    Raises
    ------
    ParameterError
        When there are too many or too few numbers, or one is too small for any schedule.
    """
    given = np.asarray(memory, dtype=np.float64)
    if given.shape not in ((), (placement.ranks,)):
        raise ParameterError(
            f"memory has {given.size} limits for {placement.ranks} ranks; "
            "give one number, or one per rank"
        )
    limits = np.broadcast_to(given, (placement.ranks,)).copy()
    needed = smallest_memory(placement, table, recompute)
    short = np.flatnonzero(~(limits >= needed * (1 - TOLERANCE / 2)))
    if len(short):
        rank = int(short[np.argmax(needed[short])])
        verb = "leaves" if recompute is None or not recompute.any() else "needs"
        raise ParameterError(
            f"memory {limits[rank]:.12g} is too small for rank {rank}, where one microbatch "
            f"{verb} {needed[rank]:.12g}; give at least {needed[rank]:.12g}"
        )
    return limits


class _Candidate(NamedTuple):
    """A result; `programs` is empty while policies are only compared."""

    key: tuple[float, float, float]
    """What to minimise: the objective, the other time, the largest share of a memory limit. Times
    are rounded, so that rounding errors do not decide."""
    time: float
    programs: list[Program]


def _key(candidate: _Candidate) -> tuple[float, float, float]:
    return candidate.key


class _Problem:
    """A problem as the arrays of the kernel, with its scratch space."""

    def __init__(
        self,
        placement: Placement,
        table: CostTable,
        microbatches: int,
        limits: NDArray[np.float64],
        objective: str,
        recompute: NDArray[np.bool_] | None = None,
        late: bool = False,
    ) -> None:
        self.placement = placement
        self.table = table
        self.microbatches = microbatches
        self.limits = limits
        self.objective = objective
        self.recompute = recompute
        self.late = late
        self.size = 3 * placement.stages * microbatches

        ranks, stages = placement.ranks, placement.stages
        homes = np.array(placement.ranks_of_stages)
        stages_on = np.bincount(homes, minlength=ranks)
        self.offsets = np.concatenate([[0], np.cumsum(stages_on)])
        F, I, W = (np.array(table.duration[kind]) for kind in (Kind.F, Kind.I, Kind.W))
        stored, more = _footprint(table, recompute)
        redo = np.zeros(stages) if recompute is None else recompute * table.duration[Kind.R]
        I += redo
        work = _per_rank(placement, F + I + W)
        self.period = float(work.max())

        # When a microbatch that is alone gets everywhere.
        up = np.append(0.0, table.link[homes[:-1], homes[1:]])
        # A recompute that needs no gradient can begin before it arrives.
        ahead = 0.0 if late else redo[:-1]
        down = np.append(table.link[homes[1:], homes[:-1]] - ahead, 0.0)
        forward_at = np.append(0.0, np.cumsum(F[:-1] + up[1:]))
        way_back = np.append(0.0, np.cumsum((I[1:] + down[:-1])[::-1]))[::-1]
        input_at = forward_at[-1] + F[-1] + way_back
        lifespan = input_at + I - forward_at

        head = np.full(ranks, -np.inf)
        for stage in reversed(range(stages)):
            head[homes[stage]] = forward_at[stage]
        alone = float(input_at[0] + I[0] + W[0])
        self.bound = (
            microbatches * self.period
            if objective == "stage-time"
            else max(alone, float((head + microbatches * work).max()))
        )

        filled = _per_rank(placement, stored)
        # What the backwards of a microbatch take beside what it leaves on all stages.
        extra = smallest_memory(placement, table, recompute) - filled
        shares = np.divide(limits - extra, filled, where=filled > 0, out=np.full(ranks, np.inf))
        self.most_in_flight = int(min(shares.max(), microbatches))
        # Beyond everything at once a limit means nothing, and infinity has no shares.
        most = _per_rank(placement, stored + more).max()
        memory = np.minimum(limits, 1e6 * microbatches * most) * (1 + TOLERANCE)
        self._fixed = (
            homes, self.offsets, np.argsort(homes, kind="stable"), F, I, W, up, down,
            stored, more, np.array(table.kept), forward_at, input_at, lifespan,
            memory, filled, extra, _per_rank(placement, stored * lifespan), microbatches * work,
        )  # fmt: skip
        cells = stages * (microbatches + 1)
        leaves = 1 << (ranks - 1).bit_length()
        self._scratch = (
            *_arrays("f8", cells, 2), *_arrays("i8", stages, 4), *_arrays("f8", stages, 6),
            *_arrays("f8", ranks, 3), *_arrays("i8", ranks), *_arrays("f8", ranks + 1),
            *_arrays("i8", 2 * leaves),
        )  # fmt: skip
        self._order = np.zeros(self.size, dtype=np.int64)

    def shortened(self, microbatches: int) -> _Problem:
        """The same problem with fewer microbatches."""
        return _Problem(
            self.placement, self.table, microbatches, self.limits, self.objective, self.recompute,
            self.late,
        )  # fmt: skip

    def candidate(self, makespan: float, stage_time: float, share: float) -> _Candidate:
        """A result without programs."""
        times = (makespan, stage_time)
        if self.objective == "stage-time":
            times = (stage_time, makespan)
        scale = self.microbatches * self.period or 1.0
        key = (round(times[0] / scale, 9), round(times[1] / scale, 9), round(share, 6))
        return _Candidate(key, times[0], [])

    def run(
        self, policies: Sequence[Policy], give_up: float = NEVER
    ) -> tuple[list[_Candidate], int]:
        """Times of some policies, and how many actions were placed to find them."""
        scores = np.zeros(SCORES * len(policies))
        list_schedule.run(
            len(policies) * self.size,
            np.array(policies, dtype=np.float64).ravel(),
            self.microbatches,
            self.period,
            give_up,
            GIVE_UP,
            self.objective == "stage-time",
            *self._fixed,
            *self._scratch,
            scores,
            self._order,
        )
        makespans, stage_times, shares, steps = scores.reshape(-1, SCORES).T.tolist()
        return list(map(self.candidate, makespans, stage_times, shares)), int(sum(steps))

    def solved(self, policy: Policy) -> _Candidate:
        """The complete order one policy leads to."""
        (candidate,), _ = self.run([policy])
        ends = 3 * self.microbatches * self.offsets
        programs = [self._order[a:b].copy() for a, b in pairwise(ends.tolist())]
        return candidate._replace(programs=programs)

    def measured(self, programs: Sequence[Program]) -> _Candidate | None:
        """An order from elsewhere, simulated; None when it does not fit into the memory."""
        order = Schedule.from_programs("order", self.placement, self.microbatches, programs)
        if self.recompute is not None:
            at: RecomputeAt = "with-backward" if self.late else "just-in-time"
            order = add_recompute(order, np.flatnonzero(self.recompute).tolist(), at=at)
        peak = measure_memory(order, self.table).peak
        if np.any(peak > self.limits * (1 + TOLERANCE)):
            return None
        graph = compile_graph(order)
        vector = graph.cost_vector(self.table)
        timeline = Timeline(graph, self.table, vector, graph.evaluate(vector))
        share = np.max(peak / np.maximum(self.limits, np.finfo(float).tiny))
        candidate = self.candidate(timeline.makespan, timeline.stage_time.max(), float(share))
        return candidate._replace(programs=list(programs))

    def meets_bound(self, candidate: _Candidate) -> bool:
        """Whether nothing can be better, except where times are equal."""
        return candidate.time <= self.bound * (1 + TOLERANCE)


def _arrays(dtype: str, size: int, count: int = 1) -> list[NDArray[Any]]:
    return [np.zeros(size, dtype) for _ in range(count)]


def _search(problem: _Problem, effort: float) -> _Candidate:
    """Try policies within the budget; the order of the best."""
    ranks = problem.placement.ranks
    few = max(FEW_MICROBATCHES, 2 * ranks, 2 * min(problem.most_in_flight, 2 * ranks))
    trial = problem.shortened(few) if problem.microbatches >= 2 * few else problem
    least = LARGE_BUDGET if problem.size >= LARGE else SMALLEST_BUDGET
    budget = effort * max(least, BUDGET_PER_ACTION * problem.size)
    policies = first_policies(problem.placement)
    random = Random(0)
    tried: dict[Policy, tuple[float, float, float]] = {}
    batch = list(policies[:BATCH])
    best = NEVER
    while batch:
        batch = batch[: max(1, int(budget / trial.size))]
        candidates, steps = trial.run(batch, best * (1 + GIVE_UP))
        budget -= steps
        tried.update(zip(batch, map(_key, candidates), strict=True))
        best = min(best, *(candidate.time for candidate in candidates))
        wanted = min(BATCH, int(budget / trial.size), int(effort * MOST_PASSES) - len(tried))
        if wanted < 1 or any(map(trial.meets_bound, candidates)):
            break
        batch = list(policies[len(tried) : len(tried) + wanted])
        if not batch:
            parents = sorted(tried, key=tried.__getitem__)[:PARENTS]
            batch = variations(parents, wanted, tried, random)
    # Policies that came to the same result would do so again.
    different = {tried[policy]: policy for policy in reversed(tried)}
    ranking = [different[key] for key in sorted(different)]
    finalists = ranking[: 1 if trial is problem else FINALISTS]
    return min((problem.solved(policy) for policy in finalists), key=_key)
