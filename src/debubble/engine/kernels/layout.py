"""What the parts of the sweep share: numbers, tuples of arrays, and what every part does.

See :mod:`debubble.engine.kernels.sweep`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from debubble.engine.jit import Array, helper, unsigned

# Outcomes, in state[OUTCOME].
(
    DONE, STUCK, OTHER_KIND, OUT_OF_RANGE, WRONG_RANK, DUPLICATE, ORDER, BAD_GROUP, BAD_STEP,
    NO_TRANSFER, UNMATCHED, CROSSED, INCOMPLETE, MIXED, REDUCED,
) = range(15)  # fmt: skip

WAITS = -1
"""In place of an outcome: the rank has to come back to this action."""

# Indices into state: the outcome and where it was found, how many nodes and costs there are, how
# many (stage, microbatch) have all of their backward, and 1 + the first action that overtook
# another. The last four are for the sweep itself: ends of transfers whose other end was not
# reached, ends that are queued, and for the next step over all ranks how many have come to it and
# which it is.
(
    OUTCOME, POSITION, NODES, COMPLETED, DYNAMIC, OVERTAKEN, OPEN_ENDS, QUEUED_ENDS, ARRIVED, STEPS,
    STATES,
) = range(11)  # fmt: skip

# What an optimizer step waits for, see `debubble.core.schedule.SYNCS`.
GLOBAL, LOCAL, POST_VALIDATION = range(3)

# Sorts of kinds: what they have in common here. Those up to SHARD belong to a stage and microbatch.
WORK, TRANSFER, COPY, WAIT, SHARD, STEP, COLLECTIVE, UNKNOWN = range(8)

# Columns of a kind, from kinds[kind * WIDTH] on, see `debubble.engine.kind_columns`.
(
    SORT, BIT, NEVER, BEFORE, NOT, TOWARDS, RESULT, THROUGH, SLICE, SLICE_BITS, GIVES, COST,
    COMPLETES, HALF, SENDS, EDGE, GIVEN, AWAY, BACK, WEIGHTS, REDUCES, WIDTH,
) = range(22)  # fmt: skip

ALWAYS = 1 << 16
"""Stands for what a kind needs to have been done that needs nothing."""

LINK, SUM, FORWARDS = 0, -1, -2
"""``dynamic_kind`` of a link, a group's summed time, and a pair of forwards: ``EventGraph``."""


Maybe: TypeAlias = Any
"""An array, or a tuple of them, or None for schedules that have no use for it."""


class Sizes(NamedTuple):
    """How much of everything there is.

    ``cells`` are (stage, unit), ``places`` are where a cost may differ, ``base`` is the cost index
    of the first link, and ``lanes`` are the transfer times of a link: where slices are of different
    lengths, one for each, else one for all.
    """

    ranks: int
    stages: int
    microbatches: int
    slices: int
    units: int
    copies: int
    iterations: int
    cells: int
    places: int
    base: int
    lanes: int


class Program(NamedTuple):
    """What is given: packed actions, the rank of every place, and the columns of kinds.

    Unit u of stage s has place ``s + offset_of[u]``, or s where that array is empty.
    """

    actions: Array
    offsets: Array
    rank_of: Array
    offset_of: Array
    kinds: Array


class Graph(NamedTuple):
    """The arrays of an event graph, and the node of every action."""

    first: Array
    second: Array
    lag: Array
    cost: Array
    node: Array


class Rare(NamedTuple):
    """Costs in order of first use: what they are, and those of links by source · ranks + target."""

    link_id: Array
    kind: Array
    a: Array
    b: Array


class Turns(NamedTuple):
    """Where every rank is: its next action, the last node of its compute stream, and who can go on.

    ``queue`` is a ring; its length is a power of two.
    """

    next_action: Array
    last_node: Array
    queue: Array


class Results(NamedTuple):
    """What is done, and the nodes of results that go to a neighbouring stage.

    ``node[s·U + u]`` is the node whose end the next stage's forward waits for, and
    ``node[(S + s)·U + u]`` the previous stage's backward; 0 is not yet there, and −(r + 1) not yet
    there while rank r waits for it. ``seen[s·U + u]`` has a bit for every kind done.
    """

    node: Array
    seen: Array


@helper
def link_cost(link: int, sizes: Sizes, rare: Rare, state: Array) -> int:
    """Cost index of a directed pair of ranks, the first of as many as there are lanes."""
    if rare.link_id[unsigned(link)] == 0:
        rare.link_id[link] = sizes.base + state[DYNAMIC]
        for lane in range(sizes.lanes):
            source = link // sizes.ranks + lane * sizes.ranks
            new_cost(LINK, source, link % sizes.ranks, sizes, rare, state)
    first: int = rare.link_id[unsigned(link)]
    return first


@helper
def new_cost(kind: int, a: int, b: int, sizes: Sizes, rare: Rare, state: Array) -> int:
    """Add a cost; returns its index. Beyond the room for costs they are only counted."""
    number: int = min(state[DYNAMIC], len(rare.kind) - 1)
    rare.kind[number] = kind
    rare.a[number] = a
    rare.b[number] = b
    state[DYNAMIC] += 1
    return sizes.base + number


@helper
def push(rank: int, tail: int, queue: Array) -> int:
    """Queue a rank that can go on; returns the queue's new end."""
    queue[unsigned(tail & (len(queue) - 1))] = rank
    return tail + 1


@helper
def give(key: int, node: int, tail: int, results: Array, queue: Array) -> int:
    """Store the node of a result, and queue the rank that waits for it."""
    waiter = results[unsigned(key)]
    results[unsigned(key)] = node
    if waiter < 0:
        tail = push(-waiter - 1, tail, queue)
    return tail


@helper
def add_node(n: int, first: int, second: int, graph: Graph) -> int:
    """Add a node behind two others; returns the next free one."""
    graph.first[unsigned(n)] = first
    graph.second[unsigned(n)] = second
    return n + 1
