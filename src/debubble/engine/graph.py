"""The event graph: what waits for what, in topological order, and how long each thing takes.

Every node has at most two predecessors, so a graph is four integer arrays: ``first`` and
``second`` name the predecessors (0 is the common start), ``lag`` and ``cost`` index a vector of
costs. A node with more to wait for is preceded by joins of no duration. Evaluating is one linear
walk: ``end[n] = max(end[first[n]], end[second[n]] + costs[lag[n]]) + costs[cost[n]]``.

Layout of the cost vector, for P = slices · copies · stages places and p ranks::

    0            nothing, costs 0
    1 …          kind k on place c: 1 + k·P + c, for F, I, W, B, R
    1 + 5P …     optimizer step of rank r: 1 + 5P + r
    1 + 5P + p … links between ranks, pairs, copies, collectives and passes of the output layer's
                 shards, in order of first use
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    COPY_KINDS,
    KIND_MASK,
    PAIR_MASK,
    PAIR_SHIFT,
    TRANSFER_KINDS,
    VOCABULARY_KINDS,
    Kind,
)
from debubble.core.cost_table import CostTable
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.schedule import SYNCS, Schedule
from debubble.engine.exist import refuse_strays
from debubble.engine.kernels import compile as sweep
from debubble.engine.kernels import evaluate as walk
from debubble.engine.recompute import recompute_share

P2PMode: TypeAlias = Literal["overlapped", "channel", "blocking", "pair", "group"]
P2P_MODES = ("overlapped", "channel", "blocking", "pair", "group")

QUEUES = ("pair", "group")
"""Modes in which ranks queue their transfers."""

MEETING = ("blocking", *QUEUES)
"""Modes in which it matters where receives stand."""

TIMED_KINDS = 5
LINK = 0
"""``dynamic_kind`` of a link; other values are the kind of a pair's backward half, of a copy, of a
collective, or of a pass of the output layer's shard."""

COLLECTIVE_KINDS = (Kind.UNSHARD, Kind.REDUCE_GRAD)
"""Kinds that take time on the collective stream of a rank."""


