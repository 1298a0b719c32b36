"""Times of their own for single actions: measured ones, jitter, microbatches that differ.

A compiled schedule pays the same cost for every action of a kind and stage. Here every action has
an entry of the cost vector for itself, behind those of the graph, so that all that reads a graph
(evaluation, critical path, slack, pictures) works with them as it stands.

The time of a node belongs to a microbatch: that of the action that computes, or moves its result. A
transfer belongs to a boundary between stages: that over which this action gives, or takes.
"""

from __future__ import annotations

import reprlib
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import (
    among,
    computes,
    group_bounds,
    kinds_of,
    microbatches_of,
    pairs_of,
    stages_of,
)
from debubble.core.carries import carry_steps
from debubble.core.cost_fields import LARGEST_COST
from debubble.core.cost_table import CostTable
from debubble.core.errors import CostError
from debubble.core.kinds import (
    CARRY_KINDS,
    COPY_KINDS,
    FORWARD_KINDS,
    SEND_KINDS,
    VOCABULARY_KINDS,
    WORK_KINDS,
)
from debubble.core.schedule import Schedule
from debubble.engine.event_graph import CARRY, EventGraph
from debubble.engine.kernels import layout
from debubble.engine.kind_columns import kind_columns
from debubble.engine.recompute import recompute_share

Floats = NDArray[np.float64]
Positions = NDArray[np.integer]


def with_times(
    graph: EventGraph, table: CostTable, durations: Floats | None = None
) -> tuple[EventGraph, Floats]:
    """Return a graph in which every node has a time of its own, and its cost vector.

    `durations` are times of actions, shape ``(n,)``, in place of what the table says; those of
    actions that do not compute are not used, and an overlapped pair takes that of its second half.
    """
    plain = graph.base or graph
    shared = plain.cost_vector(table)
    times, delays = shared[plain.cost], shared[plain.lag]
    if table.lengths is not None:
        stretch(plain, table, table.lengths, times, delays)
    if table.boundaries is not None:
        set_transfers(plain, table, times, delays)
    if durations is not None:
        works = np.flatnonzero(computes(kinds_of(graph.schedule.actions)))
        times[plain.node[works]] = durations[works]
    node = np.arange(len(times), dtype=np.uint32)
    cost = np.where(node > 0, len(shared) + node, 0).astype(np.uint32)
    lag = np.where(plain.lag > 0, len(shared) + len(times) + node, 0).astype(np.uint32)
    return replace(plain, cost=cost, lag=lag, base=plain), np.concatenate([shared, times, delays])


def lengths_of(schedule: Schedule, lengths: Floats) -> Floats:
    """Length of every action's microbatch, shape ``(n,)``, from that of every microbatch."""
    return np.asarray(lengths[schedule.microbatch_of(microbatches_of(schedule.actions))])


