"""Compile schedules whose sends and receives are actions, and all of them in blocking mode.

What a transfer from rank a to rank b does, by mode:

* ``"overlapped"``: it starts when a reaches the send, takes link time, and occupies nobody. The
  consumer waits for it; where the receive stands does not matter.
* ``"channel"``: the same, but the link from a to b carries one transfer at a time, in the order
  of the sends.
* ``"blocking"``: contiguous sends and receives between two compute actions are one group. A rank
  that reaches a group posts all of it. A transfer starts when both its ends are posted; the
  transfers of one group run at the same time, those of one link one by one. The rank goes on
  when all transfers of its group are over.

A schedule without transfers is given some first when the mode is blocking, and the graph then
speaks about the actions of the schedule as given.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import KIND_MASK, PAIR_MASK, PAIR_SHIFT, Kind
from debubble.core.schedule import SYNCS, Schedule
from debubble.engine import stuck
from debubble.engine.graph import EventGraph, P2PMode, lanes_of
from debubble.engine.kernels import compile as sweep
from debubble.engine.kernels.streams import compile_transfers
from debubble.engine.transfers import first_transfer, insert_transfers


def compile_streams(schedule: Schedule, mode: P2PMode) -> EventGraph:
    """Lower a schedule with explicit transfers to an event graph.

    Parameters
    ----------
    schedule
        Any schedule. In blocking mode one without transfers gets them from
        :func:`debubble.engine.transfers.insert_transfers`.
    mode
        What a transfer does, see above.

    Returns
    -------
    EventGraph
        The node of a send and of its receive is their transfer's: it starts when the transfer
        does and takes link time.

    Raises
    ------
    ScheduleError
        When the order cannot run: a transfer without its other end, a consumer before its
        receive, or actions that wait for each other.
    """
    if mode == "blocking" and first_transfer(schedule) is None:
        graph = _compile(insert_transfers(schedule, "just-in-time"), mode)
        compute = np.flatnonzero((graph.schedule.actions & KIND_MASK) <= Kind.OPT)
        return replace(graph, schedule=schedule, node=graph.node[compute], sent=graph.sent[compute])
    return _compile(schedule, mode)


def _compile(schedule: Schedule, mode: P2PMode) -> EventGraph:
    placement = schedule.placement
    ranks, stages, copies = placement.ranks, placement.stages, placement.copies
    count = len(schedule)
    cells = stages * schedule.units
    slices, lanes = schedule.slices, lanes_of(schedule)
    places = slices * copies * stages
    blocking = mode == "blocking"
    chained = schedule.sync == "post-validation"
    pairs = bool(np.any(schedule.actions & (PAIR_MASK << PAIR_SHIFT)))
    most_dynamic = lanes * min(ranks * ranks, 2 * copies * stages)
    most_dynamic += min(3 * places * places, count) if pairs else 0
    joins = int(np.count_nonzero((schedule.actions & KIND_MASK) > Kind.OPT)) if blocking else 0

    def zeros(size: int) -> NDArray[np.int32]:
        return np.zeros(size, dtype=np.int32)

    size = 1 + count + 2 * ranks * schedule.iterations + joins
    first, second, lag, cost = (np.zeros(size, dtype=np.uint32) for _ in range(4))
    node = zeros(count)
    sent = zeros(0 if mode == "overlapped" else count)
    dynamic = [zeros(most_dynamic) for _ in range(3)]
    next_action = np.zeros(ranks, dtype=np.int64)
    state = np.zeros(5, dtype=np.int64)
    compile_transfers.run(
        6 * count,
        schedule.actions,
        schedule.offsets,
        schedule.homes,
        stages,
        schedule.units,
        schedule.microbatches,
        slices,
        lanes,
        copies,
        SYNCS.index(schedule.sync),
        schedule.iterations,
        schedule.recompute_after == "gradient",
        mode == "channel",
        blocking,
        zeros(2 * cells),
        zeros(2 * cells),
        np.zeros(cells, dtype=np.uint16),
        zeros(ranks * ranks),
        zeros(3 * places * places if pairs else 1),
        zeros(1 if mode == "overlapped" else ranks * ranks),
        zeros(ranks * ranks if blocking else 1),
        first,
        second,
        cost,
        node,
        sent,
        *dynamic,
        next_action,
        np.zeros(ranks, dtype=np.int64),
        zeros(ranks),
        zeros(ranks * schedule.iterations if chained else 1),
        zeros(ranks),
        zeros(ranks),
        zeros(1 << (ranks - 1).bit_length()),
        state,
    )
    if state[sweep.OUTCOME] != sweep.DONE:
        position = int(state[sweep.POSITION])
        stopped = stuck.Stopped(schedule, blocking, next_action, node)
        raise stuck.explain(stopped, int(state[sweep.OUTCOME]), position)
    nodes = int(state[sweep.NODES])
    used = int(state[sweep.DYNAMIC])
    return EventGraph(
        schedule,
        mode,
        first[:nodes],
        second[:nodes],
        lag[:nodes],
        cost[:nodes],
        node,
        sent,
        dynamic[0][:used],
        dynamic[1][:used],
        dynamic[2][:used],
        int(state[sweep.COMPLETED]),
    )
