"""Optimizer steps."""

from __future__ import annotations

from typing import NamedTuple

from debubble.engine.jit import Array, helper
from debubble.engine.kernels import layout as at
from debubble.engine.kernels.layout import (
    Graph,
    Maybe,
    Rare,
    Sizes,
    Turns,
    add_node,
    link_cost,
    push,
)


class Steps(NamedTuple):
    """How many steps every rank has done, and the partial norms that ranks hand on.

    ``norm[r·iterations + k] − 1`` is the node at which the partial norm of ranks 0..r is known
    before step k; 0 before that, and −1 while rank r + 1 waits for it.
    """

    done: Array
    norm: Array


@helper
def add_step(
    n: int, here: int, rank: int, before: int, sizes: Sizes, graph: Graph, turns: Turns
) -> int:
    """Add the step of one rank, behind its work and another node."""
    graph.cost[n] = sizes.base - sizes.ranks + rank
    graph.node[here] = n
    n = add_node(n, turns.last_node[rank], before, graph)
    turns.last_node[rank] = n - 1
    return n


@helper
def step_of_all(
    n: int, tail: int, sizes: Sizes, graph: Graph, rare: Rare, turns: Turns, side: Maybe,
    state: Array,
) -> tuple[int, int]:  # fmt: skip
    """Come to a step over all ranks: the last to come joins all, and all step.

    Ranks hand the norm on as for a step that does not wait for the others, and the last rank hands
    the whole back to each.
    """
    state[at.ARRIVED] += 1
    if state[at.ARRIVED] < sizes.ranks:
        return n, tail
    state[at.ARRIVED] = 0
    state[at.STEPS] += 1
    joined = 0
    for rank in range(sizes.ranks):
        n, joined = _add_norm(n, rank, joined, sizes, graph, rare, turns, side, state)
    for rank in range(sizes.ranks):
        if rank < sizes.ranks - 1:
            link = (sizes.ranks - 1) * sizes.ranks + rank
            graph.lag[n] = link_cost(link, sizes, rare, state)
        n = add_step(n, turns.next_action[rank], rank, joined, sizes, graph, turns)
        turns.next_action[rank] += 1
        tail = push(rank, tail, turns.queue)
    return n, tail


@helper
def hand_on_norm(
    n: int, tail: int, rank: int, sizes: Sizes, graph: Graph, rare: Rare, turns: Turns,
    steps: Steps, side: Maybe, state: Array,
) -> tuple[int, int]:  # fmt: skip
    """Add a rank's own part to the norm of the ranks before, which is there, and hand it on."""
    spot = rank * sizes.iterations + steps.done[rank]
    before = steps.norm[spot - sizes.iterations] - 1 if rank > 0 else 0
    n, joined = _add_norm(n, rank, before, sizes, graph, rare, turns, side, state)
    turns.last_node[rank] = joined
    if steps.norm[spot] < 0:
        tail = push(rank + 1, tail, turns.queue)
    steps.norm[spot] = joined + 1
    steps.done[rank] += 1
    return n, tail


@helper
def _add_norm(
    n: int, rank: int, before: int, sizes: Sizes, graph: Graph, rare: Rare, turns: Turns,
    side: Maybe, state: Array,
) -> tuple[int, int]:  # fmt: skip
    """Join a rank's gradients to the norm of the ranks before it; the second is their node."""
    joined = turns.last_node[rank]
    if rank > 0:
        graph.lag[n] = link_cost((rank - 1) * sizes.ranks + rank, sizes, rare, state)
        n = add_node(n, joined, before, graph)
        joined = n - 1
    if side is not None:
        if side.reduced_by[rank] > 0:
            n = add_node(n, joined, side.reduced_by[rank], graph)
            joined = n - 1
    return n, joined
