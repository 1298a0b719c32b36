"""Times of messages: their delays, and their waits for other messages.

A trace has the time at which the target received a message. If the target waited for it, that is
its arrival. If the target was busy, the arrival is unknown. Then the message is assumed to take the
typical time of its link, but to arrive before its action began.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.diagnosis.observed import Indices, Times
from debubble.diagnosis.run import Run

QUICK = 0.1
"""Quantile of the messages of a link that is the time of a message without a queue."""

CLOSE, MOSTLY = 0.3, 0.7
"""Maximum distance of equal times, as a share of a transfer, and minimum share of all delay that a
systematic pattern explains."""

LATE = 2.0
"""Minimum ratio of a held-up message's time to the typical one of its link."""


@dataclass(frozen=True, eq=False)
class MessageTimes:
    """Delays of a run's messages, in seconds."""

    delay: Times
    """Time from the production to the arrival of each action's input, shape ``(rows, actions)``; 0
    without an input."""
    seen: NDArray[np.bool_]
    """Mask of measured delays, shape ``(rows, actions)``."""
    reported: NDArray[np.bool_]
    """Mask of messages with a receive time in the trace, measured delay or not."""
    typical: Times
    """Median time of every directed link, ``typical[source * ranks + target]``; NaN for unused
    links."""
    by_copy: Times
    """Median time of every link of every copy, shape ``(copies, ranks * ranks)``."""
    quickest: Times
    """Time of the quickest messages of every directed link, indexed like `typical`."""
    behind: Times
    """Part of `delay` spent in the queue of another message."""
    held_up: NDArray[np.bool_]
    """Mask of messages that a busy receiver held up: their `delay` ends at the receive, and is not
    the transfer time."""

    def usual(self, run: Run) -> Times:
        """Return the typical time of each action's input link, 0 without an input."""
        return _of_links(run, self.by_copy)


def transfers_of(run: Run) -> MessageTimes:
    """Return the times of a run's messages; the run is on one clock."""
    receives = run.source >= 0
    made, busy_until = run.produced, np.fmax(run.before, run.began)
    there = np.fmin(run.arrived, run.waited)
    reported = ~np.isnan(there) & receives
    with np.errstate(invalid="ignore"):
        in_wait = reported & (there > busy_until + run.moment) & (made >= busy_until - run.moment)
    delay = np.where(in_wait, np.maximum(there - made, 0.0), np.nan)
    sample = delay if reported.any() else _from_starts(run, busy_until)
    quickest = _typical(run, sample, QUICK)
    if reported.any():
        # With queues, most of the messages that a rank waits for may be held up.
        least = _of_links(run, quickest)
        queued = _behind(run, np.nan_to_num(sample), in_wait, least, there) > 0
        sample = np.where(queued, np.nan, sample)
    typical = _typical(run, sample, 0.5)
    usual = _of_links(run, typical)
    with np.errstate(invalid="ignore"):
        # A receive that is posted late begins its transfer late; one that is held up takes longer.
        held_up = (
            reported & ~in_wait & (there > busy_until + LATE * usual + run.moment) & (made < there)
        )
    delay = np.where(held_up, there - made, delay)
    if not reported.any():
        queued = _queued_by_starts(run, busy_until, _of_links(run, quickest))
        sample = np.where(queued, np.nan, sample)
        typical = _typical(run, sample, 0.5)
        usual = _of_links(run, typical)
        delay = np.where(queued, np.maximum(run.start - made, usual), np.nan)
    seen = ~np.isnan(delay)
    # A message arrives before its action begins, whatever the time of its link.
    with np.errstate(invalid="ignore"):
        latest = np.maximum(run.start - made, 0.0)
    delay = np.where(seen, delay, np.fmin(usual, latest))
    delay = np.where(receives, delay, 0.0)
    if reported.any():
        behind = _behind(run, delay, seen, usual, there)
    else:
        behind = np.where(seen, delay - usual, 0.0)
    return MessageTimes(delay, seen, reported, np.median(typical, axis=0), typical,
                        quickest.min(axis=0), behind, held_up)  # fmt: skip


def _from_starts(run: Run, busy_until: Times) -> Times:
    """Return delays inferred from late starts, for a trace without messages."""
    with np.errstate(invalid="ignore"):
        waits = (run.start > busy_until + run.moment) & (run.produced >= busy_until - run.moment)
        late = run.issued > run.produced + run.moment
    return np.where(waits & ~late, np.maximum(run.start - run.produced, 0.0), np.nan)


