"""Optimizer steps."""

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
    add_node,
    link_cost,
    push,
)
from debubble.engine.kernels.side_streams import last_reduction


class Steps(NamedTuple):
    """Number of steps that every rank has done, and the partial norms that ranks hand on.

    ``norm[r·iterations + k] − 1`` is the node at which the partial norm of ranks 0..r is known
    before step k; 0 before that, and −1 while rank r + 1 waits for it.
    """

    done: Array
    norm: Array


@helper
def run_step(item: Item, frame: Frame, steps: Steps, side: Maybe) -> int:
    """Add the step of a rank once what it waits for is there; returns an outcome.

    The rank's next action is then the one after it.
    """
    rank, sync, state = item.rank, frame.rules.sync, frame.state
    frame.turns.next_action[rank] = item.here
    if sync == at.GLOBAL:
        if item.unit < state[at.STEPS]:
            return FAILED
        state[at.ARRIVED] += 1
        if state[at.ARRIVED] == frame.sizes.ranks:
            step_of_all(frame, side)
        return WAITS
    if sync == at.POST_VALIDATION:
        iterations = frame.sizes.iterations
        if steps.done[rank] == iterations:
            return FAILED
        before = (rank - 1) * iterations + steps.done[rank]
        if rank > 0 and steps.norm[before] <= 0:
            steps.norm[before] = -1
            return WAITS
        hand_on_norm(rank, frame, steps, side)
    add_step(rank, item.here, last_reduction(rank, side), frame)
    frame.turns.next_action[rank] += 1
    return DONE


@helper
def add_step(rank: int, here: int, before: int, frame: Frame) -> None:
    """Add the step of one rank, after its work and another node."""
    last_node = frame.turns.last_node
    n = add_node(last_node[rank], before, frame)
    frame.graph.cost[n] = frame.sizes.base - frame.sizes.ranks + rank
    frame.graph.node[here] = n
    last_node[rank] = n


@helper
def step_of_all(frame: Frame, side: Maybe) -> None:
    """Join all ranks, which have come to the same step, and let all of them step.

    Ranks hand the norm on as for a step that does not wait for the others, and the last rank hands
    the whole back to each.
    """
    ranks, turns, state = frame.sizes.ranks, frame.turns, frame.state
    state[at.ARRIVED] = 0
    state[at.STEPS] += 1
    # The first rank does not look at it; for a constant numba would compile `add_norm` once more.
    joined = ranks
    for rank in range(ranks):
        joined = add_norm(rank, joined, frame, side)
    for rank in range(ranks):
        lag = 0
        if rank < ranks - 1:
            lag = link_cost(ranks - 1, rank, 0, frame)
        frame.graph.lag[state[at.NODES]] = lag
        add_step(rank, turns.next_action[rank], joined, frame)
        turns.next_action[rank] += 1
        push(rank, frame)


@helper
def hand_on_norm(rank: int, frame: Frame, steps: Steps, side: Maybe) -> None:
    """Add a rank's own part to the norm of the ranks before, which is there, and hand it on."""
    iterations = frame.sizes.iterations
    spot = rank * iterations + steps.done[rank]
    before = steps.norm[spot - iterations] - 1 if rank > 0 else 0
    joined = add_norm(rank, before, frame, side)
    frame.turns.last_node[rank] = joined
    if steps.norm[spot] < 0:
        push(rank + 1, frame)
    steps.norm[spot] = joined + 1
    steps.done[rank] += 1


@helper
def add_norm(rank: int, before: int, frame: Frame, side: Maybe) -> int:
    """Join a rank's gradients to the norm of the ranks before it; returns the node of both."""
    joined: int = frame.turns.last_node[rank]
    if rank > 0:
        lag = link_cost(rank - 1, rank, 0, frame)
        joined = add_node(joined, before, frame)
        frame.graph.lag[joined] = lag
    reduced = last_reduction(rank, side)
    if reduced > 0:
        joined = add_node(joined, reduced, frame)
    return joined
