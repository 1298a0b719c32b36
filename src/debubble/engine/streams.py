"""Compile schedules whose sends and receives are actions, and all of them where transfers meet.

What a transfer from rank a to rank b does, by mode:

* ``"overlapped"``: it starts when a reaches the send, takes link time, and occupies nobody. The
  consumer waits for it; where the receive stands does not matter.
* ``"channel"``: the same, but the link from a to b carries one transfer at a time, in the order
  of the sends.
* ``"blocking"``: contiguous sends and receives between two compute actions are one group. A rank
  that reaches a group posts all of it. A transfer starts when both its ends are posted; the
  transfers of one group run at the same time, those of one link one by one. The rank goes on
  when all transfers of its group are over.
* ``"pair"``, ``"group"``: every send and receive is queued in the order of the program, as on a
  stream of NCCL: on one queue for each other rank, both directions together, or on one for all of
  them. A transfer starts when both ranks have reached it and it heads the queues of both.
  Computing goes on meanwhile.

A schedule without transfers is given some first where they meet, and the graph then speaks about
the actions of the schedule as given.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import KIND_MASK, PAIR_MASK, PAIR_SHIFT, Kind
from debubble.core.errors import ScheduleError
from debubble.core.schedule import SYNCS, Schedule
from debubble.engine import stuck
from debubble.engine.graph import MEETING, P2P_MODES, QUEUES, EventGraph, P2PMode, lanes_of
from debubble.engine.kernels import compile as sweep
from debubble.engine.kernels import links as kernels
from debubble.engine.kernels.streams import run_programs
from debubble.engine.transfers import ReceivePolicy, first_transfer, insert_transfers


@dataclass(frozen=True, eq=False)
class Links:
    """What the actions of a schedule wait for, whatever transfers do.

    Parameters
    ----------
    other, carrier, work
        One entry per action, see :func:`debubble.engine.kernels.links.link_actions`.
    link_id
        Cost index of every directed pair of ranks, 0 where there is none; shape ``(ranks²,)``.
    dynamic_kind, dynamic_a, dynamic_b
        What the last cost indices stand for, as in :class:`debubble.engine.graph.EventGraph`.
    outcome, position
        What is wrong with which action; ``DONE`` when all are in order.
    completed
        How many (stage, microbatch) have all of their backward.
    open
        How many sends and receives have no other end.
    overtaking
        Position of the first end of a transfer whose other end has another turn among those
        between the two ranks, −1 where there is none or some end has no other.
    """

    other: NDArray[np.int32]
    carrier: NDArray[np.int32]
    work: NDArray[np.int32]
    link_id: NDArray[np.int32]
    dynamic_kind: NDArray[np.int32]
    dynamic_a: NDArray[np.int32]
    dynamic_b: NDArray[np.int32]
    outcome: int
    position: int
    completed: int
    open: int
    overtaking: int

    @property
    def matched(self) -> bool:
        """Whether all actions are in order and all transfers have both ends, in turn."""
        return self.outcome == sweep.DONE and not self.open and self.overtaking < 0


def links_of(schedule: Schedule) -> Links:
    """Look through the actions of a schedule; the same schedule is looked through once."""
    if Links not in schedule.derived:
        found = _link(schedule)
        schedule.derived[Links] = [getattr(found, spec.name) for spec in fields(found)]
    return Links(*schedule.derived[Links])


def compile_streams(schedule: Schedule, mode: P2PMode, explain: bool = True) -> EventGraph:
    """Lower a schedule with explicit transfers to an event graph.

    Parameters
    ----------
    schedule
        Any schedule. Where transfers meet one without them gets them from
        :func:`debubble.engine.transfers.insert_transfers`.
    mode
        What a transfer does, see above.
    explain
        Whether an error has to say why.

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
    if mode in MEETING and first_transfer(schedule) is None:
        policy: ReceivePolicy = "queued" if mode in QUEUES else "just-in-time"
        graph = _compile(insert_transfers(schedule, policy), mode, explain)
        compute = np.flatnonzero((graph.schedule.actions & KIND_MASK) <= Kind.OPT)
        return replace(graph, schedule=schedule, node=graph.node[compute], sent=graph.sent[compute])
    return _compile(schedule, mode, explain)


def _zeros(size: int) -> NDArray[np.int32]:
    return np.zeros(size, dtype=np.int32)


