"""Problems to optimise, small enough to look at every order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

import debubble as db
from debubble.core.actions import Kind, pack
from debubble.optimize.problem import Problem


def problem(
    ranks: int, microbatches: int, memory: Any, chunks: int = 2, mode: Any = "overlapped",
    backward: Any = "split", placement: db.Placement | None = None, **costs: Any,
) -> Problem:  # fmt: skip
    place = placement or db.Placement.wave(ranks, chunks)
    table = db.Costs(**costs).resolve(place)
    limits = np.broadcast_to(np.asarray(memory, dtype=float), (ranks,)).copy()
    return Problem(place, table, microbatches, limits, mode, backward)


def merged(chains: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Every order of the actions of some chains."""
    if not any(chains):
        yield []
    for index, chain in enumerate(chains):
        if chain:
            rest = [*chains[:index], chain[1:], *chains[index + 1 :]]
            for order in merged(rest):
                yield [chain[0], *order]


def fastest(asked: Problem) -> float:
    """The smallest makespan over all orders; microbatches need not keep theirs."""
    programs = []
    for rank in range(asked.ranks):
        chains = [
            [int(pack(kind, stage, b)[0]) for kind in asked.kinds]
            for stage in asked.placement.stages_on(rank)
            for b in range(asked.microbatches)
        ]
        programs.append([np.array(order) for order in merged(chains)])
    best = float("inf")
    for chosen in product(*programs):
        schedule = asked.schedule(chosen)
        if asked.fits(schedule):
            try:
                best = min(best, asked.timeline(schedule).makespan)
            except db.ScheduleError:
                continue
    return best


def kinds(schedule: db.Schedule) -> set[Kind]:
    return {action.kind for program in schedule for action in program}
