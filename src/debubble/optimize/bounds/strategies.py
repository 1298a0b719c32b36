"""Strategies that raise and explain the bound of an incumbent, by ranks modeled exactly.

Which ranks: the one that is busy and has memory taken the longest is the strongest by itself; at
even times the one at the turn of a V, and the first one of a loop. Then the others one by
one, and the strongest two, three and more together; if these are all ranks, nothing is relaxed but
the modes of transfers. With more effort or a time limit, in long runs the strongest rank
and the one that is furthest from it come last (:mod:`debubble.optimize.bounds.exact_rank_long`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from debubble.core.kinds import COPY_KINDS
from debubble.core.units import number
from debubble.listing import TOLERANCE
from debubble.optimize.bounds.exact_rank import StateBudget, exact_rank_bound
from debubble.optimize.bounds.exact_rank_copies import copied_bound, may_help
from debubble.optimize.bounds.exact_rank_long import far_bound
from debubble.optimize.bounds.paths import areas, longest_paths
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import relaxed
from debubble.optimize.stop import Stop

STATES = 1_000_000
"""States of the strongest rank that are looked at, times the effort; about two seconds."""

OTHER_STATES, SEVERAL_STATES = 200_000, 1_000_000
"""States of all other ranks together, and of all sets of several ranks, times the effort."""

ONE_RANK_SHARE, RANKS_SHARE = 0.2, 0.4
"""Shares of the time limit for bounds by one rank, and by several."""

LONG, LONG_EFFORT = 4, 2.0
"""Microbatches of a long run for each rank, and the effort from which its two ranks are exact."""

FAR_STATES, FAR_CELLS = 2_000_000, 12_000_000
"""States of these two ranks, times the effort, and states times columns at once."""

FAR_SHARE = 0.7
"""Their share of the time for several ranks."""

COPIED_WORK, COPIED_SHARE = 24.0, 0.2
"""Work of the solver for ranks with their copies, in its own unit of about a second, times the
effort, and their share of the time."""


def bound_by_one_rank(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Raise the bound by single ranks modeled exactly, strongest first."""
    easy, until = relaxed(problem), Stop(ONE_RANK_SHARE * stop.left, stop)
    first, *others = single_ranks(easy)
    _keep(easy, [first], incumbent, STATES, until)
    _keep(easy, others, incumbent, OTHER_STATES, until)


