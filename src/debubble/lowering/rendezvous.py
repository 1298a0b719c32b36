"""Check explicit sends and receives: every one has its other end, in its turn."""

from __future__ import annotations

from itertools import islice

from debubble.core.errors import ScheduleError
from debubble.core.kinds import TRANSFER_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.explain.action_faults import ActionFaults, invalid_action


def matched(schedule: Schedule, *, limit: int = 100) -> list[ScheduleError]:
    """Return faults of the pairs of sends and receives, at most `limit` of each sort.

    Every transfer is sent once, by the rank of its producer, and received once, by the rank of its
    consumer, which is another one; and every rank receives from another rank in the order in which
    that one sends. Transfers have no tags: where the order differs, data ends up in the wrong
    buffers and nothing reports it.

    Actions that do not exist or are on the wrong rank come alone, and so do ends of what moves
    between no ranks; else repeated ends come first, then missing ones, then wrong orders.
    """
    astray = invalid_action(schedule)
    if astray is not None:
        return [astray]
    form = ActionFaults(schedule)
    nowhere = list(islice(form.nowhere(), limit))
    if nowhere:
        return nowhere
    sorts = (form.twice(TRANSFER_KINDS), form.alone(), form.crossed())
    return [problem for sort in sorts for problem in islice(sort, limit)]
