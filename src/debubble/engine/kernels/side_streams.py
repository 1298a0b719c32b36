"""Side streams of ranks, copies and collectives, and shards of the output layer.

Copies and collectives run at the same time as what a rank computes, each on a stream of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from debubble.engine.jit import Array, helper
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.layout import (
    DONE,
    FAILED,
    WAITS,
    Frame,
    Item,
    Maybe,
    SweepOutput,
    add_node,
    join,
    link_cost,
    new_cost,
    push,
)

# Of the passes of a microbatch's shards, from shards[unit * SHARDS + OPENED] on: how many first
# passes were done, the node that joins them, and the first rank that waits for all; from AWAITED on
# the same of the passes that the last stage waits for.
OPENED, AWAITED, SHARDS = 0, 3, 6
COUNT, NODE, WAITER = range(3)


class SideStreams(NamedTuple):
    """Progress of all that ranks do besides computing, and of shards."""

    copied: Array
    gathered_by: Array
    reduced_by: Array
    """As the two before, the last copy, collective and reduction of every rank."""
    time_id: Array
    """Cost index of every kind and place, 0 before its first use."""
    weights: Array
    """Node of gathered weights that nothing has used yet, for every place."""
    reductions: Array
    """Whether the gradients of every place and iteration are reduced."""
    moved: Array
    """Node of every cell's last copy."""
    shards: Array
    """``SHARDS`` numbers for each unit."""
    parked: Array
    """The rank that waits for the same as each rank, as −(rank + 1)."""
    owner_of: Array
    """First place of those that a rank holds of a stage, for every place."""
    ahead: Array
    """The copy in front of every copy on a link that ranks share, −1 where there is none; empty
    where ranks share none."""
    first_stage: Array
    """First stage of every rank."""


@helper
def side_ready(item: Item, done: int, frame: Frame, side: SideStreams) -> int:
    """Look whether work has its activation, its gradients and its shards; returns an outcome."""
    kinds, row, sizes = frame.program.kinds, item.row, frame.sizes
    if done & kinds[row + at.AWAY] != 0 and done & kinds[row + at.BACK] == 0:
        return FAILED
    if kinds[row + at.REDUCES] != 0:
        iteration = item.unit // (sizes.microbatches * sizes.slices)
        if side.reductions[side.owner_of[item.place] * sizes.iterations + iteration] != 0:
            return FAILED
    if kinds[row + at.EDGE] != 0 and item.stage == sizes.stages - 1:
        spot = SHARDS * item.unit + AWAITED
        if side.shards[spot + COUNT] < sizes.ranks:
            park(item.rank, spot + WAITER, side.shards, side)
            return WAITS
    return DONE


@helper
def park(rank: int, spot: int, waiters: Array, side: SideStreams) -> None:
    """Let a rank wait for what others may wait for already: a list that begins at `spot`."""
    side.parked[rank] = waiters[spot]
    waiters[spot] = -(rank + 1)


@helper
def wake(waiter: int, frame: Frame, side: SideStreams) -> None:
    """Queue every rank of a list of waiters."""
    while waiter < 0:
        push(-waiter - 1, frame)
        waiter = side.parked[-waiter - 1]


@helper
def wake_on_last_stage(key: int, node: int, frame: Frame, side: SideStreams) -> None:
    """Store a result of the last stage, and queue the ranks whose shards wait for it."""
    results = frame.results.node
    wake(results[key], frame, side)
    results[key] = node


@helper
def last_reduction(rank: int, side: Maybe) -> int:
    """Return the node of a rank's last reduction, 0 for none."""
    if side is None:
        return 0
    node: int = side.reduced_by[rank]
    return node


@helper
def cost_of(kind: int, place: int, where: int, frame: Frame, side: SideStreams) -> int:
    """Return the cost index of a kind on a place; a new one at first use."""
    spot = kind * frame.sizes.places + place
    if side.time_id[spot] == 0:
        side.time_id[spot] = new_cost(kind, place, where, frame)
    index: int = side.time_id[spot]
    return index


@helper
def join_side(item: Item, frame: Frame, side: SideStreams) -> None:
    """Join what work waits for besides its turn and its neighbor's result.

    That is its weights, its activation's reload and, on the last stage, the shards of the output
    layer.
    """
    kinds, row = frame.program.kinds, item.row
    if kinds[row + at.WEIGHTS] != 0:
        owner = side.owner_of[item.place]
        if side.weights[owner] > 0:
            join(item.rank, side.weights[owner], frame)
        side.weights[owner] = 0
    if kinds[row + at.AWAY] != 0 and len(side.moved) > 0:
        if side.moved[item.cell] > 0:
            join(item.rank, side.moved[item.cell], frame)
    if kinds[row + at.EDGE] != 0 and item.stage == frame.sizes.stages - 1:
        node = side.shards[SHARDS * item.unit + AWAITED + NODE]
        if node > 0:
            join(item.rank, node, frame)


