"""Strategies for one problem, in their order, with the work each may use.

:data:`STRATEGIES` is the whole list. Each takes a problem, its incumbent, and when to stop; it
offers the incumbent schedules, which the engine measures in the problem's own transfer mode, and
may raise its bound. The quick ones come first. Small problems then go to the exact solver, larger
ones are annealed while orders that repeat are sought at the same time.

Without a time limit the amount of work is fixed. What each strategy finds then depends only on the
problem and the seed, except where CP-SAT runs with two workers that exchange what they find.

Strategies think in overlapped transfers, but for the exact solver; in other modes their orders are
measured as they come. Patterns and lists are made of split or of fused backwards throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby, takewhile

import numpy as np

from debubble.core.actions import Program, among, kinds_of, stages_of
from debubble.core.kinds import GRADIENT_KINDS
from debubble.listing import TOLERANCE
from debubble.optimize.anneal.annealer import refine
from debubble.optimize.anneal.early_recompute import can_recompute_early, recompute_early
from debubble.optimize.anneal.strategies import (
    LARGEST,
    SMALL_ROUNDS,
    anneal,
    anneal_again,
    anneal_order,
    anneal_relaxed,
    count_pairs,
    is_small,
)
from debubble.optimize.bounds.strategies import (
    bound_by_copies,
    bound_by_one_rank,
    bound_by_several_ranks,
)
from debubble.optimize.cp_sat.strategies import (
    move_in_simulator,
    moves_in_simulator,
    solve,
    solve_with_copies,
)
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.periodic.strategies import can_repeat, repeat, repeat_best
from debubble.optimize.problem import Problem, without_recomputes
from debubble.optimize.programs.backward import alternatives, fusable, separate
from debubble.optimize.programs.list_scheduling import list_programs
from debubble.optimize.programs.list_with_copies import can_list, orders_with_copies
from debubble.optimize.programs.offload import with_room_for_copies
from debubble.optimize.programs.published import own_orders, published_orders
from debubble.optimize.stop import Stop

PASSES, PASSED, PASSES_SHARE, MOST_PASSES = 4000, 1_600_000, 0.2, 10.0
"""Passes of the list scheduler that places copies, and actions of all passes, at most; their share
of the time limit, and the largest effort for them."""

MIXES = 6
"""Most rounds in which single backwards are fused or split, and the rest annealed."""

CHANGES = 2000
"""Backwards that are fused or split each time, at most."""

MIXED = ", fused in part"

POLISH_SHARE = 0.15
"""Share of the time limit for annealing the best once more."""

LATE_EFFORT = 0.1
"""Effort of list scheduling where it is only there to have any order in the end."""

MOST_COPIED = 1000
"""Pairs of actions that the solver with copies is asked to order, at most."""


@dataclass(frozen=True)
class Strategy:
    """One way to find orders for a problem, or to raise its bound."""

    name: str
    """Name of the finder in results."""
    run: Callable[[Problem, Incumbent, Stop], None]
    """Offers the incumbent orders or bounds. The problem it gets is the incumbent's without copies
    to the host, see :mod:`debubble.optimize.programs.offload`."""
    applies: Callable[[Problem], bool]
    """Predicate that is true if the strategy is useful for a problem."""
    quick: bool = False
    """True if it belongs to the first round."""
    parallel: bool = False
    """True if it runs at the same time as its neighbors in the list."""


def begin(incumbent: Incumbent) -> None:
    """Run the quick strategies; afterwards there is an order, unless copies leave no room."""
    for strategy in STRATEGIES:
        if strategy.quick and strategy.applies(incumbent.problem):
            strategy.run(incumbent.model, incumbent, incumbent.stop)
    assert incumbent.programs or incumbent.problem.offload, "one at a time always fits"


def improve(incumbent: Incumbent) -> None:
    """Run the other strategies, as long as the incumbent's stop and work allow."""
    stop = incumbent.stop
    fitting = [s for s in STRATEGIES if not s.quick and s.applies(incumbent.problem)]

    def run(strategy: Strategy, seconds: float = float("inf")) -> None:
        # Its time begins when it does.
        if not incumbent.done and not stop():
            strategy.run(incumbent.model, incumbent, Stop(seconds, stop))

    for parallel, some in groupby(fitting, lambda strategy: strategy.parallel):
        together = list(some)
        if not parallel:
            for strategy in together:
                incumbent.start = incumbent.programs
                if incumbent.programs or strategy.run is list_copies:
                    run(strategy)
        elif incumbent.programs:
            incumbent.start = incumbent.programs
            workers = stop.work.workers
            seconds = stop.left * (1 - POLISH_SHARE) * min(1.0, workers / len(together))
            with ThreadPoolExecutor(workers) as threads:
                for done in [threads.submit(run, strategy, seconds) for strategy in together]:
                    done.result()


