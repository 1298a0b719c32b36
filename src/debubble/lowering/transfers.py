"""Lower a schedule of compute actions to one with explicit sends and receives."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from debubble.core.actions import SHARDING_KINDS, among, group_bounds, kinds_of
from debubble.core.errors import ParameterError, did_you_mean
from debubble.core.schedule import Schedule
from debubble.engine.compile import compile_programs
from debubble.engine.kernels.pytorch_order import defer_receives, write_pytorch_order
from debubble.engine.modes import RECEIVE_POLICIES, ReceivePolicy
from debubble.engine.transfers import consumers_of, insert_transfers, refuse_transfers, without
from debubble.engine.validate import has
from debubble.lowering.sharding import MAX_ACTIVE, add_sharding

__all__ = ["RECEIVE_POLICIES", "TRANSFER_POLICIES", "ReceivePolicy", "TransferPolicy",
           "add_transfers"]  # fmt: skip

TransferPolicy: TypeAlias = Literal[
    "eager", "just-in-time", "queued", "pytorch", "pytorch-deferred"
]
TRANSFER_POLICIES = (*RECEIVE_POLICIES, "pytorch", "pytorch-deferred")


def add_transfers(schedule: Schedule, *, policy: TransferPolicy = "eager") -> Schedule:
    """Insert a send and a receive for everything that moves between ranks.

    Actions are written as in PyTorch: ``0SEND_F1`` on the rank that runs ``0F1``, ``1RECV_F1`` on
    the rank that runs ``1F1``; ``1SEND_B1`` behind ``1I1`` or ``1B1``, ``0RECV_B1`` before the
    backward of stage 0. Stages that share a rank need none. A send stands behind its
    producer, behind the whole pair when that is half of one, before the next compute action.

    Parameters
    ----------
    schedule
        A schedule of compute actions, copies of activations, and collectives, that can run.
    policy
        Position of receives, judged by a simulation in which F, I, W and an optimizer step take
        one unit of time, B takes two, and transfers take none.

        ``"eager"``: before the first action of the receiver that starts when the producer has
        ended or later, so that an asynchronous transfer overlaps all the computing it can.

        ``"just-in-time"``: as close to the consumer as keeps no sender waiting, so that buffers
        are held shortest and a group waits for nothing that is not needed yet. For 1F1B these are
        Megatron-LM's groups. Blocking simulations of schedules without transfers use it. What
        stands between two compute actions must be posted at once.

        ``"queued"``: at the same places. As with ``"eager"``, transfers stand in one order that all
        ranks share, so that they may also be queued one by one, on one queue for each peer or one
        for all of them, as NCCL's streams are. Simulations with such queues use it.

        ``"pytorch"``: where PyTorch's own lowering receives, at the place its rank has reached when
        the sender runs, in rounds over all ranks. It looks at no times, so that in a warm-up
        receives stand far ahead of what they are for: they hold buffers, and on a queue they hold
        up what stands behind them.

        ``"pytorch-deferred"``: the same with ``defer_pp_recv``: a receive moves right before what
        it is for, on the lower rank of two only up to its next send to the other. That is
        later than ``"just-in-time"``, which keeps no sender waiting: on one queue for each two
        ranks 1F1B locks up, and on a V a rank may receive in another order than it is sent to.

    Returns
    -------
    Schedule
        With receives in the order of the sends on every directed pair of ranks, and groups that
        cannot deadlock under rendezvous; :mod:`debubble.engine.transfers` has the proof. PyTorch's
        are as they are there: :func:`debubble.check` says whether they can run in a p2p mode.

    Raises
    ------
    ScheduleError
        When the schedule has transfers already, or cannot run.
    ParameterError
        When there is no such policy.

    Examples
    --------
    >>> import debubble as db
    >>> from debubble.lowering.transfers import add_transfers
    >>> lowered = add_transfers(db.make("1f1b", ranks=2, microbatches=2), policy="just-in-time")
    >>> for row in lowered.rows():
    ...     print(" ".join(row))
    0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
    1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1
    """
    if policy not in TRANSFER_POLICIES:
        raise ParameterError(
            f"policy '{policy}' for receives; {did_you_mean(policy, TRANSFER_POLICIES)}"
        )
    if policy == "pytorch" or policy == "pytorch-deferred":
        refuse_transfers(schedule)
        if schedule.carries:
            raise ParameterError(
                f"policy '{policy}' places no carries, which PyTorch's runtime does not have; "
                "use 'eager', 'just-in-time' or 'queued'"
            )
        return pytorch_transfers(schedule, deferred=policy == "pytorch-deferred")
    return insert_transfers(schedule, policy)


def pytorch_transfers(schedule: Schedule, *, deferred: bool) -> Schedule:
    """Return the schedule with the transfers of ``torch.distributed.pipelining``.

    Collectives take part in the rounds, as in PyTorch; a schedule without is placed as if it had
    those of fully sharded stages, which PyTorch always writes and leaves out later. With `deferred`
    receives move right before what they are for, as with ``defer_pp_recv``.
    """
    compile_programs(schedule, "overlapped")
    if has(schedule, SHARDING_KINDS):
        return _placed(schedule, deferred)
    begin, end = group_bounds(schedule.actions)
    widest = int((end - begin).max(initial=1))
    sharded = add_sharding(schedule, mode="fsdp", max_active=max(MAX_ACTIVE, widest))
    placed = _placed(sharded, deferred)
    return without(placed, among(kinds_of(placed.actions), SHARDING_KINDS))


def _placed(schedule: Schedule, deferred: bool) -> Schedule:
    actions, ranks, count = schedule.actions, schedule.ranks, len(schedule)
    home, consumer, transfers = consumers_of(schedule)
    senders = np.flatnonzero(consumer >= 0)
    producer = np.full(count, -1, dtype=np.int32)
    producer[consumer[senders]] = senders
    ends = np.concatenate([home[senders], home[consumer[senders]]])
    offsets = schedule.offsets + np.append(0, np.cumsum(np.bincount(ends, minlength=ranks)))
    lowered = np.zeros(count + 2 * transfers, dtype=np.int64)
    origin, peer = (np.zeros(len(lowered), dtype=np.int32) for _ in range(2))
    complete = write_pytorch_order.run(
        4 * count, actions, schedule.offsets, home, consumer, producer,
        schedule.offsets[:-1].copy(), np.zeros(count, dtype=np.int8), offsets[:-1].copy(),
        lowered, origin, peer,
    )  # fmt: skip
    assert complete, "an order that can run locks up"
    if deferred:
        moved = np.zeros_like(lowered)
        defer_receives.run(
            4 * count, lowered, offsets, origin, peer, np.zeros(count, dtype=np.int32),
            np.zeros(len(lowered), dtype=np.int32), moved,
        )  # fmt: skip
        lowered = moved
    return replace(schedule, actions=lowered, offsets=offsets)
