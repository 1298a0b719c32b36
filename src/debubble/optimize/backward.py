"""Backwards in two parts, in one, or in whichever is faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind, Program, kinds_of, microbatches_of, stages_of
from debubble.core.sequence import as_kind
from debubble.listing import TOLERANCE
from debubble.optimize.problem import Problem


def separate(
    problem: Problem, programs: Sequence[Program], kept: Sequence[bool] = ()
) -> list[Program]:
    """The same order with backwards split, or fused where the problem says so.

    Fused ones of the stages in `kept`, one flag for each, stay where the problem allows both.
    """
    stays = np.array(kept or [False] * problem.stages)
    result = []
    for program in programs:
        kinds = kinds_of(program)
        if problem.fused:
            program = np.where(kinds == Kind.I, as_kind(program, Kind.B), program)[kinds != Kind.W]
        else:
            fused = (kinds == Kind.B) & ~stays[stages_of(program)]
            program = np.repeat(program, 1 + fused)
            second = np.cumsum(1 + fused)[fused] - 1
            program[second - 1] = as_kind(program[second - 1], Kind.I)
            program[second] = as_kind(program[second], Kind.W)
        result.append(program)
    return result


def fused_ones(problem: Problem, programs: Sequence[Program]) -> NDArray[np.bool_]:
    """Mask of the fused backwards of an order, shape ``(stages, microbatches)``."""
    packed = np.concatenate(programs)
    packed = packed[kinds_of(packed) == Kind.B]
    found = np.zeros((problem.stages, problem.microbatches), dtype=bool)
    found[stages_of(packed), microbatches_of(packed)] = True
    return found


def with_fused(programs: Sequence[Program], chosen: NDArray[np.bool_]) -> list[Program]:
    """Programs of F, I and W with B in place of some I; their W, wherever it is, goes."""
    result = []
    for program in programs:
        kinds, here = kinds_of(program), chosen[stages_of(program), microbatches_of(program)]
        changed = np.where(here & (kinds == Kind.I), as_kind(program, Kind.B), program)
        result.append(changed[~(here & (kinds == Kind.W))])
    return result


def alternatives(program: Program, which: Program) -> Iterator[Program]:
    """A program with one backward done the other way, `which` being its I or B.

    Two parts are fused where the first one was, then where the second was.
    """
    (first,) = np.flatnonzero(program == which)
    if kinds_of(which) == Kind.B:
        parts = np.array([as_kind(which, Kind.I), as_kind(which, Kind.W)])
        yield np.concatenate([program[:first], parts, program[first + 1 :]])
        return
    (second,) = np.flatnonzero(program == as_kind(which, Kind.W))
    for place, other in ((first, second), (second, first)):
        changed = program.copy()
        changed[place] = as_kind(which, Kind.B)
        yield np.delete(changed, other)


def fusable(problem: Problem) -> NDArray[np.bool_]:
    """Stages whose backwards may be fused and are then faster than their parts."""
    duration = problem.table.duration
    parts = duration[Kind.I] + duration[Kind.W]
    faster: NDArray[np.bool_] = duration[Kind.B] < parts * (1 - TOLERANCE)
    return faster & (problem.backward == "free")


def relaxed(problem: Problem) -> Problem:
    """Times no order can beat, where a fused backward is faster than its parts."""
    if not fusable(problem).any():
        return problem
    duration = problem.table.duration.copy()
    together = np.minimum(duration[Kind.I] + duration[Kind.W], duration[Kind.B])
    duration[Kind.I] = np.minimum(duration[Kind.I], duration[Kind.B])
    duration[Kind.W] = together - duration[Kind.I]
    return replace(problem, table=replace(problem.table, duration=duration))
