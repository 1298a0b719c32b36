"""What few schedules have: copies, collectives, and shards of the output layer.

Copies and collectives run beside what a rank computes, each on a stream of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from debubble.engine.jit import Array, helper
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.layout import (
    Graph,
    Program,
    Rare,
    Results,
    Sizes,
    Turns,
    add_node,
    link_cost,
    new_cost,
    push,
)


class SideStreams(NamedTuple):
    """What is going on beside computing.

    ``copied``, ``gathered_by`` and ``reduced_by`` are the last copy, collective and reduction of
    every rank. ``time_id`` is the cost index of every kind and place. ``owner_of`` is the first
    place of those that a rank holds of a stage. ``weights`` is the node of gathered weights that
    nothing has used yet, ``reductions`` whether a stage's gradients of an iteration are reduced,
    and ``moved`` the node of a cell's last copy. ``ahead[i]`` is the copy in front of copy i on a
    link that ranks share, −1 where there is none.

    ``shards`` has six numbers for each microbatch: how many first passes were done, the node that
    joins them and who waits for it, and the same of the passes that the last stage waits for.
    Several ranks may wait for the same there: ``parked[r]`` is who waits beside rank r.
    ``first_stage`` is that of every rank.
    """

    copied: Array
    gathered_by: Array
    reduced_by: Array
    time_id: Array
    owner_of: Array
    weights: Array
    reductions: Array
    moved: Array
    ahead: Array
    shards: Array
    parked: Array
    first_stage: Array


@helper
def wake(waiter: int, tail: int, parked: Array, queue: Array) -> int:
    """Queue every rank of a list of waiters; returns the queue's new end."""
    while waiter < 0:
        tail = push(-waiter - 1, tail, queue)
        waiter = parked[-waiter - 1]
    return tail


@helper
def cost_of(
    kind: int, place: int, where: int, sizes: Sizes, rare: Rare, side: SideStreams, state: Array
) -> int:
    """Cost index of a kind on a place; a new one at first use."""
    spot = kind * sizes.places + place
    if side.time_id[spot] == 0:
        side.time_id[spot] = new_cost(kind, place, where, sizes, rare, state)
    index: int = side.time_id[spot]
    return index


@helper
def more_joined(
    n: int, rank: int, row: int, place: int, cell: int, sizes: Sizes, kinds: Array, graph: Graph,
    turns: Turns, side: SideStreams,
) -> int:  # fmt: skip
    """Join what work waits for beside its turn and its neighbour's result.

    That is its weights, its activation's reload and, on the last stage, the shards of the output
    layer.
    """
    unit = cell - (sizes.stages - 1) * sizes.units
    for choice in range(3):
        more = 0
        if choice == 0:
            if kinds[row + at.WEIGHTS] != 0:
                more = side.weights[side.owner_of[place]]
                side.weights[side.owner_of[place]] = 0
        elif choice == 1:
            if kinds[row + at.AWAY] != 0 and len(side.moved) > 0:
                more = side.moved[cell]
        elif kinds[row + at.EDGE] != 0 and unit >= 0:
            more = side.shards[6 * unit + 4]
        if more > 0:
            n = add_node(n, turns.last_node[rank], more, graph)
            turns.last_node[rank] = n - 1
    return n