def _link(schedule: Schedule) -> Links:
    placement, actions = schedule.placement, schedule.actions
    ranks, stages, copies = placement.ranks, placement.stages, placement.copies
    count, cells, lanes = len(schedule), stages * schedule.units, lanes_of(schedule)
    places = schedule.slices * copies * stages
    pairs = bool(np.any(actions & (PAIR_MASK << PAIR_SHIFT)))
    most_dynamic = lanes * min(ranks * ranks, 2 * copies * stages + ranks)
    most_dynamic += min(3 * places * places, count) if pairs else 0
    columns = [np.empty(count, dtype=np.int32) for _ in range(3)]
    dynamic = [_zeros(most_dynamic) for _ in range(3)]
    link_id = _zeros(ranks * ranks)
    state = np.zeros(7, dtype=np.int64)
    kernels.link_actions.run(
        3 * count,
        actions,
        schedule.offsets,
        schedule.homes,
        stages,
        schedule.units,
        schedule.microbatches,
        schedule.slices,
        lanes,
        copies,
        schedule.sync == "post-validation",
        schedule.recompute_after == "gradient",
        _zeros(2 * cells),
        _zeros(2 * cells),
        np.zeros(cells, dtype=np.uint16),
        _zeros(3 * places * places if pairs else 1),
        _zeros(ranks * ranks),
        _zeros(ranks * ranks),
        link_id,
        *columns,
        *dynamic,
        state,
    )
    other, carrier, work = columns
    kinds, a, b = (column[: int(state[sweep.DYNAMIC])] for column in dynamic)
    return Links(
        other,
        carrier,
        work,
        link_id,
        kinds,
        a,
        b,
        int(state[sweep.OUTCOME]),
        int(state[sweep.POSITION]),
        int(state[sweep.COMPLETED]),
        int(state[kernels.OPEN]),
        -1 if state[kernels.OPEN] else int(state[kernels.OVERTAKES]) - 1,
    )


def _compile(schedule: Schedule, mode: P2PMode, explain: bool) -> EventGraph:
    links = links_of(schedule)
    if links.outcome != sweep.DONE:
        raise _error(schedule, mode, links.outcome, links.position)
    if mode in MEETING and links.overtaking >= 0:
        raise _error(schedule, mode, kernels.CROSSED, links.overtaking)
    ranks, count = schedule.ranks, len(schedule)
    queued, chained = mode in QUEUES, schedule.sync == "post-validation"
    ends = count if queued else 1
    queues = ranks if mode == "group" else ranks * ranks
    # Joins are at most as many as transfers; what is not needed is never touched.
    size = 1 + count + 2 * ranks * schedule.iterations + (count if mode in MEETING else 0)
    first, second, lag, cost = (np.zeros(size, dtype=np.uint32) for _ in range(4))
    node, sent = _zeros(count), _zeros(0 if mode == "overlapped" else count)
    next_action = np.zeros(ranks, dtype=np.int64)
    state = np.zeros(5, dtype=np.int64)
    run_programs.run(
        3 * count,
        schedule.actions,
        schedule.offsets,
        links.other,
        links.work,
        P2P_MODES.index(mode),
        SYNCS.index(schedule.sync),
        schedule.iterations,
        1 + 5 * schedule.slices * schedule.placement.copies * schedule.stages,
        links.link_id,
        links.carrier,
        links.dynamic_a % ranks,
        links.dynamic_b,
        first,
        second,
        cost,
        node,
        sent,
        next_action,
        np.zeros(ranks, dtype=np.int64),
        _zeros(ranks),
        _zeros(ends),
        _zeros(ends),
        np.zeros(ends, dtype=np.uint8),
        _zeros(queues),
        _zeros(queues if queued else 1),
        _zeros(queues if queued else 1),
        _zeros(queues if queued else 1),
        _zeros(ranks),
        _zeros(ranks * schedule.iterations if chained else 1),
        _zeros(ranks),
        _zeros(ranks),
        _zeros(1 << (ranks - 1).bit_length()),
        state,
    )
    outcome, position = int(state[sweep.OUTCOME]), int(state[sweep.POSITION])
    if outcome == sweep.DONE and links.open:
        lonely = ((schedule.actions & KIND_MASK) > Kind.OPT) & (links.other < 0)
        outcome, position = kernels.UNMATCHED, int(np.argmax(lonely))
    if outcome != sweep.DONE:
        if not explain:
            raise ScheduleError(f"'{schedule.name}' cannot run")
        raise _error(schedule, mode, outcome, position, next_action, node)
    nodes = int(state[sweep.NODES])
    return EventGraph(
        schedule,
        mode,
        first[:nodes],
        second[:nodes],
        lag[:nodes],
        cost[:nodes],
        node,
        sent,
        links.dynamic_kind,
        links.dynamic_a,
        links.dynamic_b,
        links.completed,
    )


def _error(
    schedule: Schedule,
    mode: P2PMode,
    outcome: int,
    position: int,
    next_action: NDArray[np.int64] | None = None,
    node: NDArray[np.int32] | None = None,
) -> ScheduleError:
    """Why a schedule cannot be compiled, given where and how far its sweep came."""
    if mode in QUEUES:
        # What waits in queues, circles through them included, is told by the general compiler.
        from debubble.engine.events import compile_events

        try:
            compile_events(schedule, mode)
        except ScheduleError as error:
            return error
        raise AssertionError("both compilers refuse the same schedules")
    stopped = stuck.Stopped(
        schedule,
        mode == "blocking",
        np.zeros(0, dtype=np.int64) if next_action is None else next_action,
        _zeros(0) if node is None else node,
    )
    return stuck.explain(stopped, outcome, position)
