"""Compile the programs of a schedule, as they stand, into an event graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import KIND_MASK, among, kinds_of
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
from debubble.engine.kernels import layout, sweep
from debubble.engine.kernels.queues import ROW
from debubble.engine.kind_columns import kind_columns
from debubble.engine.modes import MODE, P2PMode
from debubble.engine.recompute import recompute_share
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

    Parameters
    ----------
    schedule, mode
        Any schedule, and what its transfers do, see :mod:`debubble.engine.modes`. Where there are
        no sends and receives, what goes to another rank takes link time, and in a mode that sends
        one transfer at a time its turn on the link.
    shared
        How many neighbouring ranks share one link to the host.
    explain
        Whether an error has to say why; to find that out takes many times as long as to compile.

    Raises
    ------
    ScheduleError
        When the order cannot run.
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
    survey = scan(schedule)
    kinds, grouped = survey.kinds & ~_PLAIN, survey.grouped
    explicit = bool(kinds & _TRANSFERS)
    rare = bool(kinds & ~_TRANSFERS) or schedule.vocabulary > 0
    spec = MODE[mode]
    placement = schedule.placement
    ranks, stages, copies = placement.ranks, placement.stages, placement.copies
    count, units, lanes = len(schedule), schedule.units, link_times_of(schedule)
    cells = stages * units
    places = schedule.slices * copies * stages
    chained = schedule.sync == "post-validation"
    stepping = bool(survey.kinds & _STEPS) and schedule.sync != "local"

    size = 1 + count + min(ranks * schedule.iterations, count)
    if rare:
        # Beside an action two joins; passes of the output layer have as many.
        size += 2 * count
    elif explicit or mode != "overlapped":
        size += count
    # Beside neighbouring stages, norms go down the ranks and back, and so do sums over shards.
    more = 4 * ranks if stepping or rare else 0
    costs = lanes * min(ranks * ranks, 2 * copies * stages + more)
    costs += (count if grouped else 0) + (6 * places if rare else 0)
    room = _FEW_COSTS - (1 + len(TIMED_KINDS) * places + ranks)
    few = few and room > 0
    costs = min(costs, room) if few else costs
    # One block: of several, malloc gives those back to the system that it is asked for next time.
    block = np.zeros((4 if few else 5, size), dtype=np.uint32)
    first, second, third = block[:3]
    indices: NDArray[Any] = block[3:].view(np.uint16 if few else np.uint32)
    lag, cost = indices.reshape(2, size)
    node = third[:count].view(np.int32)
    sent = third[count : count if mode == "overlapped" else 2 * count].view(np.int32)
    dynamic = np.zeros((3, costs), dtype=np.int32)
    next_action = np.zeros(ranks, dtype=np.int64)
    state = np.zeros(layout.STATES, dtype=np.int64)
    links = ranks * ranks
    work = _arrays(
        links, ranks, 1 << (ranks - 1).bit_length(), ranks,
        ranks * schedule.iterations if chained else 0, links if spec.one_by_one else 0,
    )  # fmt: skip
    sweep.sweep.run(
        5 * count,
        schedule.actions,
        schedule.offsets,
        schedule.homes,
        _offsets(schedule),
        kind_columns(schedule),
        stages,
        schedule.microbatches,
        schedule.slices,
        copies,
        schedule.iterations,
        lanes,
        SYNCS.index(schedule.sync),
        schedule.vocabulary,
        len(TIMED_KINDS),
        spec.one_by_one,
        spec.blocks,
        spec.queued,
        spec.by_peer,
        spec.by_direction,
        np.zeros(cells, dtype=np.uint16 if explicit or rare else np.uint8),
        _zeros(2 * cells),
        first,
        second,
        lag,
        cost,
        node,
        sent,
        *dynamic,
        next_action,
        state,
        work,
        _grouping(count, places) if grouped or rare else None,
        _transfers(schedule, mode) if explicit else None,
        _aside(schedule, mode, kinds, shared, explain) if rare else None,
    )
    used = int(state[layout.DYNAMIC])
    if used > costs:
        return _compile(schedule, mode, shared, explain, few=False)
    outcome = int(state[layout.OUTCOME])
    if outcome == sweep.DONE and kinds & _COPIES and _recomputed_in_part(schedule):
        outcome = sweep.MIXED
    if outcome != sweep.DONE:
        if not explain:
            raise ScheduleError(f"'{schedule.name}' cannot run")
        raise explain_refusal(schedule, mode)
    nodes = int(state[layout.NODES])
    # A copy, because there was room for many more.
    dynamic_kind, dynamic_a, dynamic_b = dynamic[:, :used].copy()
    return EventGraph(
        schedule,
        mode,
        first[:nodes],
        second[:nodes],
        lag[:nodes],
        cost[:nodes],
        node,
        sent,
        dynamic_kind,
        dynamic_a,
        dynamic_b,
        int(state[layout.COMPLETED]),
        bool(state[layout.OVERTAKEN]),
        shared,
    )


def _zeros(size: int) -> NDArray[np.int32]:
    return np.zeros(size, dtype=np.int32)


def _arrays(*sizes: int) -> tuple[NDArray[Any], ...]:
    return tuple(map(_zeros, sizes))


def _grouping(count: int, places: int) -> tuple[NDArray[Any], ...]:
    """Arrays for the group at hand, for the last pair of every place, and for times of groups."""
    slots = min(1 << count.bit_length(), _GROUP_SLOTS)
    members = _arrays(*[sweep.MOST_MEMBERS] * 4)
    pairs = np.zeros(places, dtype=np.int64), _zeros(places)
    return (*members, *pairs, np.zeros(slots, dtype=np.int64), _zeros(slots))


def _transfers(schedule: Schedule, mode: P2PMode) -> tuple[NDArray[Any], ...]:
    """Arrays for sends and receives that are actions: those of ``Ends``, then of ``Queues``."""
    spec, ranks = MODE[mode], schedule.ranks
    cells = schedule.stages * schedule.units
    queues = ranks * (ranks if spec.by_peer else 1) * (2 if spec.by_direction else 1)
    queues, posted = (queues, ROW * len(schedule)) if spec.queued else (0, 0)
    return _arrays(
        2 * cells, 0 if mode == "overlapped" else 2 * cells, 2 * ranks * ranks, ranks, ranks, ranks,
        posted, queues, queues, queues, 2 * ranks,
    )  # fmt: skip


def _offsets(schedule: Schedule) -> NDArray[np.int32]:
    """What is added to a stage to get the place of a unit; empty where it is 0 for all."""
    copies = schedule.placement.copies
    if copies * schedule.slices == 1:
        return np.zeros(0, dtype=np.int32)
    units = np.arange(schedule.units)
    group = units % schedule.slices * copies + schedule.copies_of(units)
    return (group * schedule.stages).astype(np.int32)


def _recomputed_in_part(schedule: Schedule) -> bool:
    """Whether what is offloaded is a checkpoint for some microbatches of a place only."""
    share = recompute_share(schedule)
    mixed = (share > 0) & (share < 1)
    if not mixed.any():
        return False
    out = schedule.actions[among(kinds_of(schedule.actions), COPY_KINDS)]
    return bool(mixed[schedule.places_of(out)].any())


def _aside(
    schedule: Schedule, mode: P2PMode, kinds: int, shared: int, explain: bool
) -> tuple[NDArray[Any], ...]:
    """Arrays of ``SideStreams``, those first that are zeros."""
    placement = schedule.placement
    ranks = placement.ranks
    stages, copies = placement.stages, placement.copies
    copied = bool(kinds & _COPIES)
    # A rank may hold a stage of several copies of the model; the first stands for all.
    table = np.asarray(placement.table)
    owner = np.arange(copies * stages).reshape(copies, stages)
    for copy in range(copies - 1, 0, -1):
        for earlier in range(copy):
            same = table[copy] == table[earlier]
            owner[copy, same] = np.minimum(owner[copy, same], owner[earlier, same])
    order = _shared_order(schedule, mode, shared, explain) if copied and shared > 1 else None
    own = _arrays(
        ranks, ranks, ranks, len(KINDS) * copies * stages * schedule.slices, copies * stages,
        copies * stages * schedule.iterations, stages * schedule.units if copied else 0,
        6 * schedule.units if schedule.vocabulary else 0, ranks,
    )  # fmt: skip
    return (
        *own,
        np.tile(owner.ravel().astype(np.int32), schedule.slices),
        _zeros(0) if order is None else order,
        first_stages(placement).astype(np.int32),
    )


def _shared_order(
    schedule: Schedule, mode: P2PMode, shared: int, explain: bool
) -> NDArray[np.int32]:
    """The copy in front of every copy on its rank's own stream or on a link that ranks share.

    On a shared link copies run in the order in which they would be issued were copies free and
    everything else took one unit of time. That order extends the order of events without sharing,
    so that it never adds a cycle; where ranks are in step, it takes their copies in turn.
    """
    graph = compile_programs(schedule, mode, explain=explain)
    both = np.flatnonzero(np.isin(schedule.actions & KIND_MASK, COPY_KINDS))
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
