"""The last check of every result of any search."""

from __future__ import annotations

import numpy as np

from debubble.core.kinds import COPY_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.timeline import simulate
from debubble.engine.validate import has
from debubble.listing import TOLERANCE
from debubble.optimize.layer_split.cutting import Cutting
from debubble.optimize.problem import Problem
from debubble.optimize.programs.membership import outside
from debubble.optimize.programs.offload import with_copies_placed, without_copies
from debubble.optimize.request import Request
from debubble.optimize.result import Result
from debubble.optimize.stage_choices.choices import OFFLOAD, choice_in


def check_result(request: Request, result: Result) -> Result:
    """Return a result after checking its order, memory, times and status against the request."""
    wrong = _wrong(request, result)
    if wrong:
        raise AssertionError(f"the search returned a schedule that is not allowed: {wrong}")
    return result


def _wrong(request: Request, result: Result) -> str:
    """Explain a fault of a result; empty where there is none."""
    schedule, makespan, bound = result.schedule, result.makespan, result.lower_bound
    table = schedule.placement.table
    roots = [problem for problem in request.problems if problem.placement.table == table]
    if not roots:
        return f"its placement is {table}"
    if roots[0].layers is not None:
        least = Cutting(roots[0]).least
        if sum(result.layers) != roots[0].layers.count or np.any(np.array(result.layers) < least):
            return f"its stages have {result.layers} layers"
    problem = problem_of(request, schedule, result.layers)
    if problem is None:
        return "stages recompute or offload activations that are not to"
    wrong = outside(problem, schedule) or not_offloaded(problem, schedule)
    if wrong:
        return wrong
    timeline = simulate(schedule, problem.table.costs, request.p2p_mode)
    if abs(timeline.makespan - makespan) > TOLERANCE * makespan:
        return f"it takes {timeline.makespan}, not {makespan}"
    if np.any(timeline.peak_activation > problem.limits_with_slack):
        peaks, limits = timeline.peak_activation.tolist(), problem.limits.tolist()
        return f"ranks hold {peaks} with limits of {limits}"
    if bound > makespan * (1 + TOLERANCE):
        return f"it takes {makespan}, less than the bound {bound}"
    met = makespan <= bound * (1 + TOLERANCE)
    if result.status not in (("optimal", "interrupted") if met else ("feasible", "interrupted")):
        return f"its status is {result.status} at {makespan} with the bound {bound}"
    return ""


def problem_of(request: Request, schedule: Schedule, layers: tuple[int, ...]) -> Problem | None:
    """Return the requested problem with the choices of a schedule; None where they are not open."""
    chosen, ways = [], request.ways(schedule.stages)
    for way, open_to in zip(choice_in(schedule), ways, strict=True):
        # Of what may be offloaded some, or all, may stay.
        fitting = [some for some in open_to if some == way or some == way | OFFLOAD]
        if not fitting:
            return None
        chosen.append(fitting[0])
    return request.problem(schedule.placement, layers, tuple(chosen))


def not_offloaded(problem: Problem, schedule: Schedule) -> str:
    """Report that nothing is offloaded although this was requested and is possible."""
    if not any(problem.offload) or has(schedule, COPY_KINDS):
        return ""
    programs = [schedule.program(rank) for rank in range(schedule.ranks)]
    lowered = next(with_copies_placed(problem, without_copies(programs)))
    return "no stage offloads anything" if has(lowered, COPY_KINDS) else ""
