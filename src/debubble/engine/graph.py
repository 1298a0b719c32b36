"""Lower any schedule to an event graph, for any p2p mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from debubble.core.actions import among, kinds_of
from debubble.core.kinds import TRANSFER_KINDS, kind_bits
from debubble.core.schedule import Schedule
from debubble.engine.compile import compile_programs
from debubble.engine.event_graph import ARRAYS, EventGraph
from debubble.engine.modes import MODE, P2P_MODES, P2PMode, check_mode
from debubble.engine.transfers import insert_transfers
from debubble.engine.validate import refuse_invalid, scan

__all__ = ["P2P_MODES", "EventGraph", "P2PMode", "compile_graph"]

_TRANSFERS = kind_bits(TRANSFER_KINDS)


def compile_graph(
    schedule: Schedule,
    mode: P2PMode = "overlapped",
    host_link_shared_by: int = 1,
    *,
    explain: bool = True,
) -> EventGraph:
    """Lower a schedule to an event graph; the same schedule is lowered once.

    A schedule without sends and receives gets some where it matters how ranks order them; the graph
    then speaks about the actions of the schedule as given. The node of a send and of its receive is
    their transfer's: it starts when the transfer does and takes link time. For the modes see
    :mod:`debubble.engine.modes`, for the other parameters
    :func:`debubble.engine.compile.compile_programs`.

    Raises
    ------
    ScheduleError
        When the order cannot run: something is missing, misplaced or there twice, or actions wait
        for each other; the message shows the shortest chain of them.
    """
    check_mode(mode)
    refuse_invalid(schedule)
    policy = MODE[mode].receives
    if policy is None or scan(schedule).kinds & _TRANSFERS:
        return compile_programs(schedule, mode, host_link_shared_by, explain=explain)
    key = (EventGraph, mode, host_link_shared_by)
    if key not in schedule.derived:
        lowered = insert_transfers(schedule, policy, explain=explain)
        graph = compile_programs(lowered, mode, host_link_shared_by, explain=explain)
        given = np.flatnonzero(~among(kinds_of(lowered.actions), TRANSFER_KINDS))
        carried = graph.carried[given] if len(graph.carried) else graph.carried
        graph = replace(graph, node=graph.node[given], sent=graph.sent[given], carried=carried)
        schedule.derived[key] = ARRAYS(graph)
    return EventGraph(schedule, mode, *schedule.derived[key])
