r"""Bounds of long runs: two ranks modeled exactly, with the remaining time of one as a tail.

Two ranks far apart make a stronger relaxation than one
(:mod:`debubble.optimize.bounds.exact_rank`): work that one of them puts off stays in the memory of
the other. But their states are too many in a long run, because states far too late are dropped
late: the test that the remaining work cannot end before the target is weak where waiting takes more
time than is idle by work alone.

**Remaining time.** Let c be a forward of stage s, and r an exact rank whose first stage is s or
later. For a number n of microbatches let X(n) be the least time from the start of r's first forward
to the end of all, of r alone modeled exactly and nothing before its first forward. Then in every
order of m microbatches

    makespan ≥ start of F(b, s) + the way from s to the first stage of r + X(m − b).

*Proof.* Take away all microbatches before b. What is left is an order of m − b microbatches, whose
ranks hold no more memory and wait for no more than before. F of b at the first stage of r starts no
sooner than F(b, s) and the way between the two, and as every chain is in microbatch order no later
microbatch is there any sooner. So everything that is left on r starts after it, which is an order
of the relaxation that X(m − b) bounds: that one has no heads, and its tails are the same, as they
only depend on how many microbatches follow. ∎

So X(m − b) is a tail of F(b, s), and as good as an exact one in the steady state, but for the
waiting that the other rank causes. That makes states few which are not on the way to the target.

**A recurrence.** X(n) is sought for one n after the other: every one that is known is a tail in the
search for the next ones, with s the first stage of r itself. X never falls, as the last n − 1 of n
microbatches are an order as well.

Whole numbers are the same relaxation as in :mod:`debubble.optimize.bounds.exact_rank`: starts there
are at no time later than those of an order whose times are multiplied and not rounded, of which X,
from times that are rounded down, is a bound, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from debubble.listing import TOLERANCE
from debubble.optimize.bounds._exact_rank_kernel import Relaxation
from debubble.optimize.bounds.exact_rank import (
    StateBudget,
    ends_before,
    factor_of,
    relax_others,
)
from debubble.optimize.cp_sat.rounding import Whole, all_times, factor_for, whole_times
from debubble.optimize.problem import Problem
from debubble.optimize.stop import Stop

FINENESS = 1 / 60
"""Tolerance of X, relative to the work of a rank for one microbatch; the loss is smaller."""

LARGEST_STEP = 1.0
"""Largest distance of a target below the known bound, relative to the same work."""

MOST_OF_ONE = 100_000
"""States that are looked at for one target of X."""


def far_bound(
    problem: Problem, ranks: Sequence[int], low: float, best: float, left: StateBudget, stop: Stop
) -> float:
    """Return the largest target that two ranks do not meet; the first is the strongest.

    Parameters are those of :func:`debubble.optimize.bounds.exact_rank.exact_rank_bound`.
    """
    strongest = ranks[0]
    factor = min(factor_for(all_times(problem), best), factor_of(problem, strongest, best))
    rests = follow(problem, strongest, factor, stop)
    kept = with_rests(problem, relax_others(problem, ranks, factor), ranks, rests, factor)
    # Arrivals differ by little else than what the forwards take that come one after the other.
    grid = max(1, int(kept.times[0]))
    bound = int(low * factor * (1 + TOLERANCE))
    highest = int(np.ceil(best * factor * (1 - TOLERANCE)))
    step = max(1, int(LARGEST_STEP * problem.work[strongest] * factor))
    while bound < highest and step and not stop() and not left.spent:
        target = min(bound + step, highest)
        if ends_before(kept, target, left, stop, grid) is False:
            bound = target
        else:
            highest = target - 1
        step = min(step, (highest - bound + 1) // 2)
    return max(low, bound / factor)


def follow(problem: Problem, rank: int, factor: float, stop: Stop) -> Whole:
    """Return X of 0, 1, … m microbatches, with times multiplied by a factor; shape ``(m + 1,)``."""
    work = float(problem.work[rank]) * factor
    fine, rests = max(1, int(work * FINENESS)), np.zeros(problem.microbatches + 1, dtype=np.int64)
    for n in range(1, problem.microbatches + 1):
        rests[n] = rests[n - 1]
        if stop():
            continue
        short = problem.shortened(n)
        kept = with_rests(
            short, relax_others(short, [rank], factor), [rank], rests[: n + 1], factor
        )
        kept = kept._replace(heads=np.zeros_like(kept.heads))
        step = max(1, int(work))
        while step >= fine and not stop():
            left = StateBudget(MOST_OF_ONE)
            if ends_before(kept, int(rests[n]) + step, left, stop) is False:
                rests[n] += step
            else:
                step //= 2
    return rests


def with_rests(
    problem: Problem, kept: Relaxation, ranks: Sequence[int], rests: Whole, factor: float
) -> Relaxation:
    """Return the relaxation with the remaining time of its first rank as tails of forwards."""
    goal = int(np.flatnonzero(problem.homes == ranks[0])[0])
    ways = np.append(0.0, np.cumsum(problem.pass_times[0, :-1] + problem.forward_link[1:]))
    tails = kept.tails.copy()
    stages = np.flatnonzero(np.isin(problem.homes, ranks)).tolist()
    for chain, stage in enumerate(stages):
        if stage <= goal:
            way = int(whole_times(ways[goal] - ways[stage], factor))
            tails[chain] = np.maximum(tails[chain], rests[:0:-1] + way - kept.times[chain])
    return kept._replace(tails=tails)
