"""Work on compute streams: what it waits for, its node, and whom it gives its result to."""

from __future__ import annotations

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, helper, unsigned
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.layout import (
    DONE,
    DUPLICATE,
    NO_TRANSFER,
    ORDER,
    REDUCED,
    WAITS,
    Graph,
    Maybe,
    Program,
    Rare,
    Results,
    Sizes,
    Turns,
    add_node,
    give,
    link_cost,
)
from debubble.engine.kernels.side_streams import wake


@helper
def readiness(
    action: int, rank: int, sizes: Sizes, program: Program, results: Results,
    transfers: Maybe, side: Maybe,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Whether an action of a stage and microbatch can run.

    Returns an outcome: DONE if it can, WAITS if it has to wait for another rank, else what is wrong
    with it; its place and its cell; and the index of the result it takes from a neighbouring stage,
    −1 for none.
    """
    kinds, rank_of = program.kinds, program.rank_of
    row = (action & KIND_MASK) * at.WIDTH
    stage = (action >> STAGE_SHIFT) & STAGE_MASK
    unit = action >> MICROBATCH_SHIFT
    place = stage
    if len(program.offset_of) > 0:
        place += program.offset_of[unit]
    cell = stage * sizes.units + unit
    done = results.seen[unsigned(cell)]
    wanted = -1
    step = kinds[row + at.TOWARDS]
    neighbour = step != 0 and 0 <= stage + step < sizes.stages
    sort = kinds[row + at.SORT]
    if transfers is not None:
        if sort == at.TRANSFER and not (neighbour and rank_of[place + step] != rank):
            return NO_TRANSFER, place, cell, wanted
    if (done | at.ALWAYS) & kinds[row + at.BEFORE] == 0 or done & kinds[row + at.NOT] != 0:
        repeated = done & kinds[row + at.NEVER] != 0
        return DUPLICATE if repeated else ORDER, place, cell, wanted
    if sizes.slices > 1:
        along = kinds[row + at.SLICE]
        if along != 0 and 0 <= unit % sizes.slices + along < sizes.slices:
            if results.seen[cell + along] & kinds[row + at.SLICE_BITS] == 0:
                return ORDER, place, cell, wanted
    if sort == at.WORK:
        if neighbour:
            wanted = kinds[row + at.RESULT] * sizes.cells + cell + step * sizes.units
            if transfers is not None:
                # It comes through a receive, or was made here, before this.
                ready = done & kinds[row + at.THROUGH] != 0
                if rank_of[place + step] == rank:
                    ready = results.node[wanted] > 0
                if not ready:
                    return ORDER, place, cell, wanted
            if results.node[unsigned(wanted)] <= 0:
                results.node[wanted] = -(rank + 1)
                return WAITS, place, cell, wanted
        if side is not None:
            if done & kinds[row + at.AWAY] != 0 and done & kinds[row + at.BACK] == 0:
                return ORDER, place, cell, wanted
            if kinds[row + at.REDUCES] != 0:
                owner = side.owner_of[place] * sizes.iterations
                if side.reductions[owner + unit // (sizes.microbatches * sizes.slices)] != 0:
                    return REDUCED, place, cell, wanted
            if kinds[row + at.EDGE] != 0 and stage == sizes.stages - 1:
                spot = 6 * unit + 3
                if side.shards[spot] < sizes.ranks:
                    side.parked[rank] = side.shards[spot + 2]
                    side.shards[spot + 2] = -(rank + 1)
                    return WAITS, place, cell, wanted
    return DONE, place, cell, wanted


@helper
def begin_work(
    n: int, rank: int, row: int, unit: int, place: int, wanted: int, one_by_one: bool,
    sizes: Sizes, program: Program, graph: Graph, rare: Rare, turns: Turns, results: Results,
    transfers: Maybe, state: Array,
) -> int:  # fmt: skip
    """Add a node behind the rank's last one and the result that the work takes."""
    graph.first[unsigned(n)] = turns.last_node[unsigned(rank)]
    if wanted >= 0:
        graph.second[unsigned(n)] = results.node[unsigned(wanted)]
        if transfers is None:
            source = program.rank_of[unsigned(place + program.kinds[row + at.TOWARDS])]
            if source != rank and not one_by_one:
                lag = link_cost(source * sizes.ranks + rank, sizes, rare, state)
                if sizes.lanes > 1:
                    lag += unit % sizes.slices
                graph.lag[unsigned(n)] = lag
    turns.last_node[unsigned(rank)] = n
    return n + 1


@helper
def end_work(
    n: int, tail: int, end: int, here: int, rank: int, row: int, place: int, cell: int,
    one_by_one: bool, sizes: Sizes, program: Program, graph: Graph, rare: Rare, turns: Turns,
    results: Results, link_node: Array, sent: Array, transfers: Maybe, vocabulary: int,
    side: Maybe, state: Array,
) -> tuple[int, int]:  # fmt: skip
    """Say that work is done at a node, and hand its result to a neighbouring stage."""
    kinds = program.kinds
    graph.node[unsigned(here)] = end
    results.seen[unsigned(cell)] |= kinds[row + at.BIT]
    step = kinds[row + at.GIVES]
    if step == 0:
        return n, tail
    key = kinds[row + at.RESULT] * sizes.cells + cell
    stage = (program.actions[unsigned(here)] >> STAGE_SHIFT) & STAGE_MASK
    if stage + step < 0 or stage + step >= sizes.stages:
        if side is not None:
            if vocabulary > 0 and step > 0:
                tail = wake(results.node[key], tail, side.parked, turns.queue)
                results.node[key] = end
        return n, tail
    target = program.rank_of[unsigned(place + step)]
    if target != rank:
        if transfers is not None:
            if len(sent) > 0:
                transfers[1][key] = here + 1
            return n, tail
        if one_by_one:
            link = rank * sizes.ranks + target
            time = link_cost(link, sizes, rare, state)
            if sizes.lanes > 1:
                time += (program.actions[here] >> MICROBATCH_SHIFT) % sizes.slices
            graph.cost[unsigned(n)] = time
            n = add_node(n, link_node[unsigned(link)], end, graph)
            end = n - 1
            link_node[unsigned(link)] = end
            sent[unsigned(here)] = end
    tail = give(key, end, tail, results.node, turns.queue)
    return n, tail
