"""Backwards in two parts, in one, or in whichever is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from debubble.core.actions import Kind, Program, kinds_of, microbatches_of, stages_of
from debubble.core.sequence import as_kind
from debubble.optimize.problem import TOLERANCE, Problem


def separate(problem: Problem, programs: Sequence[Program]) -> list[Program]:
    """The same order with backwards split, or fused where the problem says so."""
    result = []
    for program in programs:
        kinds = kinds_of(program)
        if problem.fused:
            program = np.where(kinds == Kind.I, as_kind(program, Kind.B), program)[kinds != Kind.W]
        else:
            fused = kinds == Kind.B
            program = np.repeat(program, 1 + fused)
            second = np.cumsum(1 + fused)[fused] - 1
            program[second - 1] = as_kind(program[second - 1], Kind.I)
            program[second] = as_kind(program[second], Kind.W)
        result.append(program)
    return result


def fused(program: Program, stages: Sequence[int]) -> Program:
    """A program with I and W fused where one follows the other, on some stages."""
    kinds = kinds_of(program)
    first = np.zeros(len(program), dtype=bool)
    first[:-1] = (
        (kinds[:-1] == Kind.I)
        & (kinds[1:] == Kind.W)
        & (stages_of(program[:-1]) == stages_of(program[1:]))
        & (microbatches_of(program[:-1]) == microbatches_of(program[1:]))
    )
    first &= np.isin(stages_of(program), stages)
    program = np.where(first, as_kind(program, Kind.B), program)
    return program[~np.roll(first, 1)]


def fusing_helps(problem: Problem) -> bool:
    """Whether a fused backward is faster than its parts on any stage."""
    duration = problem.table.duration
    parts = duration[Kind.I] + duration[Kind.W]
    return bool(np.any(duration[Kind.B] < parts * (1 - TOLERANCE)))


def relaxed(problem: Problem) -> Problem:
    """Times no order can beat, where a fused backward is faster than its parts."""
    if problem.backward != "free" or not fusing_helps(problem):
        return problem
    duration = problem.table.duration.copy()
    together = np.minimum(duration[Kind.I] + duration[Kind.W], duration[Kind.B])
    duration[Kind.I] = np.minimum(duration[Kind.I], duration[Kind.B])
    duration[Kind.W] = together - duration[Kind.I]
    return replace(problem, table=replace(problem.table, duration=duration))
