"""Explanation of why a schedule cannot run.

Either something is wrong with the actions themselves
(:mod:`~debubble.engine.explain.action_faults`), which is so in every p2p mode, or actions wait for
each other in a cycle (:mod:`~debubble.engine.explain.waits`). The schedule alone decides:
the place where a compiler stopped does not matter.
"""

from __future__ import annotations

from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine.explain.action_faults import first_fault
from debubble.engine.explain.waits import deadlock
from debubble.engine.modes import P2PMode

__all__ = ["explain"]


def explain(schedule: Schedule, mode: P2PMode) -> ScheduleError:
    """Return the error for a schedule that cannot run.

    Parameters
    ----------
    schedule
        One that has no event graph in this mode; with its transfers, where they have to meet.
    mode
        What its transfers do, see :mod:`debubble.engine.modes`.
    """
    return first_fault(schedule, mode) or deadlock(schedule, mode)
