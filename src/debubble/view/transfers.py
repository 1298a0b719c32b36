"""TransferEnds between ranks as rectangles: what every rank sends and receives, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import kinds_of, microbatches_of, stages_of
from debubble.core.kind_relations import boundary_offsets
from debubble.core.kinds import FORWARD_KINDS, KINDS, TRANSFER_KINDS, Kind
from debubble.engine.timeline import Timeline


@dataclass(frozen=True, eq=False)
class TransferEnds:
    """Sends and receives of ranks: arrays with one entry for each end of a transfer."""

    rank: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    received: NDArray[np.bool_]
    """Whether the rank receives; else it sends."""
    backward: NDArray[np.bool_]
    """Whether a gradient moves; else an activation."""
    unit: NDArray[np.int64]
    """Microbatch, or slice of one, through all iterations."""

    def __len__(self) -> int:
        return len(self.rank)


def transfer_ends(timeline: Timeline) -> TransferEnds:
    """Return a timeline's transfers: its actions of that kind, or else what p2p costs imply."""
    schedule = timeline.schedule
    kind = kinds_of(schedule.actions)
    rank = schedule.ranks_of_actions
    here = np.flatnonzero(np.isin(kind, TRANSFER_KINDS))
    if len(here):
        return TransferEnds(
            rank[here], timeline.start[here], timeline.end[here],
            np.isin(kind[here], [other for other in TRANSFER_KINDS if KINDS[other].receives]),
            ~np.isin(kind[here], FORWARD_KINDS),
            microbatches_of(schedule.actions[here]),
        )  # fmt: skip
    if not timeline.table.link.any():
        none, never = np.zeros(0, dtype=np.int64), np.zeros(0)
        return TransferEnds(none, never, never, none > 0, none > 0, none)
    unit, stage = microbatches_of(schedule.actions), stages_of(schedule.actions)
    copy = np.where(np.isin(kind, tuple(MOVED)), schedule.copies_of(unit), 0)
    link, there = links(timeline, kind, stage, copy, unit)
    sent = np.flatnonzero(link > 0)
    begin = timeline.end[sent] + queued(timeline)[sent]
    return TransferEnds(
        np.concatenate([rank[sent], there[sent]]),
        np.tile(begin, 2),
        np.tile(begin + link[sent], 2),
        np.repeat([False, True], len(sent)),
        np.tile(_OFFSETS[kind[sent]] < 0, 2),
        np.tile(unit[sent], 2),
    )


MOVED = boundary_offsets()
"""Offset in stages from a kind to the target of its result, for kinds that have one."""

_OFFSETS = np.array([MOVED.get(kind, 0) for kind in Kind])


def links(
    timeline: Timeline,
    kind: NDArray[np.int64],
    stage: NDArray[np.int64],
    copy: NDArray[np.int64],
    unit: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the time that an action's result takes to its target, −1 for none, and the target."""
    placement = timeline.schedule.placement
    home = np.asarray(placement.table)
    offset = _OFFSETS[kind]
    target = stage + offset
    sends = (offset != 0) & (target >= 0) & (target < placement.stages)
    stage = np.where(sends, stage, 0)
    target = np.where(sends, target, 0)
    here, there = home[copy, stage], home[copy, target]
    microbatch = timeline.schedule.microbatch_of(unit)
    place = copy * placement.stages + stage
    times = timeline.table.transfers(here, there, microbatch, kind, place)
    return np.where(sends & (here != there), times, -1.0), there


def queued(timeline: Timeline) -> NDArray[np.float64]:
    """Return the queueing time of every result before its transfer starts."""
    graph = timeline.graph
    found = np.zeros(len(timeline.schedule))
    sending = np.flatnonzero(graph.sent) if len(graph.sent) else np.zeros(0, dtype=np.int64)
    nodes = graph.sent[sending]
    begin = timeline.node_end[nodes] - timeline.costs[graph.cost[nodes]]
    found[sending] = begin - timeline.end[sending]
    return found
