"""Explicit sends and receives in a schedule, placed so that no rendezvous can deadlock.

A send stands right after its producer. What is left to choose is where the consumer's rank
receives. Contiguous sends and receives between two compute actions are one *group*: all of it
is posted at once, and under rendezvous the rank goes on when all of it is over.

Both policies look at a simulation with unit costs and free transfers:

* ``"eager"`` receives at the earliest place, before the first action that starts when the producer
  has ended or later.
* ``"just-in-time"`` receives at the latest place up to the consumer that keeps no sender waiting:
  the receive moves after an action only if that action ends before the sender's next one starts.
  For 1F1B that gives Megatron-LM's groups, ``send_forward_recv_backward`` and
  ``send_backward_recv_forward``.
* ``"queued"`` receives at the same place, and sorts groups, see below.

**Why the groups cannot deadlock.** Look at a transfer and the two actions that follow it, on the
sender and on the receiver, and let its time be the start of the earlier of them. On both ranks the
transfer stands after all actions that start before its time and before all others: that is plain
for the actions that follow it. The producer starts before both of them, as every action takes
time. So does the action in front of the receive, which starts before the producer ends (earliest
place) or ends before the sender's next action starts (later places). Now put all events in one
order, actions by start and transfers by their time, transfers first among equals; every program
lists its events in that order, group by group. The first transfer of the order that is not over
has nothing unfinished before it on either of its ranks, so that both stand in the group that holds
it, and it happens. By induction everything happens.

On every directed pair of ranks receives stand in the order of the sends, so that transfers
without tags reach the right buffers: earliest places come in the order in which producers end,
and no later place moves past the one of the next transfer.

**Queues.** Some runtimes do not post groups but queue every transfer: one queue per rank and peer,
or one per rank for all its peers, on both of which a transfer runs only when all before it have.
The order above leads to that, too, once transfers within a group stand in it: then what a rank
queues is a part of one order that all ranks share, and the first transfer of it that is not over
heads every queue it is in. ``"eager"`` and ``"queued"`` sort their groups so, by time and among
equals by the end of the producer. ``"just-in-time"`` writes sends before receives, which is the
custom where groups are posted at once.

Copies of activations and collectives take no compute time and meet no other action: they are left
out of all this, and put back after the compute action they followed, in front of its transfers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    SHARDING_KINDS,
    TRANSFER_KINDS,
    VOCABULARY_KINDS,
    among,
    computes,
    group_bounds,
    kinds_of,
    unpack,
)
from debubble.core.carries import carry_steps
from debubble.core.errors import ScheduleError
from debubble.core.kinds import OFFLOAD_KINDS, WAIT_KINDS
from debubble.core.schedule import Schedule
from debubble.core.slicing import Slicing
from debubble.engine.compile import UNIT_COSTS, compile_programs
from debubble.engine.kernels import transfers as kernels
from debubble.engine.kind_columns import kind_columns
from debubble.engine.modes import ReceivePolicy
from debubble.engine.validate import has

ASIDE_KINDS = (*OFFLOAD_KINDS, *SHARDING_KINDS)
"""Kinds that neither compute nor move data between stages."""


def insert_transfers(
    schedule: Schedule, policy: ReceivePolicy, *, explain: bool = True
) -> Schedule:
    """Return the schedule with a send and a receive for everything that moves between ranks.

    The schedule has compute actions, copies and collectives. Raises ScheduleError when it has
    transfers already, or cannot run, for which `explain` says whether to say why.
    """
    refuse_transfers(schedule)
    aside = among(kinds_of(schedule.actions), ASIDE_KINDS)
    if aside.any():
        bare = insert_transfers(without(schedule, aside), policy, explain=explain)
        return _with_aside(schedule, bare, aside, explain)
    start, end = _unit_times(schedule, explain)
    home, consumer, transfers = consumers_of(schedule)
    order, slot = np.zeros((2, transfers), dtype=np.int32)
    ranks, count = schedule.ranks, len(schedule)
    kernels.place_early.run(
        3 * count, schedule.offsets, home, consumer, start, end,
        np.zeros(int(end.max(initial=0)) + 2, dtype=np.int32), np.zeros(ranks, dtype=np.int64),
        order, slot,
    )  # fmt: skip
    if policy != "eager":
        kernels.place_late.run(
            2 * count, schedule.actions, schedule.offsets, home, consumer, start, end,
            np.zeros(ranks * ranks, dtype=np.int32), order, slot,
        )  # fmt: skip
    lowered = np.zeros(count + 2 * transfers, dtype=np.int64)
    offsets = np.zeros(ranks + 1, dtype=np.int64)
    sends_first = policy == "just-in-time"
    if not sends_first:
        shared = _one_order(schedule, home, start, order, slot)
        order, slot = order[shared], slot[shared]
    kernels.write_programs.run(
        4 * count, schedule.actions, schedule.offsets, home, consumer, order, slot, sends_first,
        np.zeros(count + ranks, dtype=np.int32), lowered, offsets,
    )  # fmt: skip
    return replace(schedule, actions=lowered, offsets=offsets)


def _unit_times(schedule: Schedule, explain: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return start and end of every action with unit costs and free transfers."""
    graph = compile_programs(schedule, "overlapped", explain=explain)
    # Every slice counts as a whole microbatch, so that times stay whole numbers.
    slicing = Slicing((1.0,) * schedule.slices)
    vector = graph.cost_vector(UNIT_COSTS.resolve(schedule.placement, slicing))
    vector[graph.dynamic_costs :][among(graph.dynamic_kind, VOCABULARY_KINDS)] = 1
    end = graph.evaluate(vector).astype(np.int32)
    start = end - vector.astype(np.int32)[graph.cost]
    return start[graph.node], end[graph.node]