@dataclass(frozen=True, eq=False)
class EventGraph:
    """A schedule as a graph that can be evaluated for any costs.

    Parameters
    ----------
    schedule, mode
        What was compiled, and how transfers between ranks are treated.
    first, second, lag, cost
        ``uint32`` arrays of shape ``(nodes + 1,)``; entry 0 is the common start. Without a sign
        no index is negative, which compiled code would test for at every access.
    node
        Node of every action, shape ``(n,)``; the two halves of a pair share one.
    sent
        Node of the transfer an action's result goes through, 0 where none; shape ``(n,)``. Empty
        when transfers occupy nobody.
    dynamic_kind, dynamic_a, dynamic_b
        What the last cost indices stand for: a link from rank a to rank b, for slice j from
        a + j · ranks where slices differ in length; a pair of a forward on place a and a backward
        of that kind on place b; a copy, or a pass of the output layer's shard, of place a on
        rank b; or a collective of stage a % stages of copy a // stages.
    completed
        How many (stage, microbatch) have all of their backward.
    shared
        How many ranks share one link to the host.
    """

    schedule: Schedule
    mode: P2PMode
    first: NDArray[np.uint32]
    second: NDArray[np.uint32]
    lag: NDArray[np.uint32]
    cost: NDArray[np.uint32]
    node: NDArray[np.int32]
    sent: NDArray[np.int32]
    dynamic_kind: NDArray[np.int32]
    dynamic_a: NDArray[np.int32]
    dynamic_b: NDArray[np.int32]
    completed: int
    shared: int = 1

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def places(self) -> int:
        """Stages of all copies, for every slice."""
        schedule = self.schedule
        return schedule.slices * schedule.placement.copies * schedule.stages

    @property
    def lanes(self) -> int:
        """How many transfer times a pair of ranks has: one, or one for each uneven slice."""
        return lanes_of(self.schedule)

    @property
    def dynamic_costs(self) -> int:
        """Cost index of the first link or pair."""
        return 1 + TIMED_KINDS * self.places + self.schedule.ranks

    @property
    def has_copies(self) -> bool:
        """Whether activations leave their ranks."""
        return bool(np.any(np.isin(self.dynamic_kind, COPY_KINDS)))

    def cost_vector(self, table: CostTable) -> NDArray[np.float64]:
        """Costs in the order the graph's indices mean."""
        assert table.duration.shape[1] == self.places, "costs are not of this schedule's slices"
        lanes = self.lanes
        again = recompute_share(self.schedule) >= 1 if self.has_copies else None
        dynamic = np.empty(len(self.dynamic_kind))
        for index, (kind, a, b) in enumerate(
            zip(
                self.dynamic_kind.tolist(),
                self.dynamic_a.tolist(),
                self.dynamic_b.tolist(),
                strict=True,
            )
        ):
            if kind in VOCABULARY_KINDS:
                dynamic[index] = table.duration[kind, a]
            elif kind in COLLECTIVE_KINDS:
                dynamic[index] = table.collective[COLLECTIVE_KINDS.index(kind), a]
            elif kind in COPY_KINDS:
                target = self.schedule.copy_targets[b]
                dynamic[index] = table.copy(kind, a, target, again is not None and bool(again[a]))
            elif kind != LINK:
                dynamic[index] = table.pair((0, a), (kind, b))
            elif lanes == 1:
                dynamic[index] = table.link[a, b]
            else:
                part, sender = divmod(a, self.schedule.ranks)
                dynamic[index] = table.transfer(sender, b, part)
        return np.concatenate(
            [[0.0], table.duration[:TIMED_KINDS].ravel(), table.optimizer, dynamic]
        )

    def cost_names(self) -> list[str]:
        """What every entry of a cost vector is, as text."""
        schedule = self.schedule
        stages, copies, slices = schedule.stages, schedule.placement.copies, schedule.slices

        def where(place: int) -> str:
            group, stage = divmod(place, stages)
            copy = f" of copy {group % copies}" if copies > 1 else ""
            return f"stage {stage}{copy}{of_slice(group // copies)}"

        def of_slice(part: int) -> str:
            return f", slice {part}" if slices > 1 else ""

        def link(a: int, b: int) -> str:
            part, sender = divmod(a, schedule.ranks)
            return f"p2p {sender} → {b}{of_slice(part) if self.lanes > 1 else ''}"

        names = ["nothing"]
        names += [
            f"{Kind(kind).name} of {where(place)}"
            for kind in range(TIMED_KINDS)
            for place in range(self.places)
        ]
        names += [f"OPT of rank {rank}" for rank in range(schedule.ranks)]
        for kind, a, b in zip(self.dynamic_kind, self.dynamic_a, self.dynamic_b, strict=True):
            if kind == LINK:
                names.append(link(int(a), int(b)))
            elif kind >= Kind.OFFLOAD:
                names.append(f"{Kind(kind).name} of {where(a)}")
            else:
                names.append(f"pair F of {where(a)} and {Kind(kind).name} of {where(b)}")
        return names

    def evaluate(
        self, costs: NDArray[np.float64], out: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """End time of every node, shape ``(nodes + 1,)``, for one cost vector; reuses `out`."""
        end = np.empty(len(self.first)) if out is None else out
        walk.evaluate.run(len(self.first), self.first, self.second, self.lag, self.cost, costs, end)
        return end

    def makespans(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Makespan for each row of a matrix of cost vectors, several rows at a time."""
        rows = np.atleast_2d(np.asarray(costs, dtype=np.float64))
        lanes = walk.LANES
        result = np.empty(len(rows))
        end = np.empty((len(self.first), lanes))
        last = np.empty(lanes)
        for begin in range(0, len(rows), lanes):
            block = rows[begin : begin + lanes]
            padded = np.zeros((lanes, rows.shape[1]))
            padded[: len(block)] = block
            walk.evaluate_lanes.run(
                len(self.first) * lanes,
                self.first,
                self.second,
                self.lag,
                self.cost,
                np.ascontiguousarray(padded.T),
                end,
                last,
            )
            result[begin : begin + lanes] = last[: len(block)]
        return result

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """Action (position in the schedule) of every node, −1 for joins and transfers."""
        order = np.full(len(self.first), -1, dtype=np.int32)
        order[self.node] = np.arange(len(self.node), dtype=np.int32)
        return order


def lanes_of(schedule: Schedule) -> int:
    """The number of different lengths that slices may have."""
    return schedule.slices if schedule.cut else 1


def compile_graph(
    schedule: Schedule,
    mode: P2PMode = "overlapped",
    host_link_shared_by: int = 1,
    *,
    explain: bool = True,
) -> EventGraph:
    """Lower a schedule to an event graph; the same schedule is lowered once.

    Parameters
    ----------
    schedule
        Any schedule.
    mode
        What a transfer between ranks does: ``"overlapped"`` delays the consumer and occupies
        nobody; in ``"channel"`` every directed pair of ranks carries one transfer at a time, in
        the order of the producers; in ``"blocking"`` sender and receiver are both busy until the
        transfer is over; in ``"pair"`` and ``"group"`` ranks queue their transfers, see
        :mod:`debubble.engine.streams`.
    host_link_shared_by
        How many neighbouring ranks share one link to the host.
    explain
        Whether an error has to say why; to find that out takes many times as long as to compile.

    Raises
    ------
    ScheduleError
        When the order cannot run; the message shows the shortest chain of actions that wait for
        each other.
    """
    if not isinstance(mode, str) or mode not in P2P_MODES:
        raise ParameterError(f"p2p mode '{mode}'; {did_you_mean(mode, P2P_MODES)}")
    # The arrays are kept, not the graph: it points back at the schedule, and a circle of the two
    # would hold on to memory until the garbage collector happens to come by.
    key = (EventGraph, mode, host_link_shared_by)
    if key not in schedule.derived:
        refuse_strays(schedule)
        most = largest_kind(schedule)
        if most > max(TRANSFER_KINDS) or schedule.vocabulary:
            from debubble.engine.events import compile_events

            graph = compile_events(schedule, mode, host_link_shared_by)
        elif mode in MEETING or most > Kind.OPT:
            from debubble.engine.streams import compile_streams

            graph = compile_streams(schedule, mode, explain)
        else:
            graph = _compile_compute(schedule, mode)
        schedule.derived[key] = [getattr(graph, spec.name) for spec in fields(graph)[2:]]
    return EventGraph(schedule, mode, *schedule.derived[key])


def largest_kind(schedule: Schedule) -> int:
    """The largest :class:`Kind` among a schedule's actions, which decides who can compile it."""
    actions = schedule.actions
    # Block by block, without a temporary array of all kinds.
    return max(
        (
            int((actions[begin : begin + 65536] & KIND_MASK).max())
            for begin in range(0, len(actions), 65536)
        ),
        default=0,
    )


def _compile_compute(schedule: Schedule, mode: P2PMode) -> EventGraph:
    placement = schedule.placement
    ranks, stages, copies = placement.ranks, placement.stages, placement.copies
    count = len(schedule)
    channels = mode == "channel"
    chained = schedule.sync == "post-validation"
    cells = stages * schedule.units
    slices, lanes = schedule.slices, lanes_of(schedule)
    pairs = bool(np.any(schedule.actions & (PAIR_MASK << PAIR_SHIFT)))
    places = slices * copies * stages
    most_dynamic = lanes * min(ranks * ranks, 2 * copies * stages)
    most_dynamic += min(3 * places * places, count) if pairs else 0

    barriers = ranks * schedule.iterations
    size = 1 + count + barriers + (count if channels else 0)
    first, second, lag, cost = (np.empty(size, dtype=np.uint32) for _ in range(4))
    for array in (first, second, lag, cost):
        array[0] = 0
    node = np.empty(count, dtype=np.int32)
    sent = np.zeros(count if channels else 0, dtype=np.int32)
    dynamic = [np.zeros(most_dynamic, dtype=np.int32) for _ in range(3)]
    next_action = np.zeros(ranks, dtype=np.int64)
    state = np.zeros(5, dtype=np.int64)
    sweep.compile_compute.run(
        5 * count,
        schedule.actions,
        schedule.offsets,
        schedule.homes,
        stages,
        schedule.units,
        schedule.microbatches,
        slices,
        lanes,
        copies,
        SYNCS.index(schedule.sync),
        schedule.iterations,
        schedule.recompute_after == "gradient",
        channels,
        np.zeros(2 * cells, dtype=np.int32),
        np.zeros(cells, dtype=np.uint8),
        np.zeros(ranks * ranks, dtype=np.int32),
        np.zeros(3 * places * places if pairs else 1, dtype=np.int32),
        np.zeros(ranks * ranks if channels else 1, dtype=np.int32),
        first,
        second,
        lag,
        cost,
        node,
        sent,
        *dynamic,
        next_action,
        np.zeros(ranks * schedule.iterations if chained else 1, dtype=np.int64),
        np.zeros(ranks, dtype=np.int64),
        np.zeros(ranks, dtype=np.int64),
        np.zeros(ranks + 1, dtype=np.int64),
        state,
    )
    if state[sweep.OUTCOME] != sweep.DONE:
        from debubble.engine import diagnose

        raise diagnose.explain(schedule, int(state[sweep.OUTCOME]), int(state[sweep.POSITION]))
    nodes = int(state[sweep.NODES])
    used = int(state[sweep.DYNAMIC])
    return EventGraph(
        schedule,
        mode,
        first[:nodes],
        second[:nodes],
        lag[:nodes],
        cost[:nodes],
        node,
        sent,
        dynamic[0][:used],
        dynamic[1][:used],
        dynamic[2][:used],
        int(state[sweep.COMPLETED]),
    )
