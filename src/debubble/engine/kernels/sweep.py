"""Compile the programs of all ranks into an event graph, in one sweep.

Ranks that can go on stand in a queue. In its turn a rank does what is beside computing, then
computes one thing, which leaves neighbouring nodes independent of each other: evaluating them
overlaps. A rank that cannot go on leaves its number where what it waits for is going to stand, and
comes back when that is there.

What an action of each kind waits for comes as columns of the table of kinds, see
:mod:`debubble.engine.kind_columns`; what transfers do, as the columns of a row of
:data:`debubble.engine.modes.MODES`. Every action exists and is on its rank, see
:mod:`debubble.engine.validate`.

* :mod:`debubble.engine.kernels.layout` has the arrays and numbers that all parts share,
* this module the loop over the ranks' turns,
* :mod:`debubble.engine.kernels.work` what computes: what it waits for, and who waits for it,
* :mod:`debubble.engine.kernels.groups` overlapped groups,
* :mod:`debubble.engine.kernels.steps` optimizer steps,
* :mod:`debubble.engine.kernels.link` sends and receives that are actions, and
  :mod:`debubble.engine.kernels.queues` those that ranks queue,
* :mod:`debubble.engine.kernels.side_streams` copies, collectives and shards of the output layer.

Compiled code is made for every combination of what schedules have (groups, transfers, what is
beside computing), without what belongs to the others: their arrays are None, and tests for that
stand alone.
"""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, PAIR_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, kernel, unsigned
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.groups import ALONE, MOST_MEMBERS, Group, group_cost, members_of
from debubble.engine.kernels.layout import (
    BAD_GROUP,
    BAD_STEP,
    CROSSED,
    DONE,
    DUPLICATE,
    INCOMPLETE,
    MIXED,
    NO_TRANSFER,
    ORDER,
    OTHER_KIND,
    OUT_OF_RANGE,
    REDUCED,
    STUCK,
    UNMATCHED,
    WAITS,
    WRONG_RANK,
    Graph,
    Maybe,
    Program,
    Rare,
    Results,
    Sizes,
    Turns,
    push,
)
from debubble.engine.kernels.link import Ends, leave_group, transfer
from debubble.engine.kernels.queues import Queues
from debubble.engine.kernels.side_streams import (
    SideStreams,
    all_passes_done,
    collective,
    copy,
    more_joined,
    shard,
    wait,
)
from debubble.engine.kernels.steps import Steps, add_step, hand_on_norm, step_of_all
from debubble.engine.kernels.work import begin_work, end_work, readiness

__all__ = [
    "BAD_GROUP", "BAD_STEP", "CROSSED", "DONE", "DUPLICATE", "INCOMPLETE", "MIXED", "MOST_MEMBERS",
    "NO_TRANSFER", "ORDER", "OTHER_KIND", "OUT_OF_RANGE", "REDUCED", "STUCK", "UNMATCHED",
    "WRONG_RANK", "sweep",
]  # fmt: skip


