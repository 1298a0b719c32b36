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

from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import among, computes, ends_group, kinds_of
from debubble.core.cost_table import CostTable
from debubble.core.kind_relations import FORWARD_KIND
from debubble.core.kinds import (
    COPY_KINDS,
    KINDS,
    OF_RANK_KINDS,
    TIMED_KINDS,
    WORK_KINDS,
    Kind,
    Time,
    kind_bits,
)
from debubble.core.schedule import Schedule
from debubble.engine.kernels import evaluate as walk
from debubble.engine.kernels import layout
from debubble.engine.modes import P2PMode
from debubble.engine.recompute import recompute_share
from debubble.engine.validate import scan

LINK, SUM, FORWARDS, CARRY = layout.LINK, layout.SUM, layout.FORWARDS, layout.CARRY
"""``dynamic_kind`` of a link, of two costs that are added, of a pair of two forwards, and of what
place a carries to place b; other values are the kind of a pair's backward half, of a copy, of a
collective, or of a pass of the output layer's shard."""

_COPIES = kind_bits(COPY_KINDS)
_TIMED = np.array(TIMED_KINDS)


class Work(NamedTuple):
    """Number of times that a rank pays a cost for computing, for every rank and cost."""

    rank: NDArray[np.int64]
    cost: NDArray[np.int64]
    """Index of the cost."""
    times: NDArray[np.int64]
    """Times that the rank pays it."""

    def total(self, costs: NDArray[np.float64], ranks: int) -> NDArray[np.float64]:
        """Return the time that every rank computes, shape ``(ranks,)``."""
        paid = np.bincount(self.rank, self.times * costs[self.cost], ranks)
        return np.asarray(paid, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class EventGraph:
    """A schedule as a graph that can be evaluated for any costs."""

    schedule: Schedule
    mode: P2PMode
    """The p2p mode."""
    first: NDArray[np.uint32]
    second: NDArray[np.uint32]
    lag: NDArray[np.uint16] | NDArray[np.uint32]
    cost: NDArray[np.uint16] | NDArray[np.uint32]
    """As the three before, of shape ``(nodes + 1,)``; entry 0 is the common start. Without a sign
    no index is negative, which compiled code would test for at every access. `lag` and `cost` are
    ``uint16`` where all costs have such an index, else they are ``uint32`` like the others."""
    node: NDArray[np.int32]
    """Node of every action, shape ``(n,)``; the two halves of a pair share one."""
    sent: NDArray[np.int32]
    """Node of the transfer an action's result goes through, 0 where none; shape ``(n,)``. Empty
    when transfers keep no rank busy."""
    dynamic_kind: NDArray[np.int32]
    dynamic_a: NDArray[np.int32]
    dynamic_b: NDArray[np.int32]
    """Meaning of the last cost indices, with the two before: a link from rank a to rank b, for
    slice j from a + j · ranks where slices differ in length; a pair of a forward on place a and a
    backward of that kind on place b; the costs a and b added, of a larger group; a copy, or a pass
    of the output layer's shard, of place a on rank b; or a collective of stage a % stages of copy a
    // stages."""
    completed: int
    """Number of (stage, microbatch) with all of their backward."""
    overtaken: bool = False
    """Whether a rank receives a transfer before another that was sent to it earlier over the same
    link."""
    shared: int = 1
    """Number of ranks that share one link to the host."""
    base: EventGraph | None = None
    """If actions have times of their own, the graph in which those of a kind and stage share a
    cost, see :mod:`debubble.engine.action_times`; else None."""
    carried: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """As `sent`, of what an action's stage carries to another; empty without carries."""

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def edges(self) -> tuple[NDArray[np.unsignedinteger], ...]:
        """The four arrays of the nodes."""
        return self.first, self.second, self.lag, self.cost

    @property
    def complete(self) -> bool:
        """Return whether every backward is done."""
        return self.completed >= self.schedule.stages * self.schedule.units

    @property
    def places(self) -> int:
        """Stages of all copies, for every slice."""
        schedule = self.schedule
        return schedule.slices * schedule.placement.copies * schedule.stages

    @property
    def link_times(self) -> int:
        """Number of transfer times of a pair of ranks: one, or one for each uneven slice."""
        return link_times_of(self.schedule)

    @property
    def dynamic_costs(self) -> int:
        """Cost index of the first link or pair."""
        return 1 + len(TIMED_KINDS) * self.places + self.schedule.ranks

    @property
    def work(self) -> Work:
        """Costs that every rank pays for computing."""
        schedule, width = self.schedule, self.dynamic_costs + len(self.dynamic_kind)
        if self.base is not None:
            counted = ends_group(schedule.actions) & computes(kinds_of(schedule.actions))
            payer = schedule.ranks_of_actions[counted]
            return Work(payer, self.cost[self.node[counted]].astype(np.int64), np.ones_like(payer))
        payers, costs, times = [], [], []
        for rank in range(schedule.ranks):
            part = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
            program = schedule.actions[part]
            alone = self.node[part][ends_group(program) & computes(kinds_of(program))]
            counts = np.bincount(self.cost[alone], minlength=width)
            paid = np.flatnonzero(counts)
            payers.append(np.full(len(paid), rank))
            costs.append(paid)
            times.append(counts[paid])
        return Work(*map(np.concatenate, (payers, costs, times)))

    @property
    def has_copies(self) -> bool:
        """Return whether activations leave their ranks."""
        return bool(scan(self.schedule).kinds & _COPIES)

    def cost_vector(self, table: CostTable) -> NDArray[np.float64]:
        """Costs in the order the graph's indices mean."""
        assert table.duration.shape[1] == self.places, "costs are not of this schedule's slices"
        begin, ranks = self.dynamic_costs, self.schedule.ranks
        timed = begin - ranks
        vector = np.empty(begin + len(self.dynamic_kind))
        vector[0] = 0
        vector[1:timed] = table.duration[_TIMED].ravel()
        vector[timed:begin] = table.optimizer
        kinds, a, b = self.dynamic_kind, self.dynamic_a, self.dynamic_b
        if self.link_times == 1 and not np.count_nonzero(kinds != LINK):
            vector[begin:] = table.link[a, b]
            return vector
        links = kinds == LINK
        pairs = (among(kinds, TIMED_KINDS) | (kinds == FORWARDS)) & ~links
        if self.link_times == 1:
            vector[begin:][links] = table.link[a[links], b[links]]
        else:
            vector[begin:][links] = [
                table.transfer(sender % ranks, receiver, sender // ranks)
                for sender, receiver in zip(a[links].tolist(), b[links].tolist(), strict=True)
            ]
        there = a[pairs]
        second = np.where(kinds[pairs] == FORWARDS, FORWARD_KIND, kinds[pairs])
        halves = (np.full_like(there, FORWARD_KIND), there), (second, b[pairs])
        vector[begin:][pairs] = table.pair_times(*halves)
        rare = np.flatnonzero(~links & ~pairs)
        what = (kinds[rare].tolist(), a[rare].tolist(), b[rare].tolist())
        for index, kind, one, other in zip(rare.tolist(), *what, strict=True):
            vector[begin + index] = self._time(kind, one, other, table, vector)
        return vector

    def _time(
        self, kind: int, a: int, b: int, table: CostTable, vector: NDArray[np.float64]
    ) -> float:
        """Return a cost that is not of a link, pair or stage; `vector` has the earlier ones."""
        if kind == SUM:
            return float(vector[a] + vector[b])
        if kind == CARRY:
            return table.carried(a, b)
        if KINDS[kind].time is Time.STAGE:
            return float(table.duration[kind, a])
        recomputed = bool(recompute_share(self.schedule)[a] >= 1)
        return table.copy(Kind(kind), a, self.schedule.copy_targets[b], recomputed)

    def cost_names(self) -> list[str]:
        """Name of every entry of a cost vector that actions share."""
        schedule = self.schedule
        stages, copies, slices = schedule.stages, schedule.placement.copies, schedule.slices

        def where(place: int, owner: str = "") -> str:
            group, stage = divmod(place, stages)
            copy = f" of copy {group % copies}" if copies > 1 else ""
            return f"{owner or f'stage {stage}'}{copy}{of_slice(group // copies)}"

        def of_slice(part: int) -> str:
            return f", slice {part}" if slices > 1 else ""

        def link(a: int, b: int) -> str:
            part, sender = divmod(a, schedule.ranks)
            return f"p2p {sender} → {b}{of_slice(part) if self.link_times > 1 else ''}"

        names = ["nothing"]
        names += [
            f"{kind.name} of {where(place)}" for kind in TIMED_KINDS for place in range(self.places)
        ]
        names += [f"OPT of rank {rank}" for rank in range(schedule.ranks)]
        for kind, a, b in zip(self.dynamic_kind, self.dynamic_a, self.dynamic_b, strict=True):
            if kind == LINK:
                names.append(link(int(a), int(b)))
            elif kind == SUM:
                names.append(f"{names[a]} and {names[b]} together")
            elif kind == CARRY:
                names.append(f"p2p_carry of {where(a)} to {where(b)}")
            elif kind == FORWARDS or kind in WORK_KINDS:
                second = FORWARD_KIND if kind == FORWARDS else Kind(kind)
                names.append(f"pair F of {where(a)} and {second.name} of {where(b)}")
            else:
                owner = f"rank {b}" if kind in OF_RANK_KINDS else ""
                names.append(f"{Kind(kind).name} of {where(a, owner)}")
        return names

    def evaluate(
        self, costs: NDArray[np.float64], out: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """End time of every node, shape ``(nodes + 1,)``, for one cost vector; reuses `out`."""
        end = np.empty(len(self.first)) if out is None else out
        walk.evaluate.run(len(self.first), *self.edges, costs, end)
        return end

    def makespans(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Makespan for each row of a matrix of cost vectors, several rows at a time."""
        rows = np.atleast_2d(np.asarray(costs, dtype=np.float64))
        lanes = walk.LANES
        result = np.empty(len(rows))
        end = np.empty((len(self.first), lanes))
        last = np.empty(lanes)
        columns = np.zeros((rows.shape[1], lanes))
        for begin in range(0, len(rows), lanes):
            block = rows[begin : begin + lanes]
            columns[:, : len(block)] = block.T
            walk.evaluate_lanes.run(len(self.first) * lanes, *self.edges, columns, end, last)
            result[begin : begin + lanes] = last[: len(block)]
        return result

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """Action (position in the schedule) of every node, −1 for joins and transfers."""
        order = np.full(len(self.first), -1, dtype=np.int32)
        order[self.node] = np.arange(len(self.node), dtype=np.int32)
        return order


def link_times_of(schedule: Schedule) -> int:
    """Return the number of different lengths that slices may have."""
    return schedule.slices if schedule.cut else 1


ARRAYS = attrgetter(*(spec.name for spec in fields(EventGraph)[2:]))
"""Parts of a graph besides its schedule and mode."""
