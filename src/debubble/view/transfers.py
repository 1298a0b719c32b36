"""Transfers of a timeline: its actions of that kind, or else what costs imply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.metrics import transfers_take_time
from debubble.core.actions import kinds_of, microbatches_of, stages_of
from debubble.core.carries import WAYS, carry_steps
from debubble.core.kind_relations import boundary_offsets, needs_through
from debubble.core.kinds import CARRY_KINDS, FORWARD_KINDS, KINDS, TRANSFER_KINDS, Kind
from debubble.engine.timeline import Timeline
from debubble.view.bars import Ints


@dataclass(frozen=True, eq=False)
class TransferEnds:
    """Sends and receives of ranks: arrays with one entry for each end of a transfer."""

    rank: Ints
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    received: NDArray[np.bool_]
    """Whether the rank receives; else it sends."""
    backward: NDArray[np.bool_]
    """Whether a gradient moves; else an activation."""
    carried: NDArray[np.bool_]
    """Whether it moves between stages that are not neighbors."""
    unit: Ints
    """Microbatch, or slice of one, through all iterations."""

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def lanes(self) -> int:
        """Number of lanes that keep sends, receives and carried ones apart; 0 without transfers."""
        return 2 * len(np.unique(self.carried))

    @property
    def lane(self) -> Ints:
        """Lane of every end, from the top: sends, carried sends, receives, carried receives."""
        apart = self.lanes // 2
        return np.asarray(self.received * apart + self.carried * (apart > 1), dtype=np.int64)


def transfer_ends(timeline: Timeline) -> TransferEnds:
    """Return the ends of a timeline's transfers that are actions, or else of those with a time."""
    actions, rank = timeline.schedule.actions, timeline.schedule.ranks_of_actions
    kind, unit = kinds_of(actions), microbatches_of(actions)
    here = np.flatnonzero(np.isin(kind, TRANSFER_KINDS))
    if len(here):
        return TransferEnds(
            rank[here], timeline.start[here], timeline.end[here],
            np.isin(kind[here], [other for other in TRANSFER_KINDS if KINDS[other].receives]),
            ~np.isin(kind[here], FORWARD_KINDS), np.isin(kind[here], CARRY_KINDS), unit[here],
        )  # fmt: skip
    if not transfers_take_time(timeline):
        none, never = np.zeros(0, dtype=np.int64), np.zeros(0)
        return TransferEnds(none, never, never, none > 0, none > 0, none > 0, none)
    parts = []
    for carried in (False, True):
        times, targets = links(timeline, actions, carried=carried)
        sent = np.flatnonzero(times > 0)
        begin = timeline.end[sent] + queued(timeline, carried=carried)[sent]
        end = begin + times[sent]
        parts.append((sent, begin, end, targets[sent], np.full(len(sent), carried)))
    sent, begin, end, targets, crosses = (np.concatenate(part) for part in zip(*parts, strict=True))
    return TransferEnds(
        np.concatenate([rank[sent], targets]),
        np.tile(begin, 2),
        np.tile(end, 2),
        np.repeat([False, True], len(sent)),
        np.tile(_OFFSETS[kind[sent]] < 0, 2),
        np.tile(crosses, 2),
        np.tile(unit[sent], 2),
    )


MOVED = boundary_offsets()
"""Offset in stages from a kind to the target of its result, for kinds that have one."""

_OFFSETS = np.array([MOVED.get(kind, 0) for kind in Kind])


def links(
    timeline: Timeline, actions: NDArray[Any], *, carried: bool = False
) -> tuple[NDArray[np.float64], Ints]:
    """Return times that results of actions take to the rank of another stage, and these ranks.

    That is the neighbor or, with `carried`, the one that the action's stage carries something to.
    The time is −1 where nothing goes to another rank, or in no time.
    """
    return _carried(timeline, actions) if carried else _to_neighbors(timeline, actions)


def _to_neighbors(timeline: Timeline, actions: NDArray[Any]) -> tuple[NDArray[np.float64], Ints]:
    schedule = timeline.schedule
    placement = schedule.placement
    home = np.asarray(placement.table)
    kind, stage, unit = kinds_of(actions), stages_of(actions), microbatches_of(actions)
    target = stage + _OFFSETS[kind]
    sends = (target != stage) & (target >= 0) & (target < placement.stages)
    copy = np.where(sends, schedule.copies_of(unit), 0)
    stage, target = np.where(sends, stage, 0), np.where(sends, target, 0)
    here, there = home[copy, stage], home[copy, target]
    place = copy * placement.stages + stage
    times = timeline.table.transfers(here, there, schedule.microbatch_of(unit), kind, place)
    return np.where(sends & (here != there) & (times > 0), times, -1.0), there


def _carried(timeline: Timeline, actions: NDArray[Any]) -> tuple[NDArray[np.float64], Ints]:
    schedule = timeline.schedule
    kinds, places = kinds_of(actions), schedule.places_of(actions)
    steps, homes = carry_steps(schedule.carries, schedule.stages), schedule.homes
    step = np.zeros(len(kinds), dtype=np.int64)
    for spec in KINDS:
        for need in needs_through(spec.kind, carried=True):
            made = np.isin(kinds, need.kinds)
            step[made] = steps[1 - WAYS[need.of]][stages_of(actions[made])]
    times, there = np.full(len(kinds), -1.0), homes[places + step]
    makers = np.flatnonzero(there != homes[places])
    unit = schedule.microbatch_of(microbatches_of(actions[makers]))
    found = timeline.table.carried_times(places[makers], (places + step)[makers], unit)
    times[makers] = np.where(found > 0, found, -1.0)
    return times, there


def queued(timeline: Timeline, *, carried: bool = False) -> NDArray[np.float64]:
    """Return the queueing time of every result before its transfer starts, see :func:`links`."""
    graph = timeline.graph
    through = graph.carried if carried else graph.sent
    found = np.zeros(len(timeline.schedule))
    sending = np.flatnonzero(through) if len(through) else np.zeros(0, dtype=np.int64)
    nodes = through[sending]
    begin = timeline.node_end[nodes] - timeline.costs[graph.cost[nodes]]
    found[sending] = begin - timeline.end[sending]
    return found
