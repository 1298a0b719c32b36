"""Numbers and named tuples of arrays that all parts of the sweep share, and its smallest steps.

See :mod:`debubble.engine.kernels.sweep`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from debubble.core.actions import KIND_MASK, MICROBATCH_SHIFT, STAGE_MASK, STAGE_SHIFT
from debubble.engine.jit import Array, helper, unsigned

WAITS, DONE, FAILED = -1, 0, 1
"""Outcomes: the rank has to come back to this action; it is done; the schedule cannot run, for a
reason that :mod:`debubble.engine.explain` looks for."""

# Indices into state: whether the schedule cannot run; how many nodes there are, the common start
# included, and how many dynamic costs; how many (stage, microbatch) have all of their backward;
# 1 + the first action that overtook another. The rest is for the sweep itself: ends of transfers
# whose other end was not reached, ends that are queued, how many ranks have come to the next step
# over all of them and which step that is, and how many turns were ever queued.
(
    FAILURE, NODES, COMPLETED, DYNAMIC, OVERTAKEN, OPEN_ENDS, QUEUED_ENDS, ARRIVED, STEPS, TAIL,
    STATES,
) = range(11)  # fmt: skip

# What an optimizer step waits for, see `debubble.core.schedule.SYNCS`.
GLOBAL, LOCAL, POST_VALIDATION = range(3)

# Sorts of kinds: what they have in common here. Those up to SHARD belong to a stage and microbatch.
WORK, TRANSFER, COPY, WAIT, SHARD, STEP, COLLECTIVE, UNKNOWN = range(8)

# Columns of a kind, from kinds[kind * WIDTH] on, see `debubble.engine.kind_columns`.
(
    SORT, BIT, BEFORE, NOT, TOWARDS, RESULT, THROUGH, SLICE, SLICE_BITS, GIVES, COST,
    COMPLETES, HALF, SENDS, EDGE, GIVEN, AWAY, BACK, WEIGHTS, REDUCES, CARRY_FROM, CARRY_TO,
    CARRY_THROUGH, CARRY_RESULT, WIDTH,
) = range(25)  # fmt: skip

ALWAYS = 1 << 24
"""Stands for what a kind needs to have been done that needs nothing."""

LINK, SUM, FORWARDS, CARRY = 0, -1, -2, -3
"""``dynamic_kind`` of a link, a group's summed time, a pair of forwards, and what one place carries
to another: ``EventGraph``."""


Maybe: TypeAlias = Any
"""A named tuple of arrays, or None for schedules that have no use for it."""


class Sizes(NamedTuple):
    """Sizes of a schedule."""

    ranks: int
    stages: int
    microbatches: int
    slices: int
    units: int
    copies: int
    iterations: int
    cells: int
    """Pairs of stage and unit."""
    places: int
    """Places where a cost may differ."""
    base: int
    """Cost index of the first link."""
    lanes: int
    """Transfer times of a link: where slices are of different lengths, one for each, else one for
    all."""


class Rules(NamedTuple):
    """Rules of the schedule and of the p2p mode."""

    sync: int
    """Position in :data:`debubble.core.schedule.SYNCS`."""
    vocabulary: int
    """Number of passes of the output layer's shards, 0 for none."""
    one_by_one: bool
    blocking: bool
    queued: bool
    """As the two before, see :class:`debubble.engine.modes.ModeSpec`."""


class Program(NamedTuple):
    """Packed actions, the rank of every place, and the columns of kinds.

    Unit u of stage s has place ``s + offset_of[u]``, or s where that array is empty.
    """

    actions: Array
    offsets: Array
    rank_of: Array
    offset_of: Array
    kinds: Array


class Graph(NamedTuple):
    """Zeros that become those of :class:`debubble.engine.event_graph.EventGraph`.

    Without nodes of transfers `sent` is empty, and so is `carried` without those of carries.
    """

    first: Array
    second: Array
    lag: Array
    cost: Array
    node: Array
    sent: Array
    carried: Array


class Rare(NamedTuple):
    """Costs in order of first use: what they are, and those of links by source · ranks + target."""

    kind: Array
    a: Array
    b: Array
    link_id: Array


