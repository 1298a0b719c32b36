"""Weights that are gathered and gradients that are reduced among the replicas of a stage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import SHARDING_KINDS, Kind
from debubble.engine.event_graph import COLLECTIVE_KINDS
from debubble.engine.events import Edges, Events, Ids

USES = (Kind.F, Kind.I, Kind.B, Kind.W, Kind.R)
"""Kinds that compute with a stage's weights."""


def collectives(events: Events) -> Iterator[Edges]:
    """Gathered weights and reduced gradients, on a stream of their own."""
    every = events.of(*SHARDING_KINDS)
    if not len(every):
        return
    copy = copies_here(events)
    for kind in COLLECTIVE_KINDS:
        here = events.of(kind)
        if len(here):
            place = copy[here] * events.schedule.stages + events.stage[here]
            events.own[here] = events.collective_time(kind, place)
    events.own[events.of(Kind.RESHARD)] = 0
    yield events.after_turn(every)
    both = events.of(*COLLECTIVE_KINDS)
    same = events.rank[both[1:]] == events.rank[both[:-1]]
    yield Edges(both[1:][same], both[:-1][same], turn=True)
    yield _weights(events)
    yield _gradients(events)


def _weights(events: Events) -> Edges:
    """What computes on a stage first after an UNSHARD waits for it; the rest comes after that."""
    positions = events.of(*USES, Kind.UNSHARD, Kind.RESHARD)
    owner = events.rank[positions] * events.schedule.stages + events.stage[positions]
    order = np.argsort(owner, kind="stable")
    positions, owner = positions[order], owner[order]
    kind = events.kind[positions]
    first = (owner[1:] == owner[:-1]) & (kind[:-1] == Kind.UNSHARD) & (kind[1:] < Kind.OPT)
    return Edges(events.event[positions[1:][first]], positions[:-1][first])


def _gradients(events: Events) -> Edges:
    """A reduction waits for the last weight gradient of its stage in its iteration."""
    schedule = events.schedule
    count, period = schedule.iterations, schedule.microbatches * schedule.slices
    made, reduced = events.of(Kind.W, Kind.B), events.of(Kind.REDUCE_GRAD)
    owner = events.rank.astype(np.int64) * schedule.stages + events.stage
    last = np.full(schedule.ranks * schedule.stages * count, -1, dtype=np.int32)
    last[owner[made] * count + events.unit[made] // period] = made
    iteration = np.minimum(events.unit[reduced], count - 1)
    needed = last[owner[reduced] * count + iteration]
    late = needed > reduced
    return Edges(reduced[late], events.event[needed[late]])


def reductions_before(events: Events, positions: Ids) -> tuple[Ids, Ids]:
    """The last REDUCE_GRAD before some actions of the same rank.

    Indices into `positions` of those that have one, and its event.
    """
    reduced = events.of(Kind.REDUCE_GRAD)
    if not len(reduced):
        return reduced, reduced
    index = np.searchsorted(reduced, positions) - 1
    has = np.flatnonzero((index >= 0) & (events.rank[reduced[index]] == events.rank[positions]))
    return has, reduced[index[has]]


def copies_here(events: Events) -> NDArray[np.int64]:
    """For every action the copy of the model whose stage its rank holds, −1 where it has none."""
    table = np.asarray(events.schedule.placement.table)
    copy = np.full(len(events.rank), -1, dtype=np.int64)
    for index in range(len(table) - 1, -1, -1):
        copy[table[index][events.stage] == events.rank] = index
    return copy
