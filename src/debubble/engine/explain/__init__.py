"""Explanation of why a schedule cannot run: faults of single actions, or a cycle of waits.

The schedule alone decides: the place where a compiler stopped does not matter.
"""

from __future__ import annotations

from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine.explain.action_faults import first_fault
from debubble.engine.explain.waits import deadlock
from debubble.engine.modes import P2PMode


def explain(schedule: Schedule, mode: P2PMode) -> ScheduleError:
    """Return the error for a schedule without an event graph in this mode."""
    return first_fault(schedule, mode) or deadlock(schedule, mode)
