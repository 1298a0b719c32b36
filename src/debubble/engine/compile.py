"""Compile the programs of a schedule, as they stand, into an event graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import KIND_MASK, among
from debubble.core.carries import carry_steps
from debubble.core.costs import Costs
from debubble.core.embedding_and_head import first_stages
from debubble.core.errors import ScheduleError
from debubble.core.kinds import (
    COPY_KINDS,
    KINDS,
    STEP_KINDS,
    TIMED_KINDS,
    TRANSFER_KINDS,
    WORK_KINDS,
    kind_bits,
)
from debubble.core.schedule import SYNCS, Schedule
from debubble.engine.event_graph import ARRAYS, EventGraph, link_times_of
from debubble.engine.explain import explain as explain_refusal
from debubble.engine.kernels import layout
from debubble.engine.kernels.carry import Carry
from debubble.engine.kernels.groups import MOST_MEMBERS, Group
from debubble.engine.kernels.link import Ends, Transfers
from debubble.engine.kernels.queues import ROW, Queues
from debubble.engine.kernels.side_streams import SHARDS, SideStreams
from debubble.engine.kernels.steps import Steps
from debubble.engine.kernels.sweep import sweep
from debubble.engine.kind_columns import kind_columns
from debubble.engine.modes import MODE, P2PMode
from debubble.engine.recompute import copies_in_part
from debubble.engine.validate import scan

UNIT_COSTS = Costs(F=1, I=1, W=1, R=1, OPT=1)
"""Costs of simulations that settle an order: whole numbers, and none of them zero."""

_GROUP_SLOTS = 8192
_FEW_COSTS = 1 << 16
_TRANSFERS = kind_bits(TRANSFER_KINDS)
_COPIES = kind_bits(COPY_KINDS)
_STEPS = kind_bits(STEP_KINDS)
_PLAIN = kind_bits((*WORK_KINDS, *STEP_KINDS))


def compile_programs(
    schedule: Schedule, mode: P2PMode, shared: int = 1, *, explain: bool = True
) -> EventGraph:
    """Lower the programs of a schedule to an event graph; the same schedule is lowered once.

    Where there are no sends and receives, what goes to another rank takes link time, and in a mode
    that sends one transfer at a time its turn on the link. `shared` neighboring ranks share one
    link to the host. Without `explain` the ScheduleError for an order that cannot run does not say
    why; to find that out takes many times as long as to compile.
    """
    # The arrays are kept, not the graph: it points back at the schedule, and a cycle of the two
    # would hold on to memory until the garbage collector happens to come by.
    key = (EventGraph, "programs", mode, shared)
    if key not in schedule.derived:
        graph = _compile(schedule, mode, shared, explain)
        schedule.derived[key] = ARRAYS(graph)
        return graph
    return EventGraph(schedule, mode, *schedule.derived[key])


def _compile(
    schedule: Schedule, mode: P2PMode, shared: int, explain: bool, few: bool = True
) -> EventGraph:
    """Compile with indices of costs in 16 bits; where those are too few, once more without."""
    parts = _Parts.of(schedule)
    sizes = _sizes(schedule)
    nodes, costs = _room(schedule, parts, sizes, mode)
    room = _FEW_COSTS - sizes.base
    few = few and room > 0
    costs = min(costs, room) if few else costs
    graph = _zero_graph(schedule, mode, nodes, few)
    dynamic = np.zeros((3, costs), dtype=np.int32)
    frame = _frame(schedule, mode, parts, sizes, graph, dynamic)
    sweep.run(
        5 * len(schedule),
        frame,
        _steps(schedule) if parts.steps else None,
        _group(len(schedule), sizes.places) if parts.grouped or parts.side else None,
        _transfers(schedule, mode) if parts.explicit else None,
        _side(schedule, mode, parts.kinds, shared, explain) if parts.side else None,
        _carry(schedule, sizes.places) if schedule.carries else None,
        types=_types(schedule, parts, few),
    )
    used = int(frame.state[layout.DYNAMIC])
    if used > costs:
        return _compile(schedule, mode, shared, explain, few=False)
    copies = parts.kinds & _COPIES
    if frame.state[layout.FAILURE] or (copies and len(copies_in_part(schedule))):
        if not explain:
            raise ScheduleError(f"'{schedule.name}' cannot run")
        raise explain_refusal(schedule, mode)
    end = int(frame.state[layout.NODES])
    # A copy, because there was room for many more.
    dynamic_kind, dynamic_a, dynamic_b = dynamic[:, :used].copy()
    first, second, lag, cost = (array[:end] for array in graph[:4])
    return EventGraph(
        schedule, mode, first, second, lag, cost, graph.node, graph.sent, dynamic_kind, dynamic_a,
        dynamic_b, int(frame.state[layout.COMPLETED]), bool(frame.state[layout.OVERTAKEN]), shared,
        carried=graph.carried,
    )  # fmt: skip


class _Parts(NamedTuple):
    """Parts of the compiler that a schedule needs."""

    kinds: int
    """Bit k stands for actions of kind k, those of work and steps left out."""
    grouped: bool
    """Whether any actions are overlapped."""
    explicit: bool
    """Whether transfers are actions."""
    side: bool
    """Whether there are side streams or shards of the output layer."""
    steps: bool
    """Whether there are optimizer steps."""

    @classmethod
    def of(cls, schedule: Schedule) -> _Parts:
        found = scan(schedule)
        kinds = found.kinds & ~_PLAIN
        return cls(
            kinds,
            found.grouped,
            bool(kinds & _TRANSFERS),
            bool(kinds & ~_TRANSFERS) or schedule.vocabulary > 0,
            bool(found.kinds & _STEPS),
        )


def _types(schedule: Schedule, parts: _Parts, few: bool) -> tuple[object, ...]:
    """Return a key of all that types of the kernel's arguments depend on."""
    # Indices of costs, and bits of results, have as many bits as these need.
    parts_key = few, parts.steps, parts.grouped, parts.explicit, parts.side, bool(schedule.carries)
    given = schedule.actions, schedule.offsets, schedule.homes
    return (*parts_key, *((array.dtype.num, array.flags.num) for array in given))


