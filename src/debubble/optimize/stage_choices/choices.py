"""Choices for the activations of a stage: keep them, recompute them, or offload them to the host.

Where the search may choose, every stage has a few ways; a choice takes one for each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from debubble.core.actions import kinds_of, stages_of
from debubble.core.errors import ParameterError
from debubble.core.kind_relations import RECOMPUTE_KINDS
from debubble.core.kinds import COPY_KINDS
from debubble.core.schedule import Schedule
from debubble.listing import TOLERANCE
from debubble.lowering.recompute import Stages, chosen_stages
from debubble.optimize.problem import Problem
from debubble.optimize.programs.offload import Offload, is_none

KEEP, RECOMPUTE, OFFLOAD = 0, 1, 2
"""Choices for the activations of a stage; the last two may come together."""

Choice: TypeAlias = tuple[int, ...]
"""The choice of each stage."""

Ways: TypeAlias = Sequence[tuple[int, ...]]
"""The open choices of each stage, the plainest first."""

Recompute: TypeAlias = Stages | None
"""``"none"``, ``"full"``, ``"free"``, or the stages that recompute."""


def ways_of(recompute: Recompute, offload: Offload, stages: int) -> Ways:
    """Return choices open to every stage; refuse stages and choices that do not exist."""
    options: list[list[tuple[int, ...]]] = []
    for name, asked, flag in (("recompute", recompute, RECOMPUTE), ("offload", offload, OFFLOAD)):
        if asked is None or is_none(asked):
            options.append([(KEEP,)] * stages)
        elif isinstance(asked, str) and asked == "free":
            options.append([(KEEP, flag)] * stages)
        elif isinstance(asked, str) and (name, asked) != ("recompute", "full"):
            full = "full, " if name == "recompute" else ""
            raise ParameterError(f"{name} is '{asked}'; give none, {full}free, or stages: [0, 1]")
        else:
            chosen = chosen_stages(asked, stages, name)
            options.append([(flag,) if here else (KEEP,) for here in chosen])
    found = []
    for one, other in zip(*options, strict=True):
        both = len(one) > 1 and len(other) > 1
        found.append(tuple(a | b for b in other for a in one if not (both and a and b)))
    return found


def same_for_all(ways: Ways) -> list[Choice]:
    """Return choices in which all stages do the same, as far as they are free."""
    most = max(map(len, ways))
    return [tuple(way[min(k, len(way) - 1)] for way in ways) for k in range(most)]


def with_choice(problem: Problem, chosen: Sequence[int]) -> Problem:
    """Return the problem with another choice for its stages."""
    recompute, offload = (
        tuple(bool(way & flag) for way in chosen) for flag in (RECOMPUTE, OFFLOAD)
    )
    return replace(
        problem, recompute=recompute if any(recompute) else (),
        offload=offload if any(offload) else (),
    )  # fmt: skip


def with_way_out(
    error: ParameterError, problem: Problem, smallest: Callable[[Problem], float]
) -> ParameterError:
    """Extend a memory error with the smallest limit that works if more stages recompute."""
    full = with_choice(problem, [way | RECOMPUTE for way in choice_of(problem)])
    least = smallest(full)
    if least >= smallest(problem) * (1 - TOLERANCE):
        return error
    return ParameterError(f"{error}, or {least:.12g} with recompute")


def choice_of(problem: Problem) -> Choice:
    """Return the choice that a problem makes for its stages."""
    nothing = (False,) * problem.stages
    both = zip(problem.recompute or nothing, problem.offload or nothing, strict=True)
    return tuple(RECOMPUTE * a + OFFLOAD * b for a, b in both)


def choice_in(schedule: Schedule) -> Choice:
    """Return the choice that a schedule makes for its stages."""
    kinds, stages = kinds_of(schedule.actions), stages_of(schedule.actions)
    chosen = np.zeros(schedule.stages, dtype=np.int64)
    for some, flag in ((RECOMPUTE_KINDS, RECOMPUTE), (COPY_KINDS, OFFLOAD)):
        chosen[np.unique(stages[np.isin(kinds, some)])] |= flag
    return tuple(chosen.tolist())
