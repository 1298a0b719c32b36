"""Sends and receives where PyTorch's own lowering puts them, receives early or deferred."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import SHARDING_KINDS, among, group_bounds, kinds_of
from debubble.core.schedule import Schedule
from debubble.engine.compile import compile_programs
from debubble.engine.kernels.pytorch_order import defer_receives, write_pytorch_order
from debubble.engine.transfers import consumers_of, without
from debubble.engine.validate import has
from debubble.lowering.sharding import MAX_ACTIVE, add_sharding


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
    offsets = schedule.offsets + _before(np.bincount(ends, minlength=ranks))
    lowered = np.zeros(count + 2 * transfers, dtype=np.int64)
    origin, peer = (np.zeros(len(lowered), dtype=np.int32) for _ in range(2))
    complete = write_pytorch_order.run(
        4 * count,
        actions,
        schedule.offsets,
        home,
        consumer,
        producer,
        schedule.offsets[:-1].copy(),
        np.zeros(count, dtype=np.int8),
        offsets[:-1].copy(),
        lowered,
        origin,
        peer,
    )
    assert complete, "an order that can run locks up"
    if deferred:
        moved = np.zeros_like(lowered)
        defer_receives.run(
            4 * count,
            lowered,
            offsets,
            origin,
            peer,
            np.zeros(count, dtype=np.int32),
            np.zeros(len(lowered), dtype=np.int32),
            moved,
        )
        lowered = moved
    return replace(schedule, actions=lowered, offsets=offsets)


def _before(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of entries before each of some parts, and their number."""
    return np.concatenate([[0], np.cumsum(counts)])