@kernel(
    writes=(
        "first", "second", "lag", "cost", "node", "sent", "dynamic_kind", "dynamic_a",
        "dynamic_b", "next_action", "state",
    ),
    allocates=False,
)  # fmt: skip
def sweep(
    actions: Array,
    offsets: Array,
    rank_of: Array,
    offset_of: Array,
    kinds: Array,
    stages: int,
    microbatches: int,
    slices: int,
    copies: int,
    iterations: int,
    lanes: int,
    sync: int,
    vocabulary: int,
    timed: int,
    one_by_one: bool,
    blocking: bool,
    queued: bool,
    by_peer: bool,
    by_direction: bool,
    seen: Array,
    results: Array,
    first: Array,
    second: Array,
    lag: Array,
    cost: Array,
    node: Array,
    sent: Array,
    dynamic_kind: Array,
    dynamic_a: Array,
    dynamic_b: Array,
    next_action: Array,
    state: Array,
    work: tuple[Array, ...],
    grouping: Maybe,
    transfers: Maybe,
    aside: Maybe,
) -> None:
    """Fill the graph's arrays in topological order, or say in ``state`` what is wrong where.

    Parameters
    ----------
    actions, offsets, rank_of, offset_of, kinds
        See :class:`debubble.engine.kernels.layout.Program`.
    stages, microbatches, slices, copies, iterations, lanes
        See :class:`debubble.engine.kernels.layout.Sizes`.
    sync, vocabulary
        Of the schedule; the first as a position in :data:`debubble.core.schedule.SYNCS`.
    timed
        How many kinds have a time for every place.
    one_by_one, blocking, queued, by_peer, by_direction
        What transfers do, see :class:`debubble.engine.modes.ModeSpec`.
    seen, results
        Zeros, see :class:`debubble.engine.kernels.layout.Results`.
    first, second, lag, cost, node, sent, dynamic_kind, dynamic_a, dynamic_b
        Zeros that become those of :class:`debubble.engine.event_graph.EventGraph`. Without nodes of
        transfers ``sent`` is empty.
    next_action, state
        How far every rank came, and what else is to know.
    work, grouping, transfers, aside
        Zeros for the sweep itself, for groups, for sends and receives that are actions, and for
        what is beside computing, see :mod:`debubble.engine.compile`; all but the first are None
        for schedules without.
    """
    ranks = len(offsets) - 1
    units = microbatches * slices * iterations
    cells = stages * units
    places = slices * copies * stages
    base = 1 + timed * places + ranks
    sizes = Sizes(
        ranks, stages, microbatches, slices, units, copies, iterations, cells, places, base, lanes
    )
    program = Program(actions, offsets, rank_of, offset_of, kinds)
    graph = Graph(first, second, lag, cost, node)
    done = Results(results, seen)
    link_id, last_node, queue, steps_done, norm, link_node = work
    rare = Rare(link_id, dynamic_kind, dynamic_a, dynamic_b)
    turns = Turns(next_action, last_node, queue)
    steps = Steps(steps_done, norm)
    if grouping is not None:
        member_row, member_place, member_cell, member_wanted = grouping[:4]
        pair, pair_id, group_key, group_id = grouping[4:]
        group = Group(
            member_row, member_place, member_cell, member_wanted, pair, pair_id, group_key, group_id
        )
    if transfers is not None:
        reached, made_by, last, begins, stops, unmet = transfers[:6]
        ends = Ends(reached, made_by, last, begins, stops, unmet)
        posted, queue_end, queue_node, queue_after, ready = transfers[6:]
        queues = Queues(
            ranks if by_peer else 1, 2 if by_direction else 1, posted, queue_end, queue_node,
            queue_after, ready,
        )  # fmt: skip
    side: Maybe
    if aside is None:
        side = None
    else:
        copied, gathered_by, reduced_by, time_id, weights, reductions = aside[:6]
        moved, shards, parked, owner_of, ahead, first_stage = aside[6:]
        side = SideStreams(
            copied, gathered_by, reduced_by, time_id, owner_of, weights, reductions, moved,
            ahead, shards, parked, first_stage,
        )  # fmt: skip

    n = 1
    head = tail = 0
    running = completed = 0
    for rank in range(ranks):
        next_action[rank] = offsets[rank]
        if offsets[rank] < offsets[rank + 1]:
            tail = push(rank, tail, queue)
            running += 1

    while head < tail:
        rank = queue[unsigned(head & (len(queue) - 1))]
        head += 1
        here = next_action[unsigned(rank)]
        stop = offsets[unsigned(rank + 1)]
        outcome = DONE
        position = here
        while True:
            if transfers is not None:
                if ends.begins[rank] > 0 and here == ends.stops[rank]:
                    if ends.unmet[rank] > 0:
                        outcome = WAITS
                        break
                    n = leave_group(rank, n, program, graph, turns, ends)
            if here == stop:
                break
            position = here
            action = actions[unsigned(here)]
            row = (action & KIND_MASK) * at.WIDTH
            sort = kinds[row + at.SORT]
            stage = (action >> STAGE_SHIFT) & STAGE_MASK
            unit = action >> MICROBATCH_SHIFT

            if grouping is not None:
                if (action >> PAIR_SHIFT) & 3 != ALONE:
                    members = members_of(here, stop, program)
                    if members < 0:
                        outcome = BAD_GROUP
                        break
                    for index in range(members):
                        position = here + index
                        outcome, place, cell, wanted = readiness(
                            actions[position], rank, sizes, program, done, transfers, side
                        )
                        if outcome != DONE:
                            break
                        group.row[index] = (actions[position] & KIND_MASK) * at.WIDTH
                        group.place[index] = place
                        group.cell[index] = cell
                        group.wanted[index] = wanted
                    if outcome != DONE:
                        break
                    for index in range(members):
                        row, place = group.row[index], group.place[index]
                        wanted = group.wanted[index]
                        unit = actions[here + index] >> MICROBATCH_SHIFT
                        if aside is not None:
                            cell = group.cell[index]
                            n = more_joined(
                                n, rank, row, place, cell, sizes, kinds, graph, turns, side
                            )
                        n = begin_work(
                            n, rank, row, unit, place, wanted, one_by_one, sizes, program, graph,
                            rare, turns, done, transfers, state,
                        )  # fmt: skip
                    end = n - 1
                    cost[end] = group_cost(members, kinds, group, sizes, rare, state)
                    for index in range(members):
                        completed += kinds[group.row[index] + at.COMPLETES]
                        n, tail = end_work(
                            n, tail, end, here + index, rank, group.row[index], group.place[index],
                            group.cell[index], one_by_one, sizes, program, graph, rare, turns, done,
                            link_node, sent, transfers, vocabulary, side, state,
                        )  # fmt: skip
                    here += members
                    break

            place = cell = 0
            wanted = -1
            if sort <= at.SHARD:
                outcome, place, cell, wanted = readiness(
                    action, rank, sizes, program, done, transfers, side
                )
                if outcome != DONE:
                    break
            if sort == at.WORK:
                if aside is not None:
                    n = more_joined(n, rank, row, place, cell, sizes, kinds, graph, turns, side)
                end = n
                n = begin_work(
                    n, rank, row, unit, place, wanted, one_by_one, sizes, program, graph, rare,
                    turns, done, transfers, state,
                )  # fmt: skip
                cost[unsigned(end)] = 1 + kinds[row + at.COST] * places + place
                completed += kinds[row + at.COMPLETES]
                n, tail = end_work(
                    n, tail, end, here, rank, row, place, cell, one_by_one, sizes, program, graph,
                    rare, turns, done, link_node, sent, transfers, vocabulary, side, state,
                )  # fmt: skip
                here += 1
                break
            if sort == at.STEP:
                if sync == at.GLOBAL:
                    if unit < state[at.STEPS]:
                        outcome = BAD_STEP
                        break
                    next_action[rank] = here
                    n, tail = step_of_all(n, tail, sizes, graph, rare, turns, side, state)
                    here = next_action[rank]
                    outcome = WAITS
                    break
                before = 0
                if sync == at.POST_VALIDATION:
                    if steps.done[rank] == iterations:
                        outcome = BAD_STEP
                        break
                    spot = (rank - 1) * iterations + steps.done[rank]
                    if rank > 0 and steps.norm[spot] <= 0:
                        steps.norm[spot] = -1
                        outcome = WAITS
                        break
                    n, tail = hand_on_norm(
                        n, tail, rank, sizes, graph, rare, turns, steps, side, state
                    )
                if aside is not None:
                    before = side.reduced_by[rank]
                n = add_step(n, here, rank, before, sizes, graph, turns)
                here += 1
                break
            if transfers is not None:
                if sort == at.TRANSFER:
                    n, tail = transfer(
                        n, tail, here, rank, row, place, cell, one_by_one, blocking, queued, sizes,
                        program, graph, rare, turns, done, link_node, sent, ends, queues, state,
                    )  # fmt: skip
                    if state[at.OVERTAKEN] > 0 and (blocking or queued):
                        outcome = CROSSED
                        break
                    here += 1
                    continue
            if aside is not None:
                if sort == at.COPY:
                    before = n
                    n, tail = copy(
                        n, tail, here, rank, row, place, cell, sizes, kinds, graph, rare, turns,
                        done, side, state,
                    )  # fmt: skip
                    if n == before:
                        outcome = WAITS
                        break
                    here += 1
                    continue
                if sort == at.WAIT:
                    n = wait(n, here, rank, row, cell, kinds, graph, turns, done, side)
                    here += 1
                    continue
                if sort == at.COLLECTIVE:
                    n = collective(
                        n, here, rank, row, stage, unit, sizes, program, graph, rare, turns, side,
                        state,
                    )  # fmt: skip
                    here += 1
                    continue
                if sort == at.SHARD:
                    if vocabulary == 0 or first_stage[rank] != stage:
                        outcome = WRONG_RANK
                        break
                    before = n
                    n, tail = shard(
                        n, tail, here, rank, row, unit, place, cell, sizes, program, graph, rare,
                        turns, done, side, state,
                    )  # fmt: skip
                    if n == before:
                        outcome = WAITS
                    else:
                        here += 1
                    break
            outcome = OTHER_KIND
            break
        if outcome > DONE:
            state[at.OUTCOME] = outcome
            state[at.POSITION] = position
            return
        next_action[unsigned(rank)] = here
        if outcome == DONE:
            # What occupies the rank ends its turn.
            if here < stop:
                tail = push(rank, tail, queue)
            else:
                running -= 1

    outcome = DONE
    if running > 0 or state[at.QUEUED_ENDS] > 0:
        outcome = STUCK
    elif state[at.OPEN_ENDS] > 0:
        outcome = UNMATCHED
    if aside is not None:
        if vocabulary > 0 and outcome == DONE:
            if not all_passes_done(sizes, kinds, done, side):
                outcome = INCOMPLETE
    if transfers is not None:
        for rank in range(ranks):
            if ends.begins[rank] > 0:
                next_action[rank] = ends.begins[rank] - 1
        for position in range(len(sent)):
            if sent[position] > 0:
                sent[position] = node[sent[position] - 1]
    state[at.NODES] = n
    state[at.COMPLETED] = completed
    state[at.OUTCOME] = outcome
