"""Times and memory as whole numbers, for a solver that knows no others."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.kind_relations import FUSED_KIND
from debubble.optimize.problem import Problem
from debubble.optimize.programs.backward import fusable

Whole: TypeAlias = NDArray[np.int64]
"""Times or memory in whole numbers."""

LARGEST_DENOMINATOR = 10_000
RESOLUTION = 1_000_000
"""Whole numbers the makespan is spread over when times have no common small denominator."""

MEMORY_UNITS = 1_000_000
"""Parts of a memory limit where activations differ."""

FRACTIONS = 1000
"""Parts of an activation where they do not: what is kept for the weights is a share of it."""


def factor_for(times: NDArray[np.float64], horizon: float) -> float:
    """Return the factor that makes times whole: their common denominator, if that is small."""
    values = np.unique(times[times > 0])
    if len(values) == 0:
        return 1.0
    fractions = [Fraction(float(v)).limit_denominator(LARGEST_DENOMINATOR) for v in values]
    close = all(
        abs(float(f) - v) <= 1e-12 * max(1.0, v) for f, v in zip(fractions, values, strict=True)
    )
    denominator = math.lcm(*(f.denominator for f in fractions)) if close else 0
    if close and denominator <= LARGEST_DENOMINATOR:
        divisor = math.gcd(*(int(f * denominator) for f in fractions))
        return denominator / divisor
    return RESOLUTION / horizon


def rounded_down(times: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Return whole numbers at most `factor` times the times; rounding errors cost no unit."""
    return np.floor(times * factor * (1 + 1e-12) + 1e-9)


def whole_times(times: NDArray[np.float64], factor: float) -> Whole:
    """Return times that are multiplied and :func:`rounded_down`, as integers."""
    return rounded_down(times, factor).astype(np.int64)


def all_times(problem: Problem) -> NDArray[np.float64]:
    """Return all durations and delays of the problem."""
    fused = fused_times(problem)[fusable(problem)]
    links = problem.forward_link, problem.backward_link
    carried = np.array([lag for *_, lag in problem.carried])
    return np.concatenate([problem.times.ravel(), problem.recompute_time, *links, fused, carried])


def fused_times(problem: Problem) -> NDArray[np.float64]:
    """Return times of a fused backward of every stage, with the R before it."""
    return np.asarray(problem.table.duration[FUSED_KIND] + problem.recompute_time)


def whole_units(problem: Problem, unit: float, apart: bool) -> tuple[Whole, Whole]:
    """Return memory actions take at their start, and the change when they are over.

    Both are in whole units. Rows are F, I or B, W (B once more where backwards are fused) and R,
    which takes nothing unless R and its backward are `apart`. Memory held between actions is
    rounded down, so that no order that fits is refused.
    """
    back = problem.taken_by_recompute * apart
    taken = np.array([problem.taken[0], back, problem.taken[1] - back, *problem.taken[2:]])
    freed = np.insert(problem.freed, 1, 0.0, axis=0)
    before = np.cumsum(taken - freed, axis=0) - taken + freed
    during, after = before + taken, before + taken - freed
    levels = (np.floor(level / unit + 1e-6).astype(np.int64) for level in (before, during, after))
    low, high, left = levels
    rows = [0, 2, len(problem.kinds), 1]
    return (high - low)[rows], (left - low)[rows]


def round_times(problem: Problem, factor: float) -> Problem:
    """Return a problem with whole times, none above `factor` times the true ones."""
    table = problem.table
    duration, link = rounded_down(table.duration, factor), rounded_down(table.link, factor)
    between = table.boundaries
    if between is not None:
        between = between._replace(time=rounded_down(between.time, factor))
    costs = table.costs
    if costs.p2p_carry is not None:
        carried = float(rounded_down(np.array(costs.p2p_carry), factor))
        costs = replace(costs, p2p_carry=carried)
    table = replace(table, duration=duration, link=link, boundaries=between, costs=costs)
    return replace(problem, table=table)