def _queued_by_starts(run: Run, busy_until: Times, usual: Times) -> NDArray[np.bool_]:
    """Return a mask of messages in the queue of others, for a trace without messages.

    Such an action is late and begins one transfer after the arrival of another message at its
    sender, or of the previous message on its link. If most of the lateness does not fit that
    pattern, it has another reason and the mask is empty.
    """
    found = np.zeros(run.start.shape, dtype=bool)
    receives = np.flatnonzero(run.source >= 0)
    giver, taker = run.rank[run.source[receives]], run.rank[receives]
    with np.errstate(invalid="ignore"):
        due = np.fmax(busy_until, run.produced + usual)
        late = np.where(run.issued > run.produced + run.moment, 0.0, run.start - due)
        held = (late > LATE * usual + run.moment) & (run.source >= 0)
        # Without a wait, a message is assumed to arrive after its usual time.
        waited = run.start > busy_until + run.moment
    there = np.where(waited, run.start, run.produced + usual)
    for row in np.flatnonzero(held.any(axis=1)).tolist():
        made = run.produced[row, receives]
        came = _one_by_one(run.link[receives], made, there[row, receives], usual[row, receives])
        for at in np.flatnonzero(held[row]).tolist():
            source, target = run.rank[run.source[at]], run.rank[at]
            ahead = (taker == source) & (made > run.produced[row, at])
            ahead |= (giver == source) & (taker == target) & (made < run.produced[row, at])
            apart = np.abs(run.start[row, at] - usual[row, at] - came[ahead])
            found[row, at] = bool((apart < CLOSE * usual[row, at] + run.moment).any())
    explained = float(late[found].sum())
    if explained < MOSTLY * float(late[held].sum()):
        found[:] = False
    return found


def _one_by_one(links: Indices, made: Times, there: Times, usual: Times) -> Times:
    """Return the earliest arrivals of messages if none overtakes another on its link."""
    came = there.copy()
    for link in np.unique(links).tolist():
        mine = np.flatnonzero(links == link)
        mine = mine[np.argsort(made[mine])]
        each = np.arange(len(mine)) * usual[mine]
        came[mine] = np.maximum.accumulate(there[mine] - each) + each
    return came


def _typical(run: Run, sample: Times, share: float) -> Times:
    """Return a quantile of every link of every copy, shape ``(copies, ranks * ranks)``.

    A link without messages in a copy has the quantile of all copies, or else of all links.
    """
    ranks, copies = run.schedule.ranks, int(run.copy.max()) + 1
    typical = np.full((copies, ranks * ranks), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        overall = float(np.nanquantile(sample, share)) if sample.size else np.nan
        for link in np.unique(run.link[run.link >= 0]).tolist():
            mine = sample[:, run.link == link]
            every = np.nanquantile(mine, share)
            for copy in range(copies):
                here = mine[run.copy == copy]
                own = np.nanquantile(here, share) if here.size else np.nan
                known = (value for value in (own, every, overall, 0.0) if not np.isnan(value))
                typical[copy, link] = next(known)
    return typical


def _of_links(run: Run, typical: Times) -> Times:
    """Return the time of each action's input link in every row, 0 without an input."""
    return np.where(run.link >= 0, typical[run.copy[:, None], run.link[None, :]], 0.0)


def _behind(run: Run, delay: Times, seen: NDArray[np.bool_], usual: Times, there: Times) -> Times:
    """Return the time that held-up messages waited for earlier ones in a queue.

    Each rank has one queue. A receive posted before the message is sent, or before its own receive,
    holds it up until the data of that receive arrives. So does a message sent earlier.
    """
    behind = np.zeros_like(delay)
    late = seen & (delay > LATE * usual + run.moment) & (run.source >= 0)
    others = np.flatnonzero(run.source >= 0)
    giver, taker = run.rank[run.source[others]], run.rank[others]
    for row in np.flatnonzero(late.any(axis=1)).tolist():
        made, posted, arrived = (
            values[row, others] for values in (run.produced, run.posted, there)
        )
        left = np.fmax(run.sent[row, others], made)
        for at in np.flatnonzero(late[row]).tolist():
            source, target = run.rank[run.source[at]], run.rank[at]
            ready, was_there = float(run.produced[row, at]), float(there[row, at])
            sent = np.fmax(ready, run.sent[row, at])
            with np.errstate(invalid="ignore"):
                ahead = (taker == source) & (posted < sent)
                ahead |= (taker == target) & (posted < run.posted[row, at])
                ahead |= (giver == source) & (taker != target) & (left < sent)
                # Its data was produced later, and may have arrived with this message.
                ahead &= (made > ready) & (made + usual[row, others] <= was_there + run.moment)
                ahead &= arrived > ready + usual[row, at]
            if ahead.any():
                until = min(float(arrived[ahead].max()), was_there)
                behind[row, at] = min(max(until - ready, 0.0), delay[row, at] - usual[row, at])
    return behind