def _sizes(schedule: Schedule) -> layout.Sizes:
    placement, stages, units = schedule.placement, schedule.stages, schedule.units
    places = schedule.slices * placement.copies * stages
    return layout.Sizes(
        schedule.ranks, stages, schedule.microbatches, schedule.slices, units, placement.copies,
        schedule.iterations, stages * units, places,
        1 + len(TIMED_KINDS) * places + schedule.ranks, link_times_of(schedule),
    )  # fmt: skip


def _room(schedule: Schedule, parts: _Parts, sizes: layout.Sizes, mode: P2PMode) -> tuple[int, int]:
    """Return the most nodes and dynamic costs that a graph may have."""
    count, ranks = len(schedule), sizes.ranks
    nodes = 1 + count + min(ranks * schedule.iterations, count)
    if parts.side:
        # Two joins for each action; passes of the output layer have as many.
        nodes += 2 * count
    elif parts.explicit or mode != "overlapped":
        nodes += count
    # Who gets it waits at a node of its own; where it is a node, too, it has two ends or a maker.
    nodes += 2 * count if schedule.carries else 0
    # In addition to neighboring stages, norms go down the ranks and back, and so do sums over
    # shards.
    joint = parts.steps and schedule.sync != "local"
    more = 4 * ranks if joint or parts.side else 0
    costs = sizes.lanes * min(ranks * ranks, 2 * sizes.copies * sizes.stages + more)
    costs += 2 * sizes.places if schedule.carries else 0
    costs += (count if parts.grouped else 0) + (6 * sizes.places if parts.side else 0)
    return nodes, costs


def _zero_graph(schedule: Schedule, mode: P2PMode, nodes: int, few: bool) -> layout.Graph:
    """Return arrays for so many nodes; with `few`, cost indices have 16 bits."""
    count = len(schedule)
    # One block: of several, malloc gives those back to the system that it is asked for next time.
    block = np.zeros((4 if few else 5, nodes), dtype=np.uint32)
    first, second, third = block[:3]
    indices: NDArray[Any] = block[3:].view(np.uint16 if few else np.uint32)
    lag, cost = indices.reshape(2, nodes)
    node = third[:count].view(np.int32)
    carried = count if schedule.carries and mode != "overlapped" else 0
    sent = third[count : count if mode == "overlapped" else 2 * count].view(np.int32)
    return layout.Graph(first, second, lag, cost, node, sent, _zeros(carried))


def _frame(
    schedule: Schedule, mode: P2PMode, parts: _Parts, sizes: layout.Sizes, graph: layout.Graph,
    dynamic: NDArray[np.int32],
) -> layout.Frame:  # fmt: skip
    """Put together what the sweep takes of every schedule."""
    ranks, spec = sizes.ranks, MODE[mode]
    few, more = (np.uint16, np.uint32) if schedule.carries else (np.uint8, np.uint16)
    bits: type[np.unsignedinteger[Any]] = more if parts.explicit or parts.side else few
    return layout.Frame(
        sizes,
        layout.Rules(
            SYNCS.index(schedule.sync), schedule.vocabulary, spec.one_by_one, spec.blocks,
            spec.queued,
        ),
        layout.Program(
            schedule.actions, schedule.offsets, schedule.homes, _offsets(schedule),
            kind_columns(schedule),
        ),
        graph,
        layout.Rare(dynamic[0], dynamic[1], dynamic[2], _zeros(ranks * ranks)),
        layout.Turns(
            np.zeros(ranks, dtype=np.int64), _zeros(ranks),
            np.zeros(1 << (ranks - 1).bit_length(), dtype=np.int64),
            _zeros(ranks * ranks if spec.one_by_one else 0),
        ),
        layout.SweepOutput(
            _zeros(_results(schedule) * sizes.cells), np.zeros(sizes.cells, dtype=bits)
        ),
        np.zeros(layout.STATES, dtype=np.int64),
    )  # fmt: skip