def bound_by_several_ranks(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Raise the bound by two, three and more of the strongest ranks, modeled together."""
    easy, until = relaxed(problem), Stop(RANKS_SHARE * stop.left, stop)
    far = is_long(problem) and stop.work.effort >= LONG_EFFORT
    near = Stop((1 - FAR_SHARE) * until.left, until) if far else until
    _keep(easy, several_ranks(easy), incumbent, SEVERAL_STATES, near)
    if far:
        _keep_far(easy, incumbent, until)


def bound_by_copies(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Raise the bound by single ranks modeled with their copies of activations to the host.

    First the one that has stage 0, whose forwards never wait, then the strongest without copies.
    """
    del problem
    asked, until = incumbent.problem, Stop(COPIED_SHARE * stop.left, stop)
    left = COPIED_WORK * stop.work.effort
    others = strongest(relaxed(replace(asked, offload=())))[:1]
    for rank in dict.fromkeys([int(asked.homes[0]), *others]):
        if incumbent.done or until() or left <= 0:
            return
        if may_help(asked, rank):
            bound, used = copied_bound(
                asked, rank, incumbent.bound, incumbent.makespan, left, until
            )
            left -= used
            if bound > incumbent.bound:
                incumbent.prove(bound, explain_copies(asked, rank))


def is_long(problem: Problem) -> bool:
    """Return whether most of a schedule is steady state, where two ranks far apart say the most."""
    return problem.ranks > 2 and problem.microbatches >= LONG * problem.ranks


def _keep_far(easy: Problem, incumbent: Incumbent, stop: Stop) -> None:
    if incumbent.done or stop():
        return
    left = StateBudget(FAR_STATES * stop.work.effort, FAR_CELLS)
    ranks = far_ranks(easy)
    bound = far_bound(easy, ranks, incumbent.bound, incumbent.makespan, left, stop)
    if bound > incumbent.bound:
        incumbent.prove(bound, explain_ranks(easy, ranks, bound))


def _keep(
    easy: Problem, sets: Sequence[Sequence[int]], incumbent: Incumbent, states: float, stop: Stop
) -> None:
    left = StateBudget(states * stop.work.effort)
    for ranks in sets:
        if incumbent.done or stop() or left.spent:
            return
        bound = exact_rank_bound(easy, ranks, incumbent.bound, incumbent.makespan, left, stop)
        if bound > incumbent.bound:
            incumbent.prove(bound, explain_ranks(easy, ranks, bound))
        elif len(ranks) > 1:
            # One more rank hardly helps where the last one has not, and takes much longer.
            return


def single_ranks(problem: Problem) -> list[tuple[int, ...]]:
    """Return every rank by itself, strongest first."""
    return [(rank,) for rank in strongest(problem)]


def several_ranks(problem: Problem) -> list[tuple[int, ...]]:
    """Return the strongest two ranks, three ranks and so on."""
    ranks = strongest(problem)
    return [tuple(ranks[:number]) for number in range(2, len(ranks) + 1)]


def far_ranks(problem: Problem) -> tuple[int, int]:
    """Return the strongest rank, and the one that is furthest from it."""
    first = strongest(problem)[0]
    return first, max(range(problem.ranks), key=lambda rank: abs(rank - first))


def strongest(problem: Problem) -> list[int]:
    """Return ranks by the sum of their busy time, the time before it, and memory over time.

    Work alone does not distinguish ranks with equal work. Where activations stay the longest there
    is the least room to put work off.
    """
    heads, tails, *_ = longest_paths(problem)
    first = problem.least_per_rank(heads[0, :, 0])
    spans = areas(problem, heads, tails) + first + problem.work * problem.microbatches
    spans += TOLERANCE * np.arange(problem.ranks)
    ranks: list[int] = np.argsort(-spans, kind="stable").tolist()
    return ranks


def strongest_rank_bound(
    easy: Problem, low: float, best: float, states: float, stop: Stop | None = None
) -> float:
    """Return the bound by the strongest rank between a bound and a makespan, as far as states go.

    The problem has relaxed times.
    """
    return exact_rank_bound(
        easy, strongest(easy)[:1], low, best, StateBudget(states), stop or Stop()
    )


def explain_ranks(problem: Problem, ranks: Sequence[int], bound: float) -> str:
    """Explain why the exact ranks cannot be faster."""
    heads, tails, *_ = longest_paths(problem)
    rank = ranks[0]
    stages = np.flatnonzero(problem.homes == rank)
    first = float(heads[0, stages[0], 0])
    last = float(tails[1:, stages].min())
    busy = float(problem.work[rank]) * problem.microbatches
    memory = ""
    fits = _forwards_that_fit(problem, rank)
    if fits < problem.microbatches * len(stages):
        ends = heads[:, stages, 0] + problem.pass_times[:, stages]
        freed = float(ends[problem.freed[:, stages] > 0].min(initial=np.inf))
        memory = (
            f"rank {rank} cannot free memory before {number(freed)} and has room for no more than "
            f"{fits} forward{'s' if fits > 1 else ''} until then; "
        )
    if len(ranks) > 1:
        names = ", ".join(map(str, sorted(ranks)[:-1]))
        return f"{memory}no order of ranks {names} and {max(ranks)} together ends sooner"
    waits = number(max(bound - first - last - busy, 0.0))
    drain = f", and {number(last)} follows" if last else ""
    who = "it" if memory else f"rank {rank}"
    return (
        f"{memory}{who} cannot begin before {number(first)}, has {number(busy)} to do{drain}, and "
        f"waits {waits} or more in any order"
    )


def explain_copies(problem: Problem, rank: int) -> str:
    """Explain why a rank with its copies cannot be faster."""
    own = np.flatnonzero((problem.homes == rank) & np.array(problem.offload)).tolist()
    times = [problem.table.copy(COPY_KINDS[0], stage, None) for stage in own]
    fits = _forwards_that_fit(problem, rank)
    low, high = number(min(times)), number(max(times))
    return (
        f"rank {rank} has room for no more than {fits} forward{'s' if fits != 1 else ''} at once, "
        f"and copies one activation at a time, in {low if low == high else f'{low} to {high}'} "
        f"each way; no order of what it computes and copies ends sooner"
    )


def _forwards_that_fit(problem: Problem, rank: int) -> int:
    """Return forwards a rank has room for before it frees any memory."""
    sizes = np.tile(problem.taken[0, problem.homes == rank], problem.microbatches)
    limit = problem.limits_with_slack[rank]
    return int(np.count_nonzero(np.cumsum(np.sort(sizes)) <= limit))
