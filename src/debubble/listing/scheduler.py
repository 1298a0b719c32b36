"""List scheduling under memory limits, the engine of every schedule computed from costs.

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
of the rank**, for any placement
(:attr:`~debubble.listing.Workload.smallest_limits`).

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
fewer. For many actions on a V in the memory of ZB-V or V-Half a few policies are about as good as
the long search, which then only runs where they stay far from the bound. Published orders can take
part: the result is never worse than the best that fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import Program
from debubble.core.cost_table import CostTable
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.placement import Placement
from debubble.listing.passes import ListCandidate, Passes, key_of
from debubble.listing.policies import few_policies, first_policies
from debubble.listing.workload import Workload

OBJECTIVES = ("makespan", "stage-time")

SMALLEST_BUDGET = 100_000
"""Actions placed in a search, at least: half a second without compiled code."""

LARGE = 7500
LARGE_BUDGET = 150_000
"""The least for schedules of so many actions, for which code is compiled: 10 to 20 milliseconds."""

QUICK_BUDGET = 12_500
"""Actions placed in such a search where a few policies come close to the lower bound."""

FEWEST = 5
"""Policies that are tried in it, at least."""

CLOSE = 0.1
"""Largest distance of that from the lower bound."""

BUDGET_PER_ACTION = 2
"""Actions placed in a search per action of the schedule."""

MOST_PASSES = 256
FEW_MICROBATCHES = 32
"""Policies are compared on this many microbatches, or on twice as many as there are ranks or may be
in flight (at most 2p), where the schedule has at least twice as many as that."""

FINALISTS = 2
"""Policies that are tried on all microbatches after they were compared on fewer."""

REMEMBERED = 256
"""Results of searches that are kept: within one memory several schedules are the same search."""

LARGEST_REMEMBERED = 1 << 15
"""Actions of an order up to which it is."""


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
        When there is not a limit for every rank, or one is below
        :attr:`~debubble.listing.Workload.smallest_limits`.
    """
    assert placement.copies == 1, "list scheduling needs a placement with one copy"
    if objective not in OBJECTIVES:
        raise ParameterError(
            f"objective is '{objective}'; {did_you_mean(str(objective), OBJECTIVES)}"
        )
    given = np.asarray(memory, dtype=np.float64)
    if given.shape not in ((), (placement.ranks,)):
        raise ParameterError(
            f"memory has {given.size} limits for {placement.ranks} ranks; "
            "give one number, or one per rank"
        )
    limits = np.broadcast_to(given, (placement.ranks,)).copy()
    again = () if recompute is None else tuple(recompute.tolist())
    work = Workload(placement, table, microbatches, limits, again)
    work.check_limits()
    passes = Passes(work, objective, late)
    measured = (passes.measured(programs) for programs in published)
    candidates = [candidate for candidate in measured if candidate is not None]
    if not any(passes.meets_bound(candidate) for candidate in candidates):
        if passes.size <= LARGEST_REMEMBERED:
            candidates.append(_remembered(_Question(passes.question(), effort, passes)))
        else:
            candidates.append(_search(passes, effort))
    return min(candidates, key=key_of).programs


@dataclass(frozen=True)
class _Question:
    """Input and options of a search: equal questions have one answer."""

    asked: tuple[object, ...]
    effort: float
    passes: Passes = field(compare=False)


@lru_cache(maxsize=REMEMBERED)
def _remembered(question: _Question) -> ListCandidate:
    """Return the read-only schedule of the best policy."""
    found = _search(question.passes, question.effort)
    for program in found.programs:
        program.setflags(write=False)
    return found


def _search(passes: Passes, effort: float) -> ListCandidate:
    """Try policies within the budget; the order of the best."""
    ranks = passes.work.ranks
    most = int(min(passes.in_flight.max(), passes.microbatches))
    few = max(FEW_MICROBATCHES, 2 * ranks, 2 * min(most, 2 * ranks))
    trial = passes.shortened(few) if passes.microbatches >= 2 * few else passes
    if passes.size < LARGE:
        return _long_search(passes, trial, effort, SMALLEST_BUDGET)
    budget = effort * max(QUICK_BUDGET, passes.size)
    chosen = few_policies(passes.work.placement, float(passes.in_flight.min()))
    chosen = chosen[: max(FEWEST, int(budget / trial.size))]
    if not chosen:
        return _long_search(passes, trial, effort, LARGE_BUDGET)
    found = trial.compare(chosen, batch=len(chosen), tolerance=0.0)
    quick = passes.solved(min(found, key=found.__getitem__))
    if quick.time <= passes.bound * (1 + CLOSE):
        return quick
    return min(quick, _long_search(passes, trial, effort, LARGE_BUDGET), key=key_of)


def _long_search(passes: Passes, trial: Passes, effort: float, least: int) -> ListCandidate:
    """Try known policies, then variations of the best of them, for as long as the budget lasts.

    Policies are compared on `trial`; at least `least` actions are placed.
    """
    budget = effort * max(least, BUDGET_PER_ACTION * passes.size)
    first = first_policies(passes.work.placement)
    tried = trial.compare(first, most=int(effort * MOST_PASSES), budget=budget)
    # Policies that came to the same result would do so again.
    different = {tried[policy].key: policy for policy in reversed(tried)}
    ranking = [different[key] for key in sorted(different)]
    finalists = ranking[: 1 if trial is passes else FINALISTS]
    return min((passes.solved(policy) for policy in finalists), key=key_of)
