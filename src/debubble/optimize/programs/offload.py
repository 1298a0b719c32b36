"""Activations that wait for their backward on the host, in a search that knows no copies.

The searches treat offloaded activations as recomputed at no cost, a relaxation: gone when their
forward ends, there again when their backward begins. No schedule with copies is faster or holds
less, so that bounds for this problem hold; what copies take is known to one bound
(:mod:`debubble.optimize.bounds.exact_rank_copies`). An order that is found gets an OFFLOAD after
each of these forwards and a RELOAD some actions before the backward, with or without waits for the
memory. The engine then computes its time, and the memory of every rank with copies under way.
Orders for limits that are lower by some copies leave room for those. Where a solver is there, it
also seeks orders with their copies (:mod:`debubble.optimize.cp_sat.copy_model`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from debubble.core.actions import Program, among, kinds_of
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.kinds import COPY_KINDS, OFFLOAD_KINDS, WAIT_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.validate import has
from debubble.lowering.offload import COPIES, LEADS, check_host, with_copies
from debubble.lowering.offload import eased as ease_costs
from debubble.lowering.offload_waits import with_waits, without_and_with_waits
from debubble.optimize.problem import Problem

Offload: TypeAlias = str | Collection[int] | None
"""``"none"``, ``"free"``, or the stages whose activations wait on the host."""


def is_none(asked: object) -> bool:
    """Return whether a choice is to do nothing: None, or ``"none"``."""
    return asked is None or (isinstance(asked, str) and asked == "none")


def check_offload(offload: Offload, costs: Costs) -> None:
    """Refuse a choice that does not exist, and copies for which the costs have no time."""
    if is_none(offload):
        return
    if isinstance(offload, str | Mapping) and offload != "free":
        raise ParameterError(f"offload is '{offload}'; give none, free, or stages: [0, 1]")
    check_host(costs)


def relax_copies(problem: Problem) -> Problem:
    """Return the problem in which offloaded activations are recomputed in no time instead."""
    if not problem.offload:
        return problem
    away, recomputed = np.array(problem.offload), problem.recomputed
    return replace(
        problem,
        table=ease_costs(problem.table, recomputed, away),
        recompute=tuple((away | recomputed).tolist()),
        offload=(),
    )


def with_room_for_copies(problem: Problem) -> Iterator[Problem]:
    """Yield problems without copies whose orders leave room for none, one, two … under way."""
    model = relax_copies(problem)
    if not problem.offload:
        yield model
        return
    moved = np.where(problem.offload, problem.table.moved(problem.recomputed), 0.0)
    most = np.zeros(problem.ranks)
    np.maximum.at(most, problem.homes, moved)
    for count in COPIES:
        limits = np.maximum(model.limits - count * most, model.smallest_limits)
        if np.all(limits <= model.limits_with_slack):
            yield replace(model, limits=limits)


def without_copies(programs: Sequence[Program]) -> list[Program]:
    """Return an order without its OFFLOAD and RELOAD, and without waits for them."""
    return [program[~among(kinds_of(program), OFFLOAD_KINDS)] for program in programs]


def with_copies_placed(problem: Problem, programs: Sequence[Program]) -> Iterator[Schedule]:
    """Yield programs as schedules, with copies that come back sooner or later if they have none."""
    bare = without_copies(programs)
    schedule = problem.schedule(bare)
    if sum(map(len, bare)) < sum(map(len, programs)):
        yield schedule.with_programs(programs)
        free = [program[~among(kinds_of(program), WAIT_KINDS)] for program in programs]
        yield with_waits(schedule.with_programs(free), problem.table, problem.limits)
        return
    if not problem.offload:
        yield schedule
        return
    away = np.array(problem.offload)
    for lead in LEADS:
        made = [
            with_copies(schedule.program(rank), away, problem.recomputed, lead)
            for rank in range(schedule.ranks)
        ]
        copied = schedule.with_programs(made)
        yield from without_and_with_waits(copied, problem.table, problem.limits)


def with_asked_copies(problem: Problem, programs: Sequence[Program]) -> Iterator[Schedule]:
    """Yield schedules as :func:`schedules`, without those that have lost all copies."""
    made = with_copies_placed(problem, programs)
    first = next(made)
    yield first
    copies = has(first, COPY_KINDS)
    yield from (schedule for schedule in made if has(schedule, COPY_KINDS) or not copies)
