"""Times of a problem by microbatch, where the costs give each a length of its own.

Elsewhere a problem has one time for every chain: microbatches are alike, or taken for alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.core.kind_relations import FUSED_KIND, RECOMPUTE_KINDS
from debubble.optimize.problem import Problem

Grids = NDArray[np.float64]
"""One number for every row, stage and microbatch."""


def microbatch_lengths(problem: Problem) -> NDArray[np.float64]:
    """Return the length of every microbatch, relative to the average, shape ``(microbatches,)``."""
    lengths = problem.table.lengths
    return np.ones(problem.microbatches) if lengths is None else lengths


def action_times(problem: Problem, kinds: Sequence[Kind]) -> Grids:
    """Return times of actions of some kinds, shape ``(kinds, stages, microbatches)``."""
    lengths = problem.table.lengths
    if lengths is None:
        return np.repeat(problem.table.duration[list(kinds)][:, :, None], problem.microbatches, 2)
    stages = np.arange(problem.stages)
    return problem.table.times(np.array(kinds)[:, None, None], stages[None, :, None], lengths)


def recompute_times(problem: Problem) -> Grids:
    """Return times of R, 0 for stages without recompute, shape ``(stages, microbatches)``."""
    return np.where(
        problem.recompute_time[:, None] > 0, action_times(problem, RECOMPUTE_KINDS)[0], 0.0
    )


def whole_times(problem: Problem, fused: NDArray[np.bool_]) -> Grids:
    """Return times of all actions of the problem, R within the backward.

    Some backwards, shape ``(stages, microbatches)``, are `fused`: their I takes the time of B, and
    their W none.
    """
    times = action_times(problem, problem.kinds)
    if fused.any():
        times[1] = np.where(fused, action_times(problem, [FUSED_KIND])[0], times[1])
        times[2, fused] = 0.0
    times[1] += recompute_times(problem)
    return times


def backward_lags(problem: Problem) -> Grids:
    """Return the least time to every R or backward from the end of the next stage's.

    Negative where R can begin before the gradient arrives; shape ``(stages, microbatches)``.
    """
    lags: Grids = link_times(problem)[1] - recompute_times(problem)
    lags[-1] = 0.0
    return lags


def link_times(problem: Problem) -> Grids:
    """Return transfer times into every stage, from the one before and the one after.

    Shape ``(2, stages, microbatches)``; 0 for the first and the last stage.
    """
    if problem.table.lengths is None:
        average = np.array([problem.forward_link, problem.backward_link])
        return np.repeat(average[:, :, None], problem.microbatches, 2)
    found = np.zeros((2, problem.stages, problem.microbatches))
    stage, each = np.arange(problem.stages - 1)[:, None], np.arange(problem.microbatches)[None]
    here, there = problem.homes[stage], problem.homes[stage + 1]
    forward, backward = (np.array([int(kind)]) for kind in problem.kinds[:2])
    found[0, 1:] = problem.table.transfers(here, there, each, forward, stage)
    found[1, :-1] = problem.table.transfers(there, here, each, backward, stage + 1)
    return found