@helper
def copy(
    n: int, tail: int, here: int, rank: int, row: int, place: int, cell: int, sizes: Sizes,
    kinds: Array, graph: Graph, rare: Rare, turns: Turns, results: Results, side: SideStreams,
    state: Array,
) -> tuple[int, int]:  # fmt: skip
    """Add a copy; nothing, while it is not its turn on a link that ranks share."""
    before = side.copied[rank]
    if len(side.ahead) > 0:
        before = 0
        if side.ahead[here] >= 0:
            before = graph.node[side.ahead[here]]
            if before <= 0:
                graph.node[side.ahead[here]] = -(rank + 1)
                return n, tail
    results.seen[cell] |= kinds[row + at.BIT]
    graph.cost[n] = cost_of(row // at.WIDTH, place, rank, sizes, rare, side, state)
    if graph.node[here] < 0:
        tail = push(-graph.node[here] - 1, tail, turns.queue)
    graph.node[here] = n
    side.copied[rank] = n
    side.moved[cell] = n
    return add_node(n, turns.last_node[rank], before, graph), tail


@helper
def wait(
    n: int, here: int, rank: int, row: int, cell: int, kinds: Array, graph: Graph, turns: Turns,
    results: Results, side: SideStreams,
) -> int:  # fmt: skip
    """Hold up what a rank computes until the last copy of a cell is over."""
    results.seen[cell] |= kinds[row + at.BIT]
    graph.node[here] = n
    n = add_node(n, turns.last_node[rank], side.moved[cell], graph)
    turns.last_node[rank] = n - 1
    return n


@helper
def collective(
    n: int, here: int, rank: int, row: int, stage: int, unit: int, sizes: Sizes, program: Program,
    graph: Graph, rare: Rare, turns: Turns, side: SideStreams, state: Array,
) -> int:  # fmt: skip
    """Add a collective of a stage, of the first copy of the model that the rank has it of."""
    kinds = program.kinds
    owner = stage
    while program.rank_of[owner] != rank:
        owner += sizes.stages
    before = 0
    if kinds[row + at.COST] != 0:
        graph.cost[n] = cost_of(row // at.WIDTH, owner, owner, sizes, rare, side, state)
        before = side.gathered_by[rank]
        side.gathered_by[rank] = n
    if kinds[row + at.REDUCES] != 0:
        iteration = min(unit, sizes.iterations - 1)
        side.reductions[owner * sizes.iterations + iteration] = 1
        side.reduced_by[rank] = n
    else:
        side.weights[owner] = n if kinds[row + at.COST] != 0 else 0
    graph.node[here] = n
    return add_node(n, turns.last_node[rank], before, graph)


@helper
def shard(
    n: int, tail: int, here: int, rank: int, row: int, unit: int, place: int, cell: int,
    sizes: Sizes, program: Program, graph: Graph, rare: Rare, turns: Turns, results: Results,
    side: SideStreams, state: Array,
) -> tuple[int, int]:  # fmt: skip
    """Add a pass of a shard of the output layer; nothing, while its input is not there.

    The first pass waits for the forward of the last stage, the other for the first passes of all
    shards. Their sums go to the last rank and come back.
    """
    kinds, shards = program.kinds, side.shards
    home = program.rank_of[sizes.stages - 1]
    opens = kinds[row + at.EDGE] == 0
    spot = 6 * unit
    if opens:
        wanted = (sizes.stages - 1) * sizes.units + unit
        more = results.node[wanted]
        if more <= 0:
            side.parked[rank] = more
            results.node[wanted] = -(rank + 1)
            return n, tail
    else:
        more = shards[spot + 1]
        if shards[spot] < sizes.ranks:
            side.parked[rank] = shards[spot + 2]
            shards[spot + 2] = -(rank + 1)
            return n, tail
    if home != rank:
        graph.lag[n] = link_cost(home * sizes.ranks + rank, sizes, rare, state)
    graph.cost[n] = cost_of(row // at.WIDTH, place, rank, sizes, rare, side, state)
    graph.node[here] = n
    results.seen[cell] |= kinds[row + at.BIT]
    n = add_node(n, turns.last_node[rank], more, graph)
    turns.last_node[rank] = n - 1
    if opens:
        n, tail = _gathered(n, tail, rank, spot, sizes, graph, turns, side)
    if kinds[row + at.GIVEN] != 0:
        if home != rank:
            graph.lag[n] = link_cost(rank * sizes.ranks + home, sizes, rare, state)
        n, tail = _gathered(n, tail, rank, spot + 3, sizes, graph, turns, side)
    return n, tail


@helper
def _gathered(
    n: int, tail: int, rank: int, spot: int, sizes: Sizes, graph: Graph, turns: Turns,
    side: SideStreams,
) -> tuple[int, int]:  # fmt: skip
    """Join a rank's pass to those of others, and wake who waits for all of them."""
    shards = side.shards
    n = add_node(n, shards[spot + 1], turns.last_node[rank], graph)
    shards[spot + 1] = n - 1
    shards[spot] += 1
    if shards[spot] == sizes.ranks:
        tail = wake(shards[spot + 2], tail, side.parked, turns.queue)
    return n, tail


@helper
def all_passes_done(sizes: Sizes, kinds: Array, results: Results, side: SideStreams) -> bool:
    """Whether what has begun on the last stage, or on a shard, has both passes on every rank."""
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
