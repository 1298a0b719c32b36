"""Buffers that a rank receives activations and gradients in, and how many can be live at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import among, group_bounds, kinds_of, microbatches_of, stages_of
from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS, KINDS, WEIGHT_KINDS
from debubble.core.schedule import Schedule

RECEIVES = tuple(spec.kind for spec in KINDS if spec.receives)
ENDS = tuple({*GRADIENT_KINDS, *WEIGHT_KINDS})

DENSE = 4
"""A table of all (stage, microbatch) is made while it has at most this many entries per action."""


def receive_slots(schedule: Schedule) -> dict[str, NDArray[np.int64]]:
    """Return slots of receive buffers in a schedule whose transfers are actions.

    A buffer is taken when its receive is posted and free again after the last backward that uses
    what came: an activation is the input that its stage keeps for the backward, a gradient goes to
    the backward, and where that is split both are kept for W. So the number depends on where
    receives stand, and not on the number of microbatches once there are enough of them.

    By what shares a pool: ``by_stage``, a pool of each stage for activations and one for gradients,
    summed over the rank's stages, and ``by_direction``, one for all activations of a rank and one
    for all gradients, both of shape ``(ranks, 2)``; ``shared``, one for both, ``(ranks, 1)``.

    Slots of one pool have the same size, which a model has whose boundaries are all alike. PyTorch
    pools by stage and direction; what the other ways save was measured on its pull request 196465.

    Examples
    --------
    >>> import debubble as db
    >>> from debubble.lowering.transfers import add_transfers
    >>> slots = receive_slots(add_transfers(db.make("1f1b", ranks=4, microbatches=8)))
    >>> slots["by_direction"].tolist()
    [[0, 1], [4, 1], [3, 1], [2, 0]]
    """
    actions, ranks = schedule.actions, schedule.ranks
    kinds, stages = kinds_of(actions), stages_of(actions)
    home = schedule.ranks_of_actions
    received = np.flatnonzero(np.isin(kinds, RECEIVES))
    received = received[stages[received] < schedule.stages]
    freed = _last_use(schedule, received)
    gradient = ~np.isin(kinds[received], FORWARD_KINDS)
    rank, stage = home[received], stages[received]
    width = int(stage.max(initial=0)) + 1
    pools = (rank * width + stage) * 2 + gradient

    def summed(pool: NDArray[np.int64], row: NDArray[np.int64], columns: int) -> NDArray[np.int64]:
        found, most = _most_live(received, freed, pool)
        owner = np.zeros(int(pool.max(initial=0)) + 1, dtype=np.int64)
        owner[pool] = row
        slots = np.bincount(owner[found], weights=most, minlength=columns * ranks)
        return slots.astype(np.int64).reshape(ranks, columns)

    place = 2 * rank + gradient
    return {
        "by_stage": summed(pools, place, 2),
        "by_direction": summed(place, place, 2),
        "shared": summed(rank, rank, 1),
    }


def _last_use(schedule: Schedule, received: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position after which each receive's buffer is free; the end if it is unused."""
    actions, units = schedule.actions, schedule.units
    cells = stages_of(actions) * units + microbatches_of(actions)
    width = schedule.stages * units
    if width > DENSE * len(actions):
        cells = np.unique(cells, return_inverse=True)[1]
        width = len(actions)
    # A file may name stages and microbatches that do not exist; checks report them.
    real = (stages_of(actions) < schedule.stages) & (microbatches_of(actions) < units)
    uses = np.flatnonzero(among(kinds_of(actions), ENDS) & real)
    last = np.full(width, len(actions), dtype=np.int64)
    # Of several uses the last one stays.
    last[cells[uses]] = group_bounds(actions)[1][uses]
    return np.where(real[received], last[cells[received] * real[received]], len(actions))


def _most_live(
    begin: NDArray[np.int64], end: NDArray[np.int64], pool: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pools and the most intervals of each that overlap; ends come before begins."""
    position = np.concatenate([end, begin])
    change = np.repeat([-1, 1], len(begin))
    owner = np.concatenate([pool, pool])
    order = np.lexsort((change, position, owner))
    live = np.cumsum(change[order])
    found, first = np.unique(owner[order], return_index=True)
    if not len(found):
        return found, found
    return found, np.maximum.reduceat(live, first)
