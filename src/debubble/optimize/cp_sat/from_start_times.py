"""Orders as start times of all their actions, by the numbers of a problem, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program, among, kinds_of, stages_of
from debubble.core.kind_relations import FUSED_KIND, RECOMPUTE_KINDS
from debubble.engine.timeline import Timeline
from debubble.optimize.cp_sat.rounding import fused_times
from debubble.optimize.problem import Problem, without_recomputes
from debubble.optimize.programs.backward import separate


def programs_by_start(
    problem: Problem, starts: NDArray[Any], times: NDArray[np.float64]
) -> list[Program]:
    """Return programs that run actions by their starts; actions that take no time go first.

    With or without R, as there are times for them.
    """
    ranks, stages = np.tile(problem.homes, len(problem.kinds)), np.arange(problem.stages)
    # As a microbatch passes them, should several take no time at once.
    way = np.concatenate([stages, 3 * problem.stages - stages, 3 * problem.stages + 1 + stages])
    way = way[: len(ranks)]
    if len(times) > problem.size:
        again = np.flatnonzero(problem.recomputed)
        ranks = np.append(ranks, problem.homes[again])
        way = np.append(way, problem.stages + again)
    ranks, way = (np.repeat(rows, problem.microbatches) for rows in (ranks, way))
    order = np.lexsort((way, starts + times, starts, ranks))
    return problem.programs(order)


def starts_by_number(
    problem: Problem, known: Sequence[Program], timeline: Timeline, apart: bool
) -> NDArray[np.float64]:
    """Return starts of all actions of a simulated order, I and W for every fused backward.

    Every R is an action of its own where they are `apart`, else the beginning of its backward.
    """
    packed = timeline.schedule.actions
    redone = among(kinds_of(packed), RECOMPUTE_KINDS)
    starts = timeline.start[~redone] if apart else problem.starts(timeline)
    passes = without_recomputes(known)
    grid = np.empty(problem.size)
    if problem.fused:
        grid[problem.actions(passes)] = starts
    else:
        # The W of a fused backward begins where that ends.
        whole = np.concatenate(passes)
        fused = kinds_of(whole) == FUSED_KIND
        time = problem.table.duration[FUSED_KIND] if apart else fused_times(problem)
        ahead = np.where(fused, time[stages_of(whole)], 0.0)
        both = np.repeat(starts, 1 + fused)
        second = np.flatnonzero(fused)
        both[second + np.arange(1, len(second) + 1)] += ahead[second]
        grid[problem.actions(separate(problem, passes))] = both
    if not apart:
        return grid
    again = np.empty(np.count_nonzero(redone))
    again[problem.actions([packed[redone]]) - problem.size] = timeline.start[redone]
    return np.append(grid, again)
