"""Times of a problem by microbatch, where the costs give each a length of its own.

Elsewhere a problem has one time for every chain: microbatches are alike, or taken for alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.optimize.problem import Problem

Grids = NDArray[np.float64]
"""One number for every row, stage and microbatch."""


def lengths_of(problem: Problem) -> NDArray[np.float64]:
    """Length of every microbatch, relative to the average, shape ``(microbatches,)``."""
    lengths = problem.table.lengths
    return np.ones(problem.microbatches) if lengths is None else lengths


def times_of(problem: Problem, kinds: Sequence[Kind]) -> Grids:
    """Time of every action of some kinds, shape ``(kinds, stages, microbatches)``."""
    lengths = problem.table.lengths
    if lengths is None:
        return np.repeat(problem.table.duration[list(kinds)][:, :, None], problem.microbatches, 2)
    stages = np.arange(problem.stages)
    return problem.table.times(np.array(kinds)[:, None, None], stages[None, :, None], lengths)


def recompute_times(problem: Problem) -> Grids:
    """Time of every R, 0 where a stage does not recompute, shape ``(stages, microbatches)``."""
    return np.where(problem.recompute_time[:, None] > 0, times_of(problem, [Kind.R])[0], 0.0)


def whole_times(problem: Problem, fused: NDArray[np.bool_]) -> Grids:
    """Time of every action of the problem, R within the backward.

    Some backwards, shape ``(stages, microbatches)``, are `fused`: their I takes the time of B, and
    their W none.
    """
    times = times_of(problem, problem.kinds)
    if fused.any():
        times[1] = np.where(fused, times_of(problem, [Kind.B])[0], times[1])
        times[2, fused] = 0.0
    times[1] += recompute_times(problem)
    return times


def backward_lags(problem: Problem) -> Grids:
    """Least time to every R or backward from the end of the next stage's, 0 for the last stage.

    Negative where R can begin before the gradient arrives; shape ``(stages, microbatches)``.
    """
    lags: Grids = links_of(problem)[1] - recompute_times(problem)
    lags[-1] = 0.0
    return lags


def links_of(problem: Problem) -> Grids:
    """Transfer times into every stage, from the one before and the one after.

    Shape ``(2, stages, microbatches)``; 0 for the first and the last stage.
    """
    average = np.array([problem.forward_link, problem.backward_link])
    found = np.repeat(average[:, :, None], problem.microbatches, 2)
    if problem.table.lengths is None:
        return found
    homes, each = problem.homes[:, None], np.arange(problem.microbatches)[None]
    stages = np.arange(problem.stages)[:, None]
    shape = (problem.stages - 1, problem.microbatches)
    forward, backward = (np.full(shape, int(kind)) for kind in (Kind.F, Kind.I))
    each = np.broadcast_to(each, shape)
    before, after = (np.broadcast_to(s, shape) for s in (stages[:-1], stages[1:]))
    senders, receivers = (np.broadcast_to(h, shape) for h in (homes[:-1], homes[1:]))
    table = problem.table
    found[0, 1:] = table.transfers(senders, receivers, each, forward, before)
    found[1, :-1] = table.transfers(receivers, senders, each, backward, after)
    return found