def published(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Offer registered schedules for the same placement, made for the same costs.

    They run in any time limit: no result is to be slower than any of them. Only with copies,
    where each is simulated many times, is the first order that fits enough then.
    """
    key = (problem.placement.table, problem.cut)
    known = incumbent.known
    orders: Iterable[tuple[str, list[Program]]] = known.get(key, ())
    if key not in known:
        made = list(takewhile(lambda _: not stop.asked, published_orders(problem)))
        orders = made if stop.asked else known.setdefault(key, made)
    offered: set[tuple[bytes, ...]] = set()
    for name, programs in orders:
        for own in own_orders(problem, programs):
            if incumbent.problem.offload and incumbent.programs and stop():
                return
            order = tuple(program.tobytes() for program in own)
            if order not in offered:  # several schedules are one order of few microbatches
                offered.add(order)
                incumbent.offer(own, name)


def list_scheduling(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Offer the list scheduler's order, and those that leave room for copies under way."""
    known = without_recomputes(incumbent.programs)
    candidates = [separate(problem, known)] if known else []
    for tight in with_room_for_copies(incumbent.problem):
        if stop() and incumbent.programs:
            return
        effort = LATE_EFFORT if stop() else 1.0
        incumbent.offer(list_programs(tight, candidates, effort), "list scheduling")


def list_copies(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Offer orders of a list scheduler that places copies as well."""
    until = Stop(PASSES_SHARE * stop.left, stop)
    passes = min(PASSES, PASSED // problem.size) * min(stop.work.effort, MOST_PASSES)
    for programs in orders_with_copies(incumbent.problem, round(passes), until):
        incumbent.offer(programs, "list scheduling with copies")


def mix(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Fuse or split single backwards where that helps, and anneal the rest around them."""
    effort, seed, stages = stop.work.effort, stop.work.seed, fusable(problem)
    fused = replace(problem, backward="fused")
    order = list_programs(fused, ())
    incumbent.offer(order, "list scheduling, fused")
    anneal_order(fused, order, incumbent, stop, SMALL_ROUNDS * min(effort, 2.0))
    for turn in range(max(1, round(MIXES * min(effort, 1.0)))):
        before = incumbent.makespan
        left = max(1, round(CHANGES * effort)) if np.isfinite(effort) else None
        backwards = np.concatenate(incumbent.programs)
        backwards = backwards[
            among(kinds_of(backwards), GRADIENT_KINDS) & stages[stages_of(backwards)]
        ]
        for which in np.random.default_rng(seed + turn).permutation(backwards)[:left]:
            rank = problem.homes[stages_of(which)]
            for changed in alternatives(incumbent.programs[rank], which):
                if incumbent.done or stop():
                    return
                programs = [*incumbent.programs[:rank], changed, *incumbent.programs[rank + 1 :]]
                if incumbent.offer(programs, f"{incumbent.found_by.removesuffix(MIXED)}{MIXED}"):
                    break
        order = refine(problem, incumbent.programs, stop, 2, stop_at=incumbent.bound,
                       seed=seed + turn)  # fmt: skip
        incumbent.offer(order, "annealing")
        if incumbent.makespan >= before * (1 - TOLERANCE):
            return


def has_solver() -> bool:
    """Return whether OR-Tools is installed."""
    from importlib.util import find_spec

    return find_spec("ortools") is not None


def solver_name() -> str:
    """Return the exact solver with its version; empty where there is none."""
    if not has_solver():
        return ""
    from ortools import __version__  # type: ignore[attr-defined]  # its stub leaves it out

    return f"OR-Tools {__version__}"


def _copies(problem: Problem) -> bool:
    few = count_pairs(problem) <= MOST_COPIED
    return bool(problem.offload) and not problem.recomputed.any() and few and has_solver()


def _copied(problem: Problem) -> bool:
    return bool(problem.offload) and has_solver()


def _annealed_whole(problem: Problem) -> bool:
    return not is_small(problem) and problem.size <= LARGEST


STRATEGIES: list[Strategy] = [
    # Best on 149 of the 252 points of the frontier.
    Strategy("published schedules", published, lambda _: True, quick=True),
    # Always finds a schedule; best on 18 points.
    Strategy("list scheduling", list_scheduling, lambda _: True, quick=True),
    # *real*: the bound is 6.4 % lower without it, and the search takes seven times as long.
    Strategy("one exact rank", bound_by_one_rank, lambda _: True),
    # Best on 4 of 12 points with copies.
    Strategy("list scheduling with copies", list_copies, can_list),
    # *small uneven*: 3.7 % slower without it where there is no solver.
    Strategy("annealing", anneal, is_small),
    # *uneven, one chunk*: the bound is 1.1 % lower without it.
    Strategy("several exact ranks", bound_by_several_ranks, lambda p: p.ranks > 1),
    # *small uneven*: the bound is 1.0 % lower without it; best on 4 points.
    Strategy("exact solving", solve, lambda p: is_small(p) and has_solver()),
    # *copies 3, 20*: 2.8 % slower without it.
    Strategy("solving with copies", solve_with_copies, _copies),
    # *copies 2, 20*: the bound is 9.1 % lower without it, in a quarter of the time.
    Strategy("one exact rank with its copies", bound_by_copies, _copied),
    # With 8 ranks, 16 microbatches and little memory 3.3 % faster than list scheduling.
    Strategy("repeating", repeat, lambda p: not is_small(p), parallel=True),
    # *uneven*: 0.7 % slower without it; best on 73 points.
    Strategy("annealing", anneal, _annealed_whole, parallel=True),
    # *wide*: 0.6 % slower without it.
    Strategy("annealing a relaxed optimum", anneal_relaxed, _annealed_whole, parallel=True),
    # One point, of 128 microbatches on 16 uneven ranks, is 0.6 % slower without it.
    Strategy("annealing what repeats", repeat_best, can_repeat),
    # *even*: 0.1 % slower without it.
    Strategy("annealing again", anneal_again, _annealed_whole),
    # *fused, many*: 0.2 % slower without it.
    Strategy("mixing fused and split backwards", mix, lambda p: bool(fusable(p).any())),
    # *blocking*: 5.6 % slower without it.
    Strategy("moving single actions", move_in_simulator, moves_in_simulator),
    # *recompute, p2p*: 0.4 to 1.3 % slower without it.
    Strategy("recomputing early", recompute_early, can_recompute_early),
]
"""Every strategy in the order in which they run, with its worth.

Points are those of ``docs/frontier.md``; names in italics are problems of
``benchmarks/strategies.py``, solved with all strategies and with all but one, at efforts from 0.05
to 1.
"""