def stretch(
    graph: EventGraph, table: CostTable, lengths: Floats, times: Floats, delays: Floats
) -> None:
    """Set `times` of nodes, and `delays` before them, to those of their own microbatches.

    In the graph actions share costs; `lengths` are those of microbatches, shape
    ``(microbatches,)``.
    """
    schedule = graph.schedule
    own = lengths_of(schedule, lengths)
    _stretch_work(graph, table, own, times)
    _stretch_copies(graph, table, own, times)
    if not table.message_times.any():
        return
    for row, costs, (nodes, of) in (
        (times, graph.cost, _transfers(graph)), (delays, graph.lag, _arrivals(graph)),
    ):  # fmt: skip
        link = costs[nodes].astype(np.int64) - graph.dynamic_costs
        part = graph.dynamic_a[link] // schedule.ranks
        row[nodes] = table.by_length(row[nodes], part, own[of])
    if table.costs.p2p_carry is None:
        carriers, count = _transfers(graph, carried=True), len(schedule.placement.ranks_of_stages)
        for row, (nodes, of) in ((times, carriers), (delays, _carried_to(graph))):
            moves = row[nodes] > 0
            nodes, of = nodes[moves], of[moves]
            places = schedule.places_of(schedule.actions[of])
            row[nodes] = table.by_length(row[nodes], places // count, own[of])


def set_transfers(graph: EventGraph, table: CostTable, times: Floats, delays: Floats) -> None:
    """Set `times` of transfers, and `delays` for them, to those of their boundaries."""
    schedule = graph.schedule
    kinds, places = kinds_of(schedule.actions), schedule.places_of(schedule.actions)
    step = kind_columns(schedule).reshape(-1, layout.WIDTH)[:, layout.TOWARDS]
    for row, (nodes, of) in ((times, _transfers(graph)), (delays, _arrivals(graph))):
        beside = among(kinds[of], VOCABULARY_KINDS)
        nodes, of = nodes[~beside], of[~beside]
        kind, place = kinds[of], places[of]
        gradients = ~among(kind, FORWARD_KINDS)
        if row is delays:
            # What an action takes is of the stage from which it comes.
            place = place + step[kind]
        lengths = 1.0 if table.lengths is None else lengths_of(schedule, table.lengths)[of]
        row[nodes] = table.sent(gradients, place, lengths)


def _stretch_work(graph: EventGraph, table: CostTable, own: Floats, times: Floats) -> None:
    """Stretch compute actions that run alone, overlapped pairs, and larger groups."""
    schedule, node = graph.schedule, graph.node
    actions = schedule.actions
    kinds, places, group = kinds_of(actions), schedule.places_of(actions), pairs_of(actions)
    works = among(kinds, (*WORK_KINDS, *VOCABULARY_KINDS))
    alone = np.flatnonzero(works & (group == 0))
    times[node[alone]] = table.times(kinds[alone], places[alone], own[alone])
    first = np.flatnonzero(works & (group == 1))
    if not len(first):
        return
    members = np.flatnonzero(works & (group > 0))
    times[node[first]] = 0.0
    np.add.at(times, node[members], table.times(kinds[members], places[members], own[members]))
    last = group_bounds(actions)[1][first] - 1
    half = kind_columns(schedule).reshape(-1, layout.WIDTH)[kinds, layout.HALF]
    halves = [(half[a] == 1) & (half[b] == 2) for a, b in ((first, last), (last, first))]
    halves[0] |= (half[first] == 1) & (half[last] == 1)
    pairs = (last == first + 1) & (halves[0] | halves[1])
    forward = np.where(halves[0], first, last)[pairs]
    backward = np.where(halves[0], last, first)[pairs]
    times[node[forward]] = table.pair_times(
        (kinds[forward], places[forward]),
        (kinds[backward], places[backward]),
        (own[forward], own[backward]),
    )


def _stretch_copies(graph: EventGraph, table: CostTable, own: Floats, times: Floats) -> None:
    """Stretch offloads and reloads."""
    if not graph.has_copies:
        return
    schedule = graph.schedule
    whole = recompute_share(schedule) >= 1
    for position in np.flatnonzero(among(kinds_of(schedule.actions), COPY_KINDS)).tolist():
        node = graph.node[position]
        spot = int(graph.cost[node]) - graph.dynamic_costs
        kind, place = int(graph.dynamic_kind[spot]), int(graph.dynamic_a[spot])
        target = schedule.copy_targets[graph.dynamic_b[spot]]
        times[node] = table.copy(kind, place, target, bool(whole[place]), float(own[position]))


def _transfers(graph: EventGraph, carried: bool = False) -> tuple[Positions, Positions]:
    """Nodes of transfers to neighbors, or of carries, and an action of each one's microbatch."""
    kinds = kinds_of(graph.schedule.actions)
    sends = np.flatnonzero(among(kinds, SEND_KINDS) & (among(kinds, CARRY_KINDS) == carried))
    sent = graph.carried if carried else graph.sent
    made = np.flatnonzero(sent)
    return np.concatenate([graph.node[sends], sent[made]]), np.concatenate([sends, made])


def _carried_to(graph: EventGraph) -> tuple[Positions, Positions]:
    """Nodes that wait for what is carried, which is no node, and the actions that they are for.

    Each stands in front of the node of its action, or of its group's members in their order.
    """
    schedule, rows = graph.schedule, kind_columns(graph.schedule).reshape(-1, layout.WIDTH)
    carried = np.zeros(graph.dynamic_costs + len(graph.dynamic_kind), dtype=bool)
    carried[graph.dynamic_costs :] = graph.dynamic_kind == CARRY
    nodes = np.flatnonzero(carried[graph.lag])
    kinds, places = kinds_of(schedule.actions), schedule.places_of(schedule.actions)
    step = np.zeros(len(kinds), dtype=np.int64)
    if len(nodes):
        steps = np.vstack(
            [np.zeros(schedule.stages, int), carry_steps(schedule.carries, schedule.stages)]
        )
        step = steps[rows[kinds, layout.CARRY_FROM], stages_of(schedule.actions)]
    homes = schedule.homes
    takes = np.flatnonzero(among(kinds, WORK_KINDS) & (homes[places + step] != homes[places]))
    return nodes, takes[np.lexsort((takes, graph.node[takes]))]


def _arrivals(graph: EventGraph) -> tuple[Positions, Positions]:
    """Nodes that wait for transfers which are no nodes, and an action of each one's microbatch.

    An action that runs alone waits at its own node, members of a group at those up to the group's,
    in their order. What a shard of the output layer hands on waits at the node that joins it to the
    other shards'.
    """
    schedule, node = graph.schedule, graph.node
    actions = schedule.actions
    late = np.setdiff1d(np.flatnonzero(graph.lag), _carried_to(graph)[0], assume_unique=True)
    kinds, stages, places = kinds_of(actions), stages_of(actions), schedule.places_of(actions)
    shards = np.flatnonzero(among(kinds, VOCABULARY_KINDS))
    shards = shards[graph.lag[node[shards]] > 0]
    found: list[Positions] = [node[shards]]
    of: list[Positions] = [shards]
    if not len(graph.sent) and not among(kinds, SEND_KINDS).any():
        step = kind_columns(schedule).reshape(-1, layout.WIDTH)[kinds, layout.TOWARDS]
        step = np.where(among(kinds, WORK_KINDS), step, 0)
        there = (step != 0) & (stages + step >= 0) & (stages + step < schedule.stages)
        home, towards = schedule.homes, np.where(there, places + step, places)
        takes = np.flatnonzero(there & (home[towards] != home[places]))
        # Members of a group share their node; the last to wait does so nearest to it.
        ends = node[takes]
        last = np.searchsorted(takes, group_bounds(actions)[1][takes]) - 1
        after = last - np.arange(len(takes))
        found.append(late[np.searchsorted(late, ends, side="right") - 1 - after])
        of.append(takes)
    if schedule.vocabulary:
        made = graph.order[graph.second[late]]
        joins = (graph.order[late] < 0) & (made >= 0) & (graph.order[graph.first[late]] < 0)
        joins[joins] = among(kinds[made[joins]], VOCABULARY_KINDS)
        found.append(late[joins])
        of.append(made[joins])
    return np.concatenate(found), np.concatenate(of)


def checked(durations: ArrayLike, count: int) -> Floats:
    """Return the given times of `count` actions.

    Raises CostError when there is not a time for each.
    """
    try:
        times = np.asarray(durations, dtype=np.float64)
    except (TypeError, ValueError):
        shown = reprlib.repr(durations)
        raise CostError(f"durations is {shown}; give one number per action") from None
    if times.shape != (count,):
        raise CostError(
            f"durations has the shape {times.shape} for {count:,} actions; give one time for each"
        )
    wrong = np.flatnonzero(~((times >= 0) & (times <= LARGEST_COST)))
    if len(wrong):
        raise CostError(
            f"durations[{wrong[0]}] is {times[wrong[0]]:g}; give a time from 0 to {LARGEST_COST:g}"
        )
    return times