def refuse_transfers(schedule: Schedule) -> None:
    """Raise a ScheduleError that names the first transfer among the actions, if any."""
    position = first_transfer(schedule)
    if position is not None:
        raise ScheduleError(
            f"'{schedule.name}' has transfers already: "
            f"{schedule.text(unpack(int(schedule.actions[position])))} "
            f"on rank {schedule.rank_of(position)}; lower a schedule without them"
        )


def consumers_of(schedule: Schedule) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """Return the rank of every action, its consumer on another rank, and the number of those.

    The consumer is the action that gets the result, −1 where that goes to no other rank. Where
    stages carry something, as many numbers follow for that.
    """
    count = len(schedule)
    home = schedule.ranks_of_actions.astype(np.int32)
    several = 2 if schedule.carries else 1
    steps = carry_steps(schedule.carries, schedule.stages if schedule.carries else 0)
    consumer = np.zeros(several * count, dtype=np.int32)
    transfers: int = kernels.find_transfers.run(
        2 * several * count, schedule.actions, home, schedule.stages, schedule.units,
        kind_columns(schedule), steps.ravel(),
        np.zeros(2 * several * schedule.stages * schedule.units, dtype=np.int32), consumer,
    )  # fmt: skip
    return home, consumer, transfers


def _one_order(
    schedule: Schedule,
    home: NDArray[np.int32],
    start: NDArray[np.int32],
    order: NDArray[np.int32],
    slot: NDArray[np.int32],
) -> NDArray[np.int64]:
    """Return the transfers in the order that all ranks share, as indices into `order` and `slot`.

    `order` has them by the end of their producers, which settles what is equal in time.
    """
    maker = order % len(schedule)
    following = group_bounds(schedule.actions)[1][maker]
    ends_rank = following == schedule.offsets[home[maker] + 1]
    sender = np.where(ends_rank, np.iinfo(np.int32).max, np.append(start, 0)[following])
    return np.argsort(np.minimum(sender, start[slot]), kind="stable")


def without(schedule: Schedule, left_out: NDArray[np.bool_]) -> Schedule:
    """Return the schedule without some of its actions."""
    before = np.searchsorted(np.flatnonzero(left_out), schedule.offsets)
    return replace(schedule, actions=schedule.actions[~left_out], offsets=schedule.offsets - before)


def _with_aside(
    schedule: Schedule, lowered: Schedule, aside: NDArray[np.bool_], explain: bool
) -> Schedule:
    """Return the lowered schedule with the actions that were left out of the given one.

    They go right after the compute action before them; but waits, and what comes after those, go
    after the transfers there, which they would hold up.
    """
    compile_programs(schedule, "overlapped", explain=explain)
    compute = np.flatnonzero(computes(kinds_of(lowered.actions)))
    here = np.flatnonzero(aside)
    rank = np.searchsorted(schedule.offsets, here, side="right") - 1
    # Number of compute actions of all programs before each of them.
    before = np.cumsum(~aside)[here]
    own = before > np.concatenate([[0], np.cumsum(~aside)])[schedule.offsets[rank]]
    spots = np.where(own, np.append(compute, -1)[before - 1] + 1, lowered.offsets[rank])
    # Those between the same two compute actions have one number; from a wait on they are late.
    gap = before + rank
    held = np.cumsum(among(kinds_of(schedule.actions[here]), WAIT_KINDS))
    late = held > (held - np.diff(held, prepend=0))[np.searchsorted(gap, gap)]
    behind = np.minimum(np.append(compute, len(lowered))[before], lowered.offsets[rank + 1])
    spots = np.where(late, behind, spots)
    added = np.searchsorted(rank, np.arange(schedule.ranks + 1))
    return replace(
        lowered,
        actions=np.insert(lowered.actions, spots, schedule.actions[here]),
        offsets=lowered.offsets + added,
    )


def first_transfer(schedule: Schedule) -> int | None:
    """Return the position of the first send or receive of a schedule, None if there is none."""
    if not has(schedule, TRANSFER_KINDS):
        return None
    return int(among(kinds_of(schedule.actions), TRANSFER_KINDS).argmax())
