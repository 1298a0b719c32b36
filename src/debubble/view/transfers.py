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
from debubble.core.schedule import Schedule
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
    schedule, table = timeline.schedule, timeline.table
    kinds, places = kinds_of(actions), schedule.places_of(actions)
    step = (_carried if carried else _to_neighbors)(schedule, kinds, stages_of(actions))
    here, there = schedule.homes[places], schedule.homes[places + step]
    times = np.full(len(kinds), -1.0)
    sends = np.flatnonzero(there != here)
    unit = schedule.microbatch_of(microbatches_of(actions[sends]))
    if carried:
        found = table.carried_times(places[sends], (places + step)[sends], unit)
    else:
        found = table.transfers(here[sends], there[sends], unit, kinds[sends], places[sends])
    times[sends] = np.where(found > 0, found, -1.0)
    return times, there


def _to_neighbors(schedule: Schedule, kinds: Ints, stages: Ints) -> Ints:
    """Return how many stages away the results of actions go."""
    target = stages + _OFFSETS[kinds]
    return np.where((target >= 0) & (target < schedule.stages), _OFFSETS[kinds], 0)


def _carried(schedule: Schedule, kinds: Ints, stages: Ints) -> Ints:
    """Return how many stages away actions carry something."""
    steps, step = carry_steps(schedule.carries, schedule.stages), np.zeros_like(stages)
    for spec in KINDS:
        for need in needs_through(spec.kind, carried=True):
            made = np.isin(kinds, need.kinds)
            step[made] = steps[1 - WAYS[need.of]][stages[made]]
    return step


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
