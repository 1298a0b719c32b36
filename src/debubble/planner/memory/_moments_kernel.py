"""Memory of every rank at the starts and ends of its actions, moment by moment."""

from __future__ import annotations

import math
from typing import NamedTuple

from debubble.core.actions import KIND_MASK, PAIR_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, helper, kernel, unsigned


class Order(NamedTuple):
    """The programs of all ranks, and the times of their actions."""

    actions: Array
    offsets: Array
    stages: int
    producer: Array
    """Position of the action whose result each computes with, −1 for none."""
    node: Array
    node_end: Array
    cost: Array
    costs: Array
    """Arrays of the graph and times of its nodes, see :class:`debubble.Timeline`."""


class Changes(NamedTuple):
    """Changes by actions of every kind and stage, at ``kind · stages + stage``."""

    taken: Array
    freed: Array
    """Bytes of activations that come with the start, and with the end."""
    head_taken: Array
    head_freed: Array
    """Bytes of logits, likewise."""
    waiting: Array
    """Tensors that are there from the rank's first moment on."""
    tensors_taken: Array
    tensors_freed: Array
    """Tensors that come with the start, and with the end."""
    sent: Array
    """Tensors that go with the end of the next action."""
    comes: Array
    """Whether a tensor from another rank is there from its arrival on."""
    boundary: float
    """Bytes of a tensor."""


class Rest(NamedTuple):
    """Bytes that are there all the time, and those that no formula itemizes."""

    state: Array
    """Bytes that every rank holds all the time."""
    fixed: float
    """The part of the margin that is there all the time."""
    fragmentation: float
    """Share of what changes that lies unused between tensors."""


class Peaks(NamedTuple):
    """Memory of every rank at its peak; shape ``(ranks,)``."""

    total: Array
    activations: Array
    tensors: Array
    logits: Array
    moment: Array
    """Twice the number of the action or overlapped group, and one more at its end."""
    position: Array
    """Position of the action, or of the first of the group."""
    time: Array
    changing: Array
    """The most of what changes."""
    last: Array
    """The last moment with that much."""
    left: Array
    """Number of tensors at the end."""
    groups: Array
    """Number of actions and overlapped groups."""


@helper
def spot_in(order: Order, action: int) -> int:
    """Return the index of an action's kind and stage."""
    return (action & KIND_MASK) * order.stages + ((action >> STAGE_SHIFT) & STAGE_MASK)


@helper
def start_of(position: int, order: Order) -> float:
    """Return the start of an action."""
    node = unsigned(order.node[position])
    start: float = order.node_end[node] - order.costs[order.cost[node]]
    return start


@helper
def note_arrivals(rank: int, order: Order, changes: Changes, begins: Array, come: Array) -> int:
    """Count the tensors that come during each group; return those that wait from the first on.

    `begins` becomes the start of each group. A tensor comes at the start of the group that runs
    then, or ran last before it.
    """
    group = -1
    waiting = 0
    opens = True
    for position in range(order.offsets[rank], order.offsets[rank + 1]):
        action = order.actions[unsigned(position)]
        if opens:
            group += 1
            begins[group] = start_of(position, order)
            come[group] = 0
        opens = (action >> PAIR_SHIFT) & 1 == 0
        spot = unsigned(spot_in(order, action))
        waiting += changes.waiting[spot]
        producer = order.producer[unsigned(position)]
        if changes.comes[spot] and producer >= 0:
            time = order.node_end[order.node[producer]]
            low = 0
            high = group
            while low < high:
                middle = (low + high + 1) // 2
                if begins[middle] <= time:
                    low = middle
                else:
                    high = middle - 1
            come[low] += 1
    return waiting


@kernel(writes=("begins", "come", "peaks"), allocates=False)
def find_peaks(
    order: Order, changes: Changes, rest: Rest, begins: Array, come: Array, peaks: Peaks
) -> None:
    """Find the first moment at which each rank holds most.

    `begins` and `come` are room for the groups of any rank.
    """
    for rank in range(len(order.offsets) - 1):
        tensors = note_arrivals(rank, order, changes, begins, come)
        activations = 0.0
        logits = 0.0
        group = 0
        sent = 0
        opens = True
        head = 0
        taken = 0.0
        freed = 0.0
        head_taken = 0.0
        head_freed = 0.0
        tensors_taken = 0
        tensors_freed = 0
        sends = 0
        peaks.total[rank] = -math.inf
        peaks.changing[rank] = -math.inf
        for position in range(order.offsets[rank], order.offsets[rank + 1]):
            action = order.actions[unsigned(position)]
            spot = unsigned(spot_in(order, action))
            if opens:
                head = position
                taken = 0.0
                freed = 0.0
                head_taken = 0.0
                head_freed = 0.0
                tensors_taken = come[group]
                tensors_freed = -sent
                sends = 0
            taken += changes.taken[spot]
            freed += changes.freed[spot]
            head_taken += changes.head_taken[spot]
            head_freed += changes.head_freed[spot]
            tensors_taken += changes.tensors_taken[spot]
            tensors_freed += changes.tensors_freed[spot]
            sends += changes.sent[spot]
            opens = (action >> PAIR_SHIFT) & 1 == 0
            if not opens:
                continue
            for side in range(2):
                moment = 2 * group + side
                activations += freed if side else taken
                logits += head_freed if side else head_taken
                tensors += tensors_freed if side else tensors_taken
                changing = activations + tensors * changes.boundary + logits
                total = changing + (rest.fixed + rest.fragmentation * changing) + rest.state[rank]
                if total > peaks.total[rank]:
                    peaks.total[rank] = total
                    peaks.activations[rank] = activations
                    peaks.tensors[rank] = tensors
                    peaks.logits[rank] = logits
                    peaks.moment[rank] = moment
                    peaks.position[rank] = head
                if changing >= peaks.changing[rank]:
                    peaks.changing[rank] = changing
                    peaks.last[rank] = moment
            sent = sends
            group += 1
        if group:
            at = peaks.position[rank]
            ends = peaks.moment[rank] % 2
            peaks.time[rank] = order.node_end[order.node[at]] if ends else start_of(at, order)
        peaks.left[rank] = tensors
        peaks.groups[rank] = group
