"""Backwards in two parts, in one, or in the faster way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Program, kinds_of, microbatches_of, stages_of
from debubble.core.kind_relations import FUSED_KIND as B
from debubble.core.kind_relations import SPLIT_KINDS
from debubble.core.sequence import as_kind
from debubble.listing import TOLERANCE
from debubble.optimize.problem import Problem

I, W = SPLIT_KINDS


def separate(
    problem: Problem, programs: Sequence[Program], kept: Sequence[bool] = ()
) -> list[Program]:
    """Return programs with backwards split, or fused where the problem is so.

    Fused ones of the stages in `kept`, one flag for each, stay where the problem allows both.
    """
    stays = np.array(kept or [False] * problem.stages)
    result = []
    for program in programs:
        kinds = kinds_of(program)
        if problem.fused:
            program = np.where(kinds == I, as_kind(program, B), program)[kinds != W]
        else:
            fused = (kinds == B) & ~stays[stages_of(program)]
            program = np.repeat(program, 1 + fused)
            second = np.cumsum(1 + fused)[fused] - 1
            program[second - 1] = as_kind(program[second - 1], I)
            program[second] = as_kind(program[second], W)
        result.append(program)
    return result


def fused_ones(problem: Problem, programs: Sequence[Program]) -> NDArray[np.bool_]:
    """Return mask of the fused backwards of an order, shape ``(stages, microbatches)``."""
    packed = np.concatenate(programs)
    packed = packed[kinds_of(packed) == B]
    found = np.zeros((problem.stages, problem.microbatches), dtype=bool)
    found[stages_of(packed), microbatches_of(packed)] = True
    return found


def with_fused(programs: Sequence[Program], chosen: NDArray[np.bool_]) -> list[Program]:
    """Return programs of F, I and W with B in place of some I, without their W."""
    result = []
    for program in programs:
        kinds, here = kinds_of(program), chosen[stages_of(program), microbatches_of(program)]
        changed = np.where(here & (kinds == I), as_kind(program, B), program)
        result.append(changed[~(here & (kinds == W))])
    return result


def alternatives(program: Program, which: Program) -> Iterator[Program]:
    """Yield a program with one backward done the other way, `which` being its I or B.

    Two parts are fused where the first one was, then where the second was.
    """
    (first,) = np.flatnonzero(program == which)
    if kinds_of(which) == B:
        parts = np.array([as_kind(which, I), as_kind(which, W)])
        yield np.concatenate([program[:first], parts, program[first + 1 :]])
        return
    (second,) = np.flatnonzero(program == as_kind(which, W))
    for place, other in ((first, second), (second, first)):
        changed = program.copy()
        changed[place] = as_kind(which, B)
        yield np.delete(changed, other)


def fusable(problem: Problem) -> NDArray[np.bool_]:
    """Return stages whose backwards may be fused and are then faster than their parts."""
    duration = problem.table.duration
    parts = duration[I] + duration[W]
    faster: NDArray[np.bool_] = duration[B] < parts * (1 - TOLERANCE)
    return faster & (problem.backward == "free")


def relaxed(problem: Problem) -> Problem:
    """Return a problem with times no schedule can beat, where fused backwards are faster."""
    if not fusable(problem).any():
        return problem
    duration = problem.table.duration.copy()
    together = np.minimum(duration[I] + duration[W], duration[B])
    duration[I] = np.minimum(duration[I], duration[B])
    duration[W] = together - duration[I]
    return replace(problem, table=replace(problem.table, duration=duration))
