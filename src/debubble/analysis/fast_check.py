"""One pass that finds most schedules with transfers or sharding free of problems.

What they report is found by sorting all actions, several times. Almost every schedule is free of
it, and to see just that takes no sorting: this looks at every action once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import SHARDING_KINDS, among, kinds_of, stages_of
from debubble.core.errors import ScheduleError
from debubble.core.kinds import STEP_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.graph import compile_graph
from debubble.engine.kernels.sharding import Seen, sharding_holds
from debubble.engine.transfers import without


def without_sharding(schedule: Schedule) -> Schedule:
    """Return the schedule without its sharding actions, itself where it has none.

    Either runs if the other does, and where sharding actions take no time, they have the same
    times: all that such an action waits for comes before it in its program, and what waits for
    it comes after it, where the rank arrives only after all that anyway.
    """
    kinds = kinds_of(schedule.actions)
    aside = (kinds >= min(SHARDING_KINDS)) & (kinds <= max(SHARDING_KINDS))
    return without(schedule, aside) if aside.any() else schedule


def is_sound(schedule: Schedule, bare: Schedule, steps: bool) -> bool:
    """Return whether actions are complete, on their ranks and in order, and transfers matched.

    The schedule has at least two actions for every cell, and no passes of a sharded output layer;
    `bare` is it without sharding actions, and `steps` is whether it has optimizer steps.
    Never True for a schedule with a problem. May be False for a correct one; then the full check
    decides.
    """
    sharded = bare is not schedule or schedule.explicit_reduction
    return (
        _work_is_sound(bare)
        and (not steps or _steps_are_home(schedule))
        and (not sharded or _sharding_is_sound(schedule))
    )


def _work_is_sound(bare: Schedule) -> bool:
    cells = bare.stages * bare.units
    try:
        graph = compile_graph(bare, explain=False)
    except ScheduleError:
        return False
    return graph.completed == cells and not graph.overtaken


def _steps_are_home(schedule: Schedule) -> bool:
    """Return whether every optimizer step names a stage of its rank."""
    here = np.flatnonzero(among(kinds_of(schedule.actions), STEP_KINDS))
    stage = stages_of(schedule.actions[here])
    if np.any(stage >= schedule.stages):
        return False
    rank = np.searchsorted(schedule.offsets, here, side="right") - 1
    return bool(_holds(schedule)[rank, stage].all())


def _sharding_is_sound(schedule: Schedule) -> bool:
    """Return whether sharding actions are complete, on their ranks and in order.

    Presumes that all other actions are.
    """
    count, stages = schedule.iterations, schedule.stages
    sharded_and_held = np.zeros((2, stages), dtype=np.int32)
    made_and_reduced = np.zeros((2, stages * count), dtype=np.int32)
    return bool(
        sharding_holds.run(
            2 * len(schedule),
            schedule.actions,
            schedule.offsets,
            _holds(schedule).ravel(),
            stages,
            schedule.units,
            count,
            schedule.explicit_reduction,
            Seen(*sharded_and_held, *made_and_reduced),
        )
    )


def _holds(schedule: Schedule) -> NDArray[np.bool_]:
    """Return the mask of the stages of each rank, of any copy; shape ``(ranks, stages)``."""
    table = np.asarray(schedule.placement.table)
    holds = np.zeros((schedule.ranks, schedule.stages), dtype=np.bool_)
    holds[table, np.arange(schedule.stages)] = True
    return holds
