"""Skip connections: results that go to stages that are not neighbors, and their gradients.

An action waits for it at a node of its own, in front of that of its work.
"""

from __future__ import annotations

from typing import NamedTuple

from debubble.engine.jit import Array, helper, unsigned
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.layout import (
    DONE,
    FAILED,
    WAITS,
    Frame,
    Item,
    Maybe,
    add_node,
    give,
    new_cost,
)


class Carry(NamedTuple):
    """Arrays for what is carried.

    ``step[s]`` is the offset to the stage that stage s carries to, and ``step[S + s]`` to the one
    that carries to it, 0 where there is none. Of what place c sends, ``time_id[c]`` is the cost of
    an activation and ``time_id[places + c]`` that of a gradient, 0 before its first use.
    """

    step: Array
    time_id: Array


@helper
def carry_step(item: Item, column: int, frame: Frame, carry: Carry) -> int:
    """Return the offset of the stage that a column of a kind leads to, 0 where there is none."""
    row = frame.program.kinds[item.row + column]
    if row == 0:
        return 0
    step: int = carry.step[unsigned((row - 1) * frame.sizes.stages + item.stage)]
    return step


@helper
def end_step(item: Item, frame: Frame, carry: Maybe) -> int:
    """Return the stage offset of the other end of a transfer, 0 where it has none."""
    step: int = frame.program.kinds[item.row + at.TOWARDS]
    if carry is not None:
        if step == 0:
            step = carry_step(item, at.CARRY_FROM, frame, carry)
            if step == 0:
                step = carry_step(item, at.CARRY_TO, frame, carry)
    return step


@helper
def taken_key(item: Item, step: int, frame: Frame) -> int:
    """Return the key of the carried result that work takes from a stage."""
    number: int = frame.program.kinds[item.row + at.CARRY_RESULT]
    return number * frame.sizes.cells + item.cell + step * frame.sizes.units


@helper
def carried_ready(item: Item, frame: Frame, transfers: Maybe, carry: Carry) -> int:
    """Return an outcome: whether what is carried to some work is there."""
    results, rank_of = frame.results, frame.program.rank_of
    step = carry_step(item, at.CARRY_FROM, frame, carry)
    if step == 0:
        return DONE
    key = taken_key(item, step, frame)
    if transfers is not None:
        through = frame.program.kinds[item.row + at.CARRY_THROUGH]
        ready = results.seen[unsigned(item.cell)] & through != 0
        if rank_of[item.place + step] == item.rank:
            ready = results.node[key] > 0
        if not ready:
            return FAILED
    if results.node[unsigned(key)] <= 0:
        results.node[key] = -(item.rank + 1)
        return WAITS
    return DONE


@helper
def take_carried(item: Item, frame: Frame, transfers: Maybe, carry: Carry) -> None:
    """Let a rank wait for what is carried to some work, at a node in front of it."""
    step = carry_step(item, at.CARRY_FROM, frame, carry)
    if step == 0:
        return
    last_node, rank = frame.turns.last_node, item.rank
    node = frame.results.node[unsigned(taken_key(item, step, frame))]
    n = add_node(last_node[unsigned(rank)], node, frame)
    last_node[unsigned(rank)] = n
    if transfers is None:
        if not frame.rules.one_by_one and frame.program.rank_of[item.place + step] != rank:
            frame.graph.lag[unsigned(n)] = carry_cost(item.place + step, item.place, frame, carry)


@helper
def hand_carried(item: Item, end: int, frame: Frame, transfers: Maybe, carry: Carry) -> None:
    """Hand what some work carries, at a node, to the stage that gets it."""
    step = carry_step(item, at.CARRY_TO, frame, carry)
    if step == 0:
        return
    sizes, graph, rank = frame.sizes, frame.graph, item.rank
    key = (1 + frame.program.kinds[item.row + at.CARRY_TO]) * sizes.cells + item.cell
    target = frame.program.rank_of[item.place + step]
    if target != rank:
        if transfers is not None:
            if len(graph.carried) > 0:
                transfers.ends.made[key] = item.here + 1
            return
        if frame.rules.one_by_one:
            link = rank * sizes.ranks + target
            time = carry_cost(item.place, item.place + step, frame, carry)
            link_node = frame.turns.link_node
            end = add_node(link_node[unsigned(link)], end, frame)
            graph.cost[unsigned(end)] = time
            link_node[unsigned(link)] = end
            graph.carried[unsigned(item.here)] = end
    give(key, end, frame)


@helper
def carry_cost(source: int, target: int, frame: Frame, carry: Carry) -> int:
    """Return the cost index of what one place sends to another; a new one at first use."""
    back = 1 if source > target else 0
    spot = back * frame.sizes.places + source
    if carry.time_id[unsigned(spot)] == 0:
        carry.time_id[spot] = new_cost(at.CARRY, source, target, frame)
    index: int = carry.time_id[unsigned(spot)]
    return index
