"""Strategies for one problem, in their order, with the work each may use.

:data:`STRATEGIES` is the whole list. Each takes a problem, its incumbent, and when to stop; it
offers the incumbent orders, which the engine measures in the problem's own transfer mode, and may
raise its bound. The quick ones come first: published schedules on the same placement, and the list
scheduler. If they do not meet the lower bound,

* where activations may be copied to the host, orders that leave room for copies are annealed;
* the bound is raised by single ranks kept exactly, later by several;
* with copies and one stage on every rank, a list scheduler places them as well;
* small problems are annealed and then handed to the exact solver with the rest of the time, once
  more with their copies where these are few actions; ranks with copies are kept once more, too;
* others are annealed while patterns are sought in parallel: for one microbatch, then for two; each
  is unrolled, its ends are repaired, and its middle is stretched. Of many microbatches, an order of
  few is annealed, and what repeats in it is stretched. An order by which the strongest rank does
  what is best for it alone is annealed as well. What repeats in the best of all is annealed for
  its period, and the best once more.

Without a time limit the amount of work is fixed. What each strategy finds then depends only on the
problem and the seed, except where CP-SAT runs with two workers that exchange what they find.

Strategies think in overlapped transfers, but for the exact solver; in other modes their orders are
measured as they come. Patterns and lists are made of split or of fused backwards throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, takewhile

import numpy as np

from debubble.core.actions import Program, among, kinds_of, stages_of
from debubble.core.kinds import GRADIENT_KINDS
from debubble.engine.graph import MEETING
from debubble.listing import TOLERANCE
from debubble.lowering.offload import COPIES
from debubble.optimize.anneal.annealer import refine
from debubble.optimize.anneal.early_recompute import run_ahead, runs_ahead
from debubble.optimize.anneal.simulated_moves import HOT, makespan_in_engine, move_actions
from debubble.optimize.anneal.strategies import (
    LARGEST,
    SMALL_ROUNDS,
    anneal,
    anneal_again,
    anneal_order,
    anneal_relaxed,
    pairs,
    small,
)
from debubble.optimize.bounds.strategies import keep_copies, keep_one_rank, keep_several_ranks
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.periodic.strategies import can_repeat, patterns, repeat, repeat_best
from debubble.optimize.problem import Problem, without_recomputes
from debubble.optimize.programs.backward import alternatives, fusable, relaxed, separate
from debubble.optimize.programs.list_scheduling import listed
from debubble.optimize.programs.list_with_copies import can_list, orders_with_copies
from debubble.optimize.programs.offload import tighter
from debubble.optimize.programs.published import own_orders, published_orders
from debubble.optimize.stop import Stop

SMALL_MIXED = 500
"""Pairs of actions up to which the exact solver chooses which backwards are fused as well."""

COPIED_SHARE = 0.2
"""Share of the work of the exact solver where it does not know of the problem's copies."""

COPIES_WORK, MOST_COPIED = 5.0, 1000
"""Work of the solver that knows of copies, in its own unit of about a second, and the most pairs of
actions that it is asked to order."""

TIGHT_ROUNDS = 1
"""Rounds of annealing for each room that is left for copies under way."""

PASSES, PASSED, PASSES_SHARE, MOST_PASSES = 4000, 1_600_000, 0.2, 10.0
"""Passes of the list scheduler that places copies, and actions of all passes, at most; their share
of the time limit, and how much effort they take at most."""

MIXES = 6
"""How often single backwards are fused or split, and the rest annealed, at most."""

CHANGES = 2000
"""Backwards that are fused or split each time, at most."""

MIXED = ", fused in part"

POLISH_SHARE = 0.15
"""Share of the time limit for annealing the best once more."""

LATE_EFFORT = 0.1
"""Effort of list scheduling where it is only there to have any order in the end."""

EXACT_WORK = 60.0
"""Work of the exact solver, in its own unit of about a second."""

AHEAD_SHARE = 0.5
"""Share of the time limit for solving as if R could not run ahead of its backward."""

MOVES, MOVED_SHARE, MOST_MOVING = 8000, 0.2, 5.0
"""Moves that are simulated, the share of the time that the exact solver leaves for them, and how
much effort they take at most."""

MEETING_SHARE = 0.2
"""Share of it with transfers for which ranks meet: what the solver knows of them is not all."""


