"""Check explicit sends and receives: every one has its other end, and no rendezvous deadlocks."""

from __future__ import annotations

from itertools import islice

from debubble.core.errors import ScheduleError
from debubble.core.kinds import TRANSFER_KINDS
from debubble.core.schedule import Schedule
from debubble.engine.explain.form import Form, stray
from debubble.engine.graph import compile_graph


def matched(schedule: Schedule, *, limit: int = 100) -> list[ScheduleError]:
    """What is wrong with the pairs of sends and receives.

    Every transfer is sent once, by the rank of its producer, and received once, by the rank of its
    consumer, which is another one; and every rank receives from another rank in the order in which
    that one sends. Transfers have no tags: where the order differs, data ends up in the wrong
    buffers and nothing reports it.

    Parameters
    ----------
    schedule
        Any schedule; one without transfers has no problems here.
    limit
        How many problems of each sort are listed.

    Returns
    -------
    list of ScheduleError
        One per problem, with the actions concerned in ``chain``; empty when all is well. Actions
        that do not exist or are on the wrong rank come alone, and so do ends of what moves between
        no ranks; else repeated ends come first, then missing ones, then wrong orders.
    """
    astray = stray(schedule)
    if astray is not None:
        return [astray]
    form = Form(schedule)
    nowhere = list(islice(form.nowhere(), limit))
    if nowhere:
        return nowhere
    sorts = (form.twice(TRANSFER_KINDS), form.alone(), form.crossed())
    return [problem for sort in sorts for problem in islice(sort, limit)]


def check_rendezvous(schedule: Schedule) -> None:
    """Raise when the fused groups of a schedule deadlock under rendezvous.

    Contiguous sends and receives between two compute actions of a rank are one group, as in one
    ``batch_isend_irecv``. Every rank runs its groups in order, posts all of a group when it
    reaches it, and leaves when every member has met its other end in a group that the other rank
    has reached.

    Raises
    ------
    ScheduleError
        When that cannot finish. The message and ``chain`` show the shortest cycle: where ranks
        stand, what each waits for there, and behind what that comes. Also when a transfer has no
        other end, or an action comes before its receive.
    """
    compile_graph(schedule, "blocking")
