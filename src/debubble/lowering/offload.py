"""Lower a schedule to one whose activations wait for their backward on the host.

A forward's activation leaves its rank right behind it (OFFLOAD) and comes back some actions before
the backward (RELOAD), both on a copy stream of their own. How early it has to come back depends on
the costs, so that several distances are simulated. Under a memory limit what has no room before an
activation is gone waits for that (WAIT_OFFLOAD).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    COPY_KINDS,
    PAIR_MASK,
    PAIR_SHIFT,
    STAGE_SHIFT,
    Kind,
    Program,
    among,
    group_bounds,
    kinds_of,
    stages_of,
)
from debubble.core.cost_table import CostTable
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.kinds import GRADIENT_KINDS
from debubble.core.schedule import Schedule
from debubble.core.sequence import as_kind
from debubble.engine.cost_mismatch import remembering
from debubble.engine.graph import P2PMode
from debubble.engine.memory import memory_limits
from debubble.engine.recompute import recompute_share
from debubble.engine.validate import has
from debubble.lowering.best_lowering import Setting
from debubble.lowering.offload_waits import without_and_with_waits
from debubble.lowering.recompute import Stages, chosen_stages

LEADS = (0, 1, 2, 3, 4, 6, 8)
"""Candidate distances, in actions, from a RELOAD to its backward."""

COPIES = (0, 1, 2, 3)
"""For how many copies under way a search leaves room on every rank."""


def add_offload(
    schedule: Schedule,
    stages: Stages | None = "full",
    *,
    costs: Costs | None = None,
    memory: float | Sequence[float] | None = None,
    p2p_mode: P2PMode = "overlapped",
) -> Schedule:
    """Move the activations of some stages to the host until their backward.

    Parameters
    ----------
    schedule
        A schedule of compute actions. Where a stage recomputes, its checkpoint is moved.
    stages
        Stages, as for :func:`debubble.lowering.recompute.add_recompute`.
    costs, p2p_mode
        Setting that distances are evaluated in; ``costs.host_bandwidth`` is needed.
    memory
        Limit for all ranks or one for each: the fastest within it is taken, or the one that comes
        nearest to it, with waits where copies alone do not keep it or without. Without a limit it
        is the fastest of those that copy anything.

    Returns
    -------
    Schedule
        The fastest with one distance between RELOAD and backward for all. What would come back
        within two actions stays.
    """
    setting = Setting(costs, memory, p2p_mode)
    return setting.best(ways_to_offload(schedule, stages, setting))


def ways_to_offload(schedule: Schedule, stages: Stages | None, setting: Setting) -> list[Schedule]:
    """Return the schedule with copies at every distance, see :func:`add_offload`."""
    if stages is None:
        return [schedule]
    chosen = chosen_stages(stages, schedule.stages, "offload")
    if not chosen.any():
        return [schedule]
    costs = setting.costs or Costs()
    check_host(costs)
    if has(schedule, COPY_KINDS):
        raise ParameterError(f"'{schedule.name}' has copies already; offload one without")
    limits = memory_limits(setting.memory, schedule.ranks)
    share = recompute_share(schedule).reshape(-1, schedule.stages)
    recomputed = share.min(axis=0) >= 1
    mixed = np.flatnonzero(chosen & share.any(axis=0) & ~recomputed)
    if len(mixed):
        raise ParameterError(
            f"offload has stage {mixed[0]}, which recomputes some microbatches and not others; "
            "leave recompute_cap out, or offload other stages"
        )
    names = "full" if chosen.all() else np.flatnonzero(chosen).tolist()
    options = {**schedule.options, "offload": names}
    table = costs.table(schedule)
    ways: list[Schedule] = []
    for lead in LEADS:
        programs = [
            with_copies(schedule.program(rank), chosen, recomputed, lead)
            for rank in range(schedule.ranks)
        ]
        made = remembering(schedule.with_programs(programs, options=options), "copies", costs)
        ways += [made] if limits is None else without_and_with_waits(made, table, limits)
    if limits is None:
        # Who sets no limit wants copies all the same.
        return [way for way in ways if len(way) > len(schedule)] or ways[:1]
    return ways


def check_host(costs: Costs) -> None:
    """Refuse copies that would be free: a ParameterError where costs do not say what they take."""
    if not np.isfinite(costs.host_bandwidth):
        raise ParameterError(
            "offload needs host_bandwidth in the costs, the memory one copy moves per unit of "
            "time; without it copies would take no time at all"
        )


def eased(
    table: CostTable, recomputed: NDArray[np.bool_], offloaded: NDArray[np.bool_]
) -> CostTable:
    """Costs with which what is offloaded is recomputed in no time instead; it knows no copies.

    No schedule with copies is faster or holds less than one for these costs in which offloaded
    stages recompute, too.
    """
    duration = table.duration.copy()
    duration[Kind.R, offloaded & ~recomputed] = 0.0
    held = np.where(recomputed, table.checkpoint, table.activation)
    checkpoint = held - np.where(offloaded, table.moved(recomputed), 0.0)
    return replace(table, duration=duration, checkpoint=checkpoint)


def with_copies(
    program: Program, away: NDArray[np.bool_], recomputed: NDArray[np.bool_], lead: int
) -> Program:
    """Return a program with copies of some stages' activations, which return `lead` actions early.

    What would come back with no action since it left stays.
    """
    kinds, cells = kinds_of(program), program >> STAGE_SHIFT
    stages = stages_of(program)
    users = np.where(recomputed[stages], kinds == Kind.R, among(kinds, GRADIENT_KINDS))
    begin, end = (np.flatnonzero(away[stages] & those) for those in (kinds == Kind.F, users))
    begin, end = begin[np.argsort(cells[begin])], end[np.argsort(cells[end])]
    # Copies stand outside of groups of actions that run together.
    opens, closes = group_bounds(program)
    back, away_from = opens[np.maximum(opens[end] - lead, 0)], closes[begin]
    long = back > away_from
    what = program[begin[long]] & ~(PAIR_MASK << PAIR_SHIFT)
    begin, back = away_from[long], back[long]
    spots = np.concatenate([begin, back])
    copies = np.concatenate([as_kind(what, Kind.OFFLOAD), as_kind(what, Kind.RELOAD)])
    # Where several copies meet, those that leave go first, and the sooner needed of the others.
    need = np.concatenate([np.full(len(begin), -1), end[long]])
    order = np.lexsort((need, spots))
    return np.insert(program, spots[order], copies[order])
