"""Why a schedule cannot be compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import unpack
from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine import diagnose, stuck
from debubble.engine.events import Events, compile_events
from debubble.engine.kernels import sweep
from debubble.engine.malformed import refuse_malformed, refuse_misplaced
from debubble.engine.modes import MODE, P2PMode


def explain_refusal(
    schedule: Schedule,
    mode: P2PMode,
    outcome: int,
    position: int,
    next_action: NDArray[np.int64],
    node: NDArray[np.int32],
    explicit: bool,
    rare: bool,
) -> ScheduleError:
    """The error for a sweep that ended with an outcome, and where and how far it came."""
    if not explicit and not rare:
        return diagnose.explain(schedule, outcome, position)
    if outcome == sweep.REDUCED:
        text = schedule.text(unpack(int(schedule.actions[position])))
        rank = schedule.rank_of(position)
        return ScheduleError(
            f"rank {rank}, action {position - int(schedule.offsets[rank])}: {text} comes after the "
            "REDUCE_GRAD of its stage and iteration, which reduces its gradient, too; move it "
            "before that",
            (text,),
        )
    stopped = stuck.Stopped(schedule, MODE[mode].blocks, next_action, node)
    try:
        if rare or MODE[mode].queued:
            compile_events(schedule, mode)
        elif outcome == sweep.UNMATCHED:
            refuse_malformed(Events(schedule, mode, 1))
        elif outcome == sweep.STUCK:
            # An action that is not reached may be what is wrong.
            refuse_misplaced(Events(schedule, mode, 1))
    except ScheduleError as error:
        return error
    return stuck.explain(stopped, outcome, position)
