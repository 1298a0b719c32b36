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
    n: int, tail: int, sizes: Sizes, graph: Graph, turns: Turns, beside: Maybe,
    state: Array,
) -> tuple[int, int]:  # fmt: skip
    """Come to a step over all ranks: the last to come joins all, and all step."""
    state[at.ARRIVED] += 1
    if state[at.ARRIVED] < sizes.ranks:
        return n, tail
    state[at.ARRIVED] = 0
    state[at.STEPS] += 1
    joined = turns.last_node[0]
    for rank in range(1, sizes.ranks):
        n = add_node(n, joined, turns.last_node[rank], graph)
        joined = n - 1
    if beside is not None:
        for rank in range(sizes.ranks):
            if beside.reduced_by[rank] > 0:
                n = add_node(n, joined, beside.reduced_by[rank], graph)
                joined = n - 1
    for rank in range(sizes.ranks):
        n = add_step(n, turns.next_action[rank], rank, joined, sizes, graph, turns)
        turns.next_action[rank] += 1
        tail = push(rank, tail, turns.queue)
    return n, tail


@helper
def hand_on_norm(
    n: int, tail: int, rank: int, sizes: Sizes, graph: Graph, rare: Rare, turns: Turns,
    steps: Steps, beside: Maybe, state: Array,
) -> tuple[int, int]:  # fmt: skip
    """Add a rank's own part to the norm of the ranks before, which is there, and hand it on."""
    spot = rank * sizes.iterations + steps.done[rank]
    if rank > 0:
        link = (rank - 1) * sizes.ranks + rank
        graph.lag[n] = link_cost(link, sizes, rare, state)
        before = steps.norm[spot - sizes.iterations] - 1
        n = add_node(n, turns.last_node[rank], before, graph)
        turns.last_node[rank] = n - 1
    if beside is not None:
        if beside.reduced_by[rank] > 0:
            n = add_node(n, turns.last_node[rank], beside.reduced_by[rank], graph)
            turns.last_node[rank] = n - 1
    if steps.norm[spot] < 0:
        tail = push(rank + 1, tail, turns.queue)
    steps.norm[spot] = turns.last_node[rank] + 1
    steps.done[rank] += 1
    return n, tail