class Turns(NamedTuple):
    """Progress of every rank, and those that can go on.

    ``next_action`` is a position in the schedule, ``last_node`` the last node of the rank's compute
    stream. ``queue`` is a ring; its length is a power of two. ``link_node`` is the last transfer of
    every link where these run one by one.
    """

    next_action: Array
    last_node: Array
    queue: Array
    link_node: Array


class SweepOutput(NamedTuple):
    """Actions that are done, and the nodes of results that go to a neighboring stage.

    ``node[s·U + u]`` is the node whose end the next stage's forward waits for, and
    ``node[(S + s)·U + u]`` the previous stage's backward; 0 is not yet there, and −(r + 1) not yet
    there while rank r waits for it. Behind them are those of what stages carry. ``seen[s·U + u]``
    has a bit for every kind done.
    """

    node: Array
    seen: Array


class Frame(NamedTuple):
    """All that every schedule has."""

    sizes: Sizes
    rules: Rules
    program: Program
    graph: Graph
    rare: Rare
    turns: Turns
    results: SweepOutput
    state: Array


class Item(NamedTuple):
    """An action: its position, rank and kind's columns, and what it is of.

    `place` and `cell` are 0 for kinds that belong to no microbatch.
    """

    here: int
    rank: int
    row: int
    stage: int
    unit: int
    place: int
    cell: int


@helper
def read_item(here: int, rank: int, frame: Frame) -> Item:
    """Unpack the action at a position."""
    program = frame.program
    action = program.actions[unsigned(here)]
    row = (action & KIND_MASK) * WIDTH
    stage = (action >> STAGE_SHIFT) & STAGE_MASK
    unit = action >> MICROBATCH_SHIFT
    place = cell = 0
    if program.kinds[row + SORT] <= SHARD:
        place = stage
        if len(program.offset_of) > 0:
            place += program.offset_of[unit]
        cell = stage * frame.sizes.units + unit
    return Item(here, rank, row, stage, unit, place, cell)


@helper
def link_cost(source: int, target: int, unit: int, frame: Frame) -> int:
    """Return the cost index of a transfer of a unit between two ranks; a new one at first use."""
    sizes, rare = frame.sizes, frame.rare
    link = source * sizes.ranks + target
    if rare.link_id[unsigned(link)] == 0:
        rare.link_id[link] = sizes.base + frame.state[DYNAMIC]
        for lane in range(sizes.lanes):
            new_cost(LINK, source + lane * sizes.ranks, target, frame)
    first: int = rare.link_id[unsigned(link)]
    if sizes.lanes > 1:
        first += unit % sizes.slices
    return first


@helper
def new_cost(kind: int, a: int, b: int, frame: Frame) -> int:
    """Add a cost; returns its index. Beyond the room for costs they are only counted."""
    rare, state = frame.rare, frame.state
    number: int = state[DYNAMIC]
    if number >= len(rare.kind):
        number = len(rare.kind) - 1
    rare.kind[number] = kind
    rare.a[number] = a
    rare.b[number] = b
    state[DYNAMIC] += 1
    return frame.sizes.base + number


@helper
def push(rank: int, frame: Frame) -> None:
    """Queue a rank that can go on."""
    queue, tail = frame.turns.queue, frame.state[TAIL]
    queue[unsigned(tail & (len(queue) - 1))] = rank
    frame.state[TAIL] = tail + 1


@helper
def give(key: int, node: int, frame: Frame) -> None:
    """Store the node of a result, and queue the rank that waits for it."""
    results = frame.results.node
    waiter = results[unsigned(key)]
    results[unsigned(key)] = node
    if waiter < 0:
        push(-waiter - 1, frame)


@helper
def add_node(first: int, second: int, frame: Frame) -> int:
    """Add a node after two others; returns it."""
    n: int = frame.state[NODES]
    frame.graph.first[unsigned(n)] = first
    frame.graph.second[unsigned(n)] = second
    frame.state[NODES] = n + 1
    return n


@helper
def join(rank: int, node: int, frame: Frame) -> int:
    """Let all that a rank computes from here on wait for a node, too; returns the node of both."""
    last_node = frame.turns.last_node
    n = add_node(last_node[unsigned(rank)], node, frame)
    last_node[unsigned(rank)] = n
    return n