@helper
def run_copy(item: Item, frame: Frame, side: SideStreams) -> int:
    """Add a copy; it waits while it is not its turn on a link that ranks share."""
    graph, rank, here = frame.graph, item.rank, item.here
    before = side.copied[rank]
    if len(side.ahead) > 0:
        before = 0
        if side.ahead[here] >= 0:
            before = graph.node[side.ahead[here]]
            if before <= 0:
                graph.node[side.ahead[here]] = -(rank + 1)
                return WAITS
    kinds = frame.program.kinds
    frame.results.seen[item.cell] |= kinds[item.row + at.BIT]
    time = cost_of(item.row // at.WIDTH, item.place, rank, frame, side)
    if graph.node[here] < 0:
        push(-graph.node[here] - 1, frame)
    n = add_node(frame.turns.last_node[rank], before, frame)
    graph.cost[n] = time
    graph.node[here] = n
    side.copied[rank] = n
    side.moved[item.cell] = n
    return DONE


@helper
def run_wait(item: Item, frame: Frame, side: SideStreams) -> int:
    """Hold up what a rank computes until the last copy of a cell is over; returns DONE."""
    frame.results.seen[item.cell] |= frame.program.kinds[item.row + at.BIT]
    frame.graph.node[item.here] = join(item.rank, side.moved[item.cell], frame)
    return DONE


@helper
def run_collective(item: Item, frame: Frame, side: SideStreams) -> int:
    """Add a collective of a stage, of the first copy of the model that the rank has it of.

    Returns DONE.
    """
    kinds, graph, sizes, rank = frame.program.kinds, frame.graph, frame.sizes, item.rank
    owner = item.stage
    while frame.program.rank_of[owner] != rank:
        owner += sizes.stages
    before = time = 0
    takes_time = kinds[item.row + at.COST] != 0
    if takes_time:
        time = cost_of(item.row // at.WIDTH, owner, owner, frame, side)
        before = side.gathered_by[rank]
    n = add_node(frame.turns.last_node[rank], before, frame)
    graph.cost[n] = time
    graph.node[item.here] = n
    if takes_time:
        side.gathered_by[rank] = n
    if kinds[item.row + at.REDUCES] != 0:
        iteration = min(item.unit, sizes.iterations - 1)
        side.reductions[owner * sizes.iterations + iteration] = 1
        side.reduced_by[rank] = n
    else:
        side.weights[owner] = n if takes_time else 0
    return DONE


@helper
def run_shard(item: Item, frame: Frame, side: SideStreams) -> int:
    """Add a pass of a shard of the output layer; it waits while its input is not there.

    The first pass waits for the forward of the last stage, the other for the first passes of all
    shards. Their sums go to the last rank and come back.
    """
    kinds, sizes, graph, rank = frame.program.kinds, frame.sizes, frame.graph, item.rank
    if frame.rules.vocabulary == 0 or side.first_stage[rank] != item.stage:
        return FAILED
    shards, results = side.shards, frame.results
    spot = SHARDS * item.unit
    opens = kinds[item.row + at.EDGE] == 0
    if opens:
        wanted = (sizes.stages - 1) * sizes.units + item.unit
        more = results.node[wanted]
        if more <= 0:
            park(rank, wanted, results.node, side)
            return WAITS
    else:
        more = shards[spot + OPENED + NODE]
        if shards[spot + OPENED + COUNT] < sizes.ranks:
            park(rank, spot + OPENED + WAITER, shards, side)
            return WAITS
    home = frame.program.rank_of[sizes.stages - 1]
    lag = 0
    if home != rank:
        lag = link_cost(home, rank, 0, frame)
    time = cost_of(item.row // at.WIDTH, item.place, rank, frame, side)
    n = join(rank, more, frame)
    graph.lag[n] = lag
    graph.cost[n] = time
    graph.node[item.here] = n
    results.seen[item.cell] |= kinds[item.row + at.BIT]
    if opens:
        join_shards(rank, spot + OPENED, 0, frame, side)
    if kinds[item.row + at.GIVEN] != 0:
        lag = 0
        if home != rank:
            lag = link_cost(rank, home, 0, frame)
        join_shards(rank, spot + AWAITED, lag, frame, side)
    return DONE


@helper
def join_shards(rank: int, spot: int, lag: int, frame: Frame, side: SideStreams) -> None:
    """Join a rank's pass to those of others, and wake the ranks that wait for all of them."""
    shards = side.shards
    n = add_node(shards[spot + NODE], frame.turns.last_node[rank], frame)
    frame.graph.lag[n] = lag
    shards[spot + NODE] = n
    shards[spot + COUNT] += 1
    if shards[spot + COUNT] == frame.sizes.ranks:
        wake(shards[spot + WAITER], frame, side)


@helper
def all_passes_done(frame: Frame, side: SideStreams) -> bool:
    """Return whether what has begun on the last stage, or on a shard, has all its passes.

    That is both passes, of the last stage and of the shard of every rank.
    """
    sizes, kinds = frame.sizes, frame.program.kinds
    results: SweepOutput = frame.results
    forward = backward = passes = 0
    for row in range(0, len(kinds), at.WIDTH):
        if kinds[row + at.SORT] == at.SHARD:
            passes |= kinds[row + at.BIT]
        elif kinds[row + at.SORT] == at.WORK and kinds[row + at.GIVES] > 0:
            forward |= kinds[row + at.BIT]
        elif kinds[row + at.SORT] == at.WORK and kinds[row + at.GIVES] < 0:
            backward |= kinds[row + at.BIT]
    for unit in range(sizes.units):
        done = results.seen[(sizes.stages - 1) * sizes.units + unit]
        some = done & (forward | backward) != 0
        whole = done & forward != 0
        for rank in range(sizes.ranks):
            done = results.seen[side.first_stage[rank] * sizes.units + unit] & passes
            some = some or done != 0
            whole = whole and done == passes
        if some and not whole:
            return False
    return True