@dataclass(frozen=True)
class Strategy:
    """One way to find orders for a problem, or to raise its bound.

    Parameters
    ----------
    name
        What is said to have found the order.
    run
        Offers the incumbent orders or bounds. The problem it gets is the incumbent's without
        copies to the host, see :mod:`debubble.optimize.programs.offload`.
    applies
        Whether it is of use for a problem.
    quick
        Whether it belongs to a first look.
    parallel
        Whether it runs beside the ones next to it in the list.
    """

    name: str
    run: Callable[[Problem, Incumbent, Stop], None]
    applies: Callable[[Problem], bool]
    quick: bool = False
    parallel: bool = False


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
                if incumbent.programs or strategy.run is anneal_with_room:
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

    However short the time: what is found is not to be slower than any of them. Only with copies,
    where each is simulated many times, is the first order that fits enough then.
    """
    key = (problem.placement.table, problem.cut)
    known = incumbent.known
    orders: Iterable[tuple[str, list[Program]]] = known.get(key, ())
    if key not in known:
        made = list(takewhile(lambda _: not stop.asked, published_orders(problem)))
        orders = made if stop.asked else known.setdefault(key, made)
    for name, programs in orders:
        for own in own_orders(problem, programs):
            if incumbent.problem.offload and incumbent.programs and stop():
                return
            incumbent.offer(own, name)


def list_scheduling(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Offer the list scheduler's order, and those that leave room for copies under way."""
    known = without_recomputes(incumbent.programs)
    candidates = [separate(problem, known)] if known else []
    for tight in tighter(incumbent.problem):
        if stop() and incumbent.programs:
            return
        effort = LATE_EFFORT if stop() else 1.0
        incumbent.offer(listed(tight, candidates, effort), "list scheduling")