def _results(schedule: Schedule) -> int:
    """Return the number of results of a stage that others wait for."""
    return 4 if schedule.carries else 2


def _carry(schedule: Schedule, places: int) -> Carry:
    steps = carry_steps(schedule.carries, schedule.stages)
    return Carry(steps.ravel(), _zeros(2 * places))


def _zeros(size: int) -> NDArray[np.int32]:
    return np.zeros(size, dtype=np.int32)


def _steps(schedule: Schedule) -> Steps:
    ranks = schedule.ranks
    norms = ranks * schedule.iterations if schedule.sync == "post-validation" else 0
    return Steps(_zeros(ranks), _zeros(norms))


def _group(count: int, places: int) -> Group:
    slots = min(1 << count.bit_length(), _GROUP_SLOTS)
    row, place, wanted = np.zeros((3, MOST_MEMBERS), dtype=np.int64)
    pair, key = np.zeros(places, dtype=np.int64), np.zeros(slots, dtype=np.int64)
    return Group(row, place, wanted, pair, _zeros(places), key, _zeros(slots))


def _transfers(schedule: Schedule, mode: P2PMode) -> Transfers:
    spec, ranks = MODE[mode], schedule.ranks
    results = _results(schedule) * schedule.stages * schedule.units
    made = 0 if mode == "overlapped" else results
    peers, ways = ranks if spec.by_peer else 1, 2 if spec.by_direction else 1
    queues, posted = (ranks * peers * ways, ROW * len(schedule)) if spec.queued else (0, 0)
    return Transfers(
        Ends(*map(_zeros, (results, made, 2 * ranks * ranks, ranks, ranks, ranks))),
        Queues(peers, ways, *map(_zeros, (posted, queues, queues, queues, 2 * ranks))),
    )


def _offsets(schedule: Schedule) -> NDArray[np.int32]:
    """Return what is added to a stage to get the place of a unit; empty where it is 0 for all."""
    copies = schedule.placement.copies
    if copies * schedule.slices == 1:
        return np.zeros(0, dtype=np.int32)
    units = np.arange(schedule.units)
    group = units % schedule.slices * copies + schedule.copies_of(units)
    return (group * schedule.stages).astype(np.int32)


def _side(schedule: Schedule, mode: P2PMode, kinds: int, shared: int, explain: bool) -> SideStreams:
    placement = schedule.placement
    ranks = placement.ranks
    stages, copies = placement.stages, placement.copies
    copied = bool(kinds & _COPIES)
    # A rank may hold a stage of several copies of the model; the first stands for all.
    table = np.asarray(placement.table)
    first_copy = (table[:, None] == table[None]).argmax(axis=1)
    owner = first_copy * stages + np.arange(stages)
    order = _shared_order(schedule, mode, shared, explain) if copied and shared > 1 else None
    places, cells = copies * stages, stages * schedule.units
    return SideStreams(
        copied=_zeros(ranks),
        gathered_by=_zeros(ranks),
        reduced_by=_zeros(ranks),
        time_id=_zeros(len(KINDS) * places * schedule.slices),
        weights=_zeros(places),
        reductions=_zeros(places * schedule.iterations),
        moved=_zeros(cells if copied else 0),
        shards=_zeros(SHARDS * schedule.units if schedule.vocabulary else 0),
        parked=_zeros(ranks),
        owner_of=np.tile(owner.ravel().astype(np.int32), schedule.slices),
        ahead=_zeros(0) if order is None else order,
        first_stage=first_stages(placement).astype(np.int32),
    )


def _shared_order(
    schedule: Schedule, mode: P2PMode, shared: int, explain: bool
) -> NDArray[np.int32]:
    """Return the copy in front of every copy on its rank's stream or on a link that ranks share.

    On a shared link copies run in the order in which they would be issued were copies free and
    everything else took one unit of time. That order extends the order of events without sharing,
    so that it never adds a cycle; where ranks are in step, it takes their copies in turn.
    """
    graph = compile_programs(schedule, mode, explain=explain)
    both = np.flatnonzero(among(schedule.actions & KIND_MASK, COPY_KINDS))
    rank = np.searchsorted(schedule.offsets, both, side="right") - 1
    to_host = np.array([target is None for target in schedule.copy_targets])[rank]
    vector = graph.cost_vector(UNIT_COSTS.table(schedule))
    node = graph.node[both]
    time = (graph.evaluate(vector) - vector[graph.cost])[node]
    stream = np.where(to_host, schedule.ranks + rank // shared, rank)
    order = np.lexsort((node, time, stream))
    both, stream = both[order], stream[order]
    ahead = np.full(len(schedule), -1, dtype=np.int32)
    same = stream[1:] == stream[:-1]
    ahead[both[1:][same]] = both[:-1][same]
    return ahead
