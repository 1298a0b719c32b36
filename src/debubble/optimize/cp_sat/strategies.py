"""Strategies that solve problems exactly, or move actions where the solver knows too little."""

from __future__ import annotations

import numpy as np

from debubble.optimize.anneal.simulated_moves import HOT, move_actions
from debubble.optimize.anneal.strategies import count_pairs, is_small
from debubble.optimize.incumbent import Incumbent
from debubble.optimize.problem import Problem, without_recomputes
from debubble.optimize.programs.backward import fusable, relaxed, separate
from debubble.optimize.stop import Stop

SMALL_MIXED = 500
"""Pairs of actions up to which the exact solver chooses which backwards are fused as well."""

COPIED_SHARE = 0.2
"""Share of the work of the exact solver where it does not know of the problem's copies."""

EXACT_WORK = 60.0
"""Work of the exact solver, in its own unit of about a second."""

MOVES, MOVED_SHARE, MOST_MOVING = 8000, 0.2, 5.0
"""Moves that are simulated, the share of the time that the exact solver leaves for them, and how
much effort they take at most."""

COPIES_WORK = 5.0
"""Work of the solver that knows of copies, in its own unit of about a second."""


def solve(problem: Problem, incumbent: Incumbent, stop: Stop) -> None:
    """Solve the whole problem exactly, which raises the bound as well."""
    from debubble.optimize.cp_sat.model import ExactModel

    if moves_in_simulator(incumbent.problem):
        stop = Stop((1 - MOVED_SHARE) * stop.left, stop)
    effort = stop.work.effort * (COPIED_SHARE if incumbent.problem.offload else 1.0)
    # Choosing what to fuse takes the solver long; with relaxed times its bound holds as well.
    chosen = fusable(problem) & (count_pairs(problem) <= SMALL_MIXED)
    known = separate(problem, incumbent.programs, chosen.tolist())
    asked = problem if chosen.any() else relaxed(problem)
    model = ExactModel(asked, known, incumbent.bound)
    with stop.ending(model.stop):
        if stop():
            return
        solution = model.solve(EXACT_WORK * effort, stop.left, stop.work.workers, stop.work.seed)
    if solution.programs is not None:
        # With copies under way R goes right before its backward.
        copies = bool(incumbent.problem.offload)
        found = without_recomputes(solution.programs) if copies else solution.programs
        incumbent.offer(found, "exact solving")
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
    """Move single actions if only the engine models the costs of transfers."""
    move_actions(
        incumbent.programs, lambda programs: problem.makespan(problem.schedule(programs)),
        round(MOVES * min(stop.work.effort, MOST_MOVING)), np.random.default_rng(stop.work.seed),
        stop, lambda programs: incumbent.offer(programs, "moving single actions"),
        heat=HOT * (float(problem.times.mean()) or 1.0),
    )  # fmt: skip


def moves_in_simulator(problem: Problem) -> bool:
    """Return whether moves are worth simulating.

    That is for small problems in which transfers take links, or are waited for by what stages
    carry: other moves are blind to both.
    """
    unknown = problem.mode != "overlapped" or bool(problem.carried)
    return unknown and is_small(problem) and not problem.offload
