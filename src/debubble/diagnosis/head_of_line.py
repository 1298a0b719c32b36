"""Messages that wait in the queue of others, by where and when those are over."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.diagnosis.observed import Indices, Times
from debubble.diagnosis.run import Run

LATE = 2.0
"""Minimum ratio of a held-up message's time to the typical one of its link."""

CLOSE, MOSTLY = 0.3, 0.7
"""Maximum distance of equal times, as a share of a transfer, and minimum share of all lateness that
a systematic pattern explains."""


def behind_others(
    run: Run, late: NDArray[np.bool_], left: Times, there: Times, in_flight: Times, usual: Times
) -> Times:
    """Return the part of `in_flight` that `late` messages waited for earlier ones in a queue.

    Each rank has one queue. A receive posted before the message is sent, or before its own receive,
    holds it up until the data of that receive arrives. So does a message sent earlier. All arrays
    have the shape ``(rows, actions)``; messages are ready at `left` and over at `there`, and take
    `usual` times on their links.
    """
    behind = np.zeros_like(in_flight)
    others = np.flatnonzero(run.source >= 0)
    giver, taker = run.rank[run.source[others]], run.rank[others]
    for row in np.flatnonzero(late.any(axis=1)).tolist():
        made, posted, arrived = (
            values[row, others] for values in (run.produced, run.posted, there)
        )
        sends = np.fmax(run.sent[row, others], made)
        for at in np.flatnonzero(late[row]).tolist():
            source, target = run.rank[run.source[at]], run.rank[at]
            ready, was_there = float(left[row, at]), float(there[row, at])
            sent = np.fmax(run.produced[row, at], run.sent[row, at])
            with np.errstate(invalid="ignore"):
                ahead = (taker == source) & (posted < sent)
                ahead |= (taker == target) & (posted < run.posted[row, at])
                ahead |= (giver == source) & (taker != target) & (sends < sent)
                # Its data was produced later, and may have arrived with this message.
                ahead &= (made > ready) & (made + usual[row, others] <= was_there + run.moment)
                ahead &= arrived > ready + usual[row, at]
            if ahead.any():
                until = min(float(arrived[ahead].max()), was_there)
                most = in_flight[row, at] - usual[row, at]
                behind[row, at] = min(max(until - ready, 0.0), most)
    return behind


def queued_by_starts(run: Run, due: Times, over: Times, usual: Times) -> NDArray[np.bool_]:
    """Return a mask of messages in the queue of others, for a trace without messages.

    The action of such a message begins late, and one transfer after the arrival of another message
    at its sender, or of the previous message on its link. Actions are `due` and messages `over` at
    these times; NaN for actions that have another reason. If most of the lateness does not fit that
    pattern, the mask is empty.
    """
    found = np.zeros(run.start.shape, dtype=bool)
    receives = np.flatnonzero(run.source >= 0)
    giver, taker = run.rank[run.source[receives]], run.rank[receives]
    with np.errstate(invalid="ignore"):
        late = np.where(run.source >= 0, run.start - due, 0.0)
        held = late > LATE * usual + run.moment
    for row in np.flatnonzero(held.any(axis=1)).tolist():
        made = run.produced[row, receives]
        came = _one_by_one(run.link[receives], made, over[row, receives], usual[row, receives])
        for at in np.flatnonzero(held[row]).tolist():
            source, target = run.rank[run.source[at]], run.rank[at]
            ahead = (taker == source) & (made > run.produced[row, at])
            ahead |= (giver == source) & (taker == target) & (made < run.produced[row, at])
            apart = np.abs(run.start[row, at] - usual[row, at] - came[ahead])
            found[row, at] = bool((apart < CLOSE * usual[row, at] + run.moment).any())
    if late[found].sum() < MOSTLY * late[held].sum():
        found[:] = False
    return found


def _one_by_one(links: Indices, made: Times, over: Times, usual: Times) -> Times:
    """Return the earliest arrivals of messages if none overtakes another on its link."""
    came = over.copy()
    for link in np.unique(links).tolist():
        mine = np.flatnonzero(links == link)
        mine = mine[np.argsort(made[mine])]
        each = np.arange(len(mine)) * usual[mine]
        came[mine] = np.maximum.accumulate(over[mine] - each) + each
    return came
