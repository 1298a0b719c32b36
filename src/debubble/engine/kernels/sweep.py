"""Compile the programs of all ranks into an event graph, in one sweep.

Ranks that can go on stand in a queue. In its turn a rank does what is not computing, then
computes one thing, which leaves neighboring nodes independent of each other: evaluating them
overlaps. A rank that cannot go on leaves its number where what it waits for is going to stand, and
comes back when that is there.

What an action of each kind waits for comes as columns of the table of kinds, see
:mod:`debubble.engine.kind_columns`; what transfers do, as the columns of a row of
:data:`debubble.engine.modes.MODES`. Every action exists and is on its rank, see
:mod:`debubble.engine.validate`.

Compiled code is made for every combination of what schedules have (steps, groups, transfers, side
streams, carries), without what belongs to the others: these parameters are None, and tests for that
stand alone, so that numba leaves out the branch.
"""

from __future__ import annotations

from debubble.core.actions import PAIR_SHIFT
from debubble.engine.jit import helper, kernel, unsigned
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.carry import hand_carried, take_carried
from debubble.engine.kernels.groups import ALONE, run_group
from debubble.engine.kernels.layout import DONE, FAILED, WAITS, Frame, Maybe, push, read_item
from debubble.engine.kernels.link import leave_group, run_transfer
from debubble.engine.kernels.side_streams import (
    all_passes_done,
    join_side,
    run_collective,
    run_copy,
    run_shard,
    run_wait,
)
from debubble.engine.kernels.steps import run_step
from debubble.engine.kernels.work import begin_work, end_work, readiness


@kernel(writes=("frame.graph", "frame.rare", "frame.state"), allocates=False)
def sweep(
    frame: Frame, steps: Maybe, group: Maybe, transfers: Maybe, side: Maybe, carry: Maybe
) -> None:
    """Fill the graph's arrays in topological order, or say in ``state`` that it cannot be.

    All arrays but those of the program are zeros, see :mod:`debubble.engine.compile`: `steps`
    for optimizer steps, `group` for overlapped groups, `transfers` for sends and receives that are
    actions, `side` for side streams, and `carry` for skip connections are None for schedules
    without.
    """
    offsets, next_action, queue = frame.program.offsets, frame.turns.next_action, frame.turns.queue
    state = frame.state
    state[at.NODES] = 1
    running = 0
    for rank in range(frame.sizes.ranks):
        next_action[rank] = offsets[rank]
        if offsets[rank] < offsets[rank + 1]:
            push(rank, frame)
            running += 1
    head = 0
    while head < state[at.TAIL]:
        rank = queue[unsigned(head & (len(queue) - 1))]
        head += 1
        outcome, here = take_turn(rank, frame, steps, group, transfers, side, carry)
        if outcome == FAILED:
            state[at.FAILURE] = 1
            return
        next_action[unsigned(rank)] = here
        if outcome == DONE:
            if here < offsets[unsigned(rank + 1)]:
                push(rank, frame)
            else:
                running -= 1

    if running > 0 or state[at.QUEUED_ENDS] > 0 or state[at.OPEN_ENDS] > 0:
        state[at.FAILURE] = 1
    if side is not None:
        if frame.rules.vocabulary > 0 and state[at.FAILURE] == 0:
            if not all_passes_done(frame, side):
                state[at.FAILURE] = 1
    if transfers is not None:
        # The sweep notes the position of the send that a result goes through.
        sent = frame.graph.sent
        for position in range(len(sent)):
            if sent[position] > 0:
                sent[position] = frame.graph.node[sent[position] - 1]
        carried = frame.graph.carried
        for position in range(len(carried)):
            if carried[position] > 0:
                carried[position] = frame.graph.node[carried[position] - 1]


@helper
def take_turn(
    rank: int, frame: Frame, steps: Maybe, group: Maybe, transfers: Maybe, side: Maybe, carry: Maybe
) -> tuple[int, int]:
    """Run the actions of a rank up to the next that computes; returns an outcome and its next one.

    Transfers, copies and collectives are passed on the way; work, a step or a pass of a shard ends
    the turn.
    """
    kinds, next_action = frame.program.kinds, frame.turns.next_action
    here = next_action[unsigned(rank)]
    stop = frame.program.offsets[unsigned(rank + 1)]
    while True:
        if transfers is not None:
            ends = transfers.ends
            if ends.begins[unsigned(rank)] > 0 and here == ends.stops[unsigned(rank)]:
                if ends.unmet[unsigned(rank)] > 0:
                    return WAITS, here
                leave_group(rank, frame, ends)
        if here == stop:
            return DONE, here
        item = read_item(here, rank, frame)
        sort = kinds[item.row + at.SORT]
        if group is not None:
            if (frame.program.actions[unsigned(here)] >> PAIR_SHIFT) & 3 != ALONE:
                outcome = run_group(item, stop, frame, group, transfers, side, carry)
                return outcome, next_action[rank] if outcome == DONE else here
        wanted = -1
        if sort <= at.SHARD:
            outcome, wanted = readiness(item, frame, transfers, side, carry)
            if outcome != DONE:
                return outcome, here
        if sort == at.WORK:
            if side is not None:
                join_side(item, frame, side)
            if carry is not None:
                take_carried(item, frame, transfers, carry)
            end = begin_work(item, wanted, frame, transfers)
            cost = 1 + kinds[item.row + at.COST] * frame.sizes.places + item.place
            frame.graph.cost[unsigned(end)] = cost
            end_work(item, end, frame, transfers, side)
            if carry is not None:
                hand_carried(item, end, frame, transfers, carry)
            return DONE, here + 1
        if steps is not None:
            if sort == at.STEP:
                return run_step(item, frame, steps, side), next_action[rank]
        outcome = FAILED
        if transfers is not None:
            if sort == at.TRANSFER:
                outcome = run_transfer(item, frame, transfers, carry)
        if side is not None:
            if sort == at.SHARD:
                outcome = run_shard(item, frame, side)
                return outcome, here + 1 if outcome == DONE else here
            if sort == at.COPY:
                outcome = run_copy(item, frame, side)
            elif sort == at.WAIT:
                outcome = run_wait(item, frame, side)
            elif sort == at.COLLECTIVE:
                outcome = run_collective(item, frame, side)
        if outcome != DONE:
            return outcome, here
        here += 1
