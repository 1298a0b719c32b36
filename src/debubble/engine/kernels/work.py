"""Work on compute streams: what it waits for, its node, and the ranks that get its result."""

from __future__ import annotations

from debubble.engine.jit import helper, unsigned
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.carry import carried_ready, end_step
from debubble.engine.kernels.layout import (
    DONE,
    FAILED,
    WAITS,
    Frame,
    Item,
    Maybe,
    add_node,
    give,
    link_cost,
)
from debubble.engine.kernels.side_streams import side_ready, wake_on_last_stage


@helper
def readiness(
    item: Item, frame: Frame, transfers: Maybe, side: Maybe, carry: Maybe
) -> tuple[int, int]:
    """Look whether an action of a stage and microbatch can run.

    Returns an outcome: DONE if it can, WAITS if it has to wait for another rank, else what is wrong
    with it; and the index of the result it takes from a neighboring stage, −1 for none.
    """
    sizes, results, rank_of = frame.sizes, frame.results, frame.program.rank_of
    kinds, row, cell = frame.program.kinds, item.row, item.cell
    done = results.seen[unsigned(cell)]
    step = kinds[row + at.TOWARDS]
    neighbor = step != 0 and 0 <= item.stage + step < sizes.stages
    sort = kinds[row + at.SORT]
    if transfers is not None:
        if sort == at.TRANSFER:
            away = end_step(item, frame, carry)
            inside = away != 0 and 0 <= item.stage + away < sizes.stages
            if not (inside and rank_of[item.place + away] != item.rank):
                return FAILED, -1
    # What has to be done on this stage stands before it in the program.
    if (done | at.ALWAYS) & kinds[row + at.BEFORE] == 0 or done & kinds[row + at.NOT] != 0:
        return FAILED, -1
    if sizes.slices > 1:
        along = kinds[row + at.SLICE]
        if along != 0 and 0 <= item.unit % sizes.slices + along < sizes.slices:
            if results.seen[cell + along] & kinds[row + at.SLICE_BITS] == 0:
                return FAILED, -1
    wanted = -1
    if sort == at.WORK:
        if neighbor:
            wanted = kinds[row + at.RESULT] * sizes.cells + cell + step * sizes.units
            if transfers is not None:
                # It comes through a receive, or was made here, before this.
                ready = done & kinds[row + at.THROUGH] != 0
                if rank_of[item.place + step] == item.rank:
                    ready = results.node[wanted] > 0
                if not ready:
                    return FAILED, wanted
            if results.node[unsigned(wanted)] <= 0:
                results.node[wanted] = -(item.rank + 1)
                return WAITS, wanted
        if carry is not None:
            outcome = carried_ready(item, frame, transfers, carry)
            if outcome != DONE:
                return outcome, wanted
        if side is not None:
            return side_ready(item, done, frame, side), wanted
    return DONE, wanted


@helper
def begin_work(item: Item, wanted: int, frame: Frame, transfers: Maybe) -> int:
    """Add a node after the rank's last one and the result that the work takes; returns it."""
    graph, last_node, rank = frame.graph, frame.turns.last_node, item.rank
    second = 0
    if wanted >= 0:
        second = frame.results.node[unsigned(wanted)]
    n = add_node(last_node[unsigned(rank)], second, frame)
    last_node[unsigned(rank)] = n
    if transfers is None:
        if wanted >= 0 and not frame.rules.one_by_one:
            towards = frame.program.kinds[item.row + at.TOWARDS]
            source = frame.program.rank_of[unsigned(item.place + towards)]
            if source != rank:
                graph.lag[unsigned(n)] = link_cost(source, rank, item.unit, frame)
    return n


@helper
def end_work(item: Item, end: int, frame: Frame, transfers: Maybe, side: Maybe) -> None:
    """Note that work is done at a node, and hand its result to a neighboring stage."""
    kinds, sizes, graph, rank = frame.program.kinds, frame.sizes, frame.graph, item.rank
    graph.node[unsigned(item.here)] = end
    frame.results.seen[unsigned(item.cell)] |= kinds[item.row + at.BIT]
    if kinds[item.row + at.COMPLETES] != 0:
        frame.state[at.COMPLETED] += 1
    step = kinds[item.row + at.GIVES]
    if step == 0:
        return
    key = kinds[item.row + at.RESULT] * sizes.cells + item.cell
    if item.stage + step < 0 or item.stage + step >= sizes.stages:
        if side is not None:
            if frame.rules.vocabulary > 0 and step > 0:
                wake_on_last_stage(key, end, frame, side)
        return
    target = frame.program.rank_of[unsigned(item.place + step)]
    if target != rank:
        if transfers is not None:
            if len(graph.sent) > 0:
                transfers.ends.made[key] = item.here + 1
            return
        if frame.rules.one_by_one:
            # The transfer is a node: it waits for the one before on its link.
            link = rank * sizes.ranks + target
            time = link_cost(rank, target, item.unit, frame)
            link_node = frame.turns.link_node
            end = add_node(link_node[unsigned(link)], end, frame)
            graph.cost[unsigned(end)] = time
            link_node[unsigned(link)] = end
            graph.sent[unsigned(item.here)] = end
    give(key, end, frame)