def anneal_with_room(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Anneal orders that leave more and more room for copies under way."""
    del problem
    for tight in tighter(incumbent.problem):
        if incumbent.done or stop():
            return
        share = Stop(stop.left / (1 + len(COPIES)), stop)
        anneal_order(
            tight, listed(tight, ()), incumbent, share, TIGHT_ROUNDS * min(stop.work.effort, 2.0)
        )


def list_copies(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Offer orders of a list scheduler that places copies as well."""
    until = Stop(PASSES_SHARE * stop.left, stop)
    passes = min(PASSES, PASSED // problem.size) * min(stop.work.effort, MOST_PASSES)
    for programs in orders_with_copies(incumbent.problem, round(passes), until):
        incumbent.offer(programs, "list scheduling with copies")


def solve(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Solve the whole problem exactly, with each R and its backward as one action.

    It raises the bound as well, but where these may be apart: that takes :func:`solve_ahead`.
    """
    if problem.can_run_ahead:
        stop = Stop(AHEAD_SHARE * stop.left, stop)
    if _moved_in_simulator(incumbent.problem):
        stop = Stop((1 - MOVED_SHARE) * stop.left, stop)
    _solve(problem, incumbent, stop, ahead=False)


def solve_ahead(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Solve the whole problem exactly, with each R as an action of its own."""
    _solve(problem, incumbent, stop, ahead=True)


def _solve(problem: Problem, incumbent: Incumbent, stop: Stop, ahead: bool) -> None:
    from debubble.optimize.cp_sat.model import Model

    effort = stop.work.effort * (COPIED_SHARE if incumbent.problem.offload else 1.0)
    # Choosing what to fuse takes the solver long; with relaxed times its bound holds as well.
    chosen = fusable(problem) & (pairs(problem) <= SMALL_MIXED)
    # Where transfers meet, first as if they did not: that is sooner solved, and its bound holds.
    meeting = {"overlapped": 1 - MEETING_SHARE, problem.mode: MEETING_SHARE}
    for mode, share in (meeting if problem.mode in MEETING else {problem.mode: 1.0}).items():
        if incumbent.done or stop():
            return
        known = separate(problem, incumbent.programs, chosen.tolist())
        asked = replace(problem, mode=mode)
        model = Model(asked if chosen.any() else relaxed(asked), known, incumbent.bound, ahead)
        with stop.ending(model.stop):
            if stop():
                return
            seconds = stop.left * (1.0 if mode == problem.mode else share)
            solution = model.solve(
                EXACT_WORK * effort * share, seconds, stop.work.workers, stop.work.seed
            )
        if solution.programs is not None:
            # With copies under way R goes right before its backward.
            copies = bool(incumbent.problem.offload)
            found = without_recomputes(solution.programs) if copies else solution.programs
            incumbent.offer(found, "exact solving")
        if ahead or not problem.can_run_ahead:
            incumbent.prove(solution.bound, "solved exactly, with all ranks and their memory")


def solve_with_copies(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Seek an order and its copies together."""
    from debubble.optimize.cp_sat.copy_model import CopyModel

    del problem
    if incumbent.schedule is None:
        return
    model = CopyModel(incumbent.problem, incumbent.schedule, incumbent.bound)
    with stop.ending(model.stop):
        if stop():
            return
        work = COPIES_WORK * stop.work.effort
        found = model.solve(work, stop.left, stop.work.workers, stop.work.seed)
    if found is not None:
        incumbent.offer(found, "exact solving")


def move_in_simulator(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Move single actions where the engine alone knows what transfers cost."""
    move_actions(
        incumbent.programs, partial(makespan_in_engine, problem),
        round(MOVES * min(stop.work.effort, MOST_MOVING)), np.random.default_rng(stop.work.seed),
        stop, lambda programs: incumbent.offer(programs, "moving single actions"),
        heat=HOT * (float(problem.times.mean()) or 1.0),
    )  # fmt: skip


def mix(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Fuse or split single backwards where that helps, and anneal the rest around them."""
    effort, seed, stages = stop.work.effort, stop.work.seed, fusable(problem)
    fused = replace(problem, backward="fused")
    order = listed(fused, ())
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
    """Whether OR-Tools is installed."""
    from importlib.util import find_spec

    return find_spec("ortools") is not None


def solver_name() -> str:
    """The exact solver with its version; empty where there is none."""
    if not has_solver():
        return ""
    from ortools import __version__  # type: ignore[attr-defined]  # its stub leaves it out

    return f"OR-Tools {__version__}"


def _solved_apart(problem: Problem) -> bool:
    return small(problem) and has_solver() and problem.can_run_ahead


def _copies(problem: Problem) -> bool:
    few = pairs(problem) <= MOST_COPIED
    return bool(problem.offload) and not problem.recomputed.any() and few and has_solver()


def _copied(problem: Problem) -> bool:
    return bool(problem.offload) and has_solver()


def _annealed_whole(problem: Problem) -> bool:
    return not small(problem) and problem.size <= LARGEST


def _moved_in_simulator(problem: Problem) -> bool:
    return problem.mode != "overlapped" and small(problem) and not problem.offload


STRATEGIES: list[Strategy] = [
    Strategy("published schedules", published, lambda _: True, quick=True),
    Strategy("list scheduling", list_scheduling, lambda _: True, quick=True),
    Strategy("annealing with room for copies", anneal_with_room, lambda p: bool(p.offload)),
    Strategy("keeping one rank", keep_one_rank, lambda _: True),
    Strategy("list scheduling with copies", list_copies, can_list),
    Strategy("annealing", anneal, small),
    Strategy("keeping several ranks", keep_several_ranks, lambda p: p.ranks > 1),
    Strategy("exact solving", solve, lambda p: small(p) and has_solver()),
    Strategy("running recomputes ahead", run_ahead, lambda p: small(p) and runs_ahead(p)),
    Strategy("exact solving", solve_ahead, _solved_apart),
    Strategy("solving with copies", solve_with_copies, _copies),
    Strategy("keeping one rank with its copies", keep_copies, _copied),
    Strategy("patterns", patterns, lambda p: not small(p) and has_solver(), parallel=True),
    Strategy("repeating", repeat, can_repeat, parallel=True),
    Strategy("annealing", anneal, _annealed_whole, parallel=True),
    Strategy("annealing a relaxed optimum", anneal_relaxed, _annealed_whole, parallel=True),
    Strategy("annealing what repeats", repeat_best, can_repeat),
    Strategy("annealing again", anneal_again, _annealed_whole),
    Strategy("mixing fused and split backwards", mix, lambda p: bool(fusable(p).any())),
    Strategy("moving single actions", move_in_simulator, _moved_in_simulator),
    Strategy("running recomputes ahead", run_ahead, lambda p: not small(p) and runs_ahead(p)),
]
"""Every strategy in the order in which they run."""
