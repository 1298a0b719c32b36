"""Times of messages: until the data was there, and their wait for other messages.

What a trace shows of a message is when the rank that receives it had it. Where the rank waited for
it, that is when it arrived; where the rank was busy, its arrival was not seen, and it is taken to have
taken as long as messages on its link typically do, but was there when its action began.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.diagnosis.observed import Indices, Times
from debubble.diagnosis.run import Run

QUICK = 0.1
"""Share of the messages of a link that are at least as quick as those that nothing holds up."""

CLOSE, MOSTLY = 0.3, 0.7
"""Two times are one if they are closer than this share of a transfer; and a pattern is no chance if
it explains this share of all delay."""

LATE = 2.0
"""A message that takes more than so many times what its link typically takes was held up."""


@dataclass(frozen=True, eq=False)
class MessageTimes:
    """The messages of a run."""

    delay: Times
    """From when what an action receives was computed to when it was there, shape ``(rows,
    actions)``; 0 for actions that receive nothing."""
    seen: NDArray[np.bool_]
    """Whether that was measured."""
    told: NDArray[np.bool_]
    """Whether the trace says when a message was there, seen or not."""
    typical: Times
    """Median of every directed link, ``typical[source * ranks + target]``; NaN for links that
    nothing goes over."""
    by_copy: Times
    """Times of messages of every copy, shape ``(copies, ranks * ranks)``."""
    quickest: Times
    """Times of the quickest messages of every directed link, in the same way."""
    behind: Times
    """Part of `delay` in which it was queued behind another message."""
    held_up: NDArray[np.bool_]
    """Whether it was there long after it was made because its receiver was busy, so that `delay`
    says when it was received and not how long it was under way."""

    def usual(self, run: Run) -> Times:
        """Return typical time of the link of every action, 0 where it receives nothing."""
        return _of_links(run, self.by_copy)


def transfers_of(run: Run) -> MessageTimes:
    """Find how long the messages of a run took, on one clock."""
    receives = run.source >= 0
    made, busy_until = run.produced, np.fmax(run.before, run.began)
    there = np.fmin(run.arrived, run.waited)
    told = ~np.isnan(there) & receives
    with np.errstate(invalid="ignore"):
        in_wait = told & (there > busy_until + run.moment) & (made >= busy_until - run.moment)
    delay = np.where(in_wait, np.maximum(there - made, 0.0), np.nan)
    sample = delay if told.any() else _from_starts(run, busy_until)
    quickest = _typical(run, sample, QUICK)
    if told.any():
        # Where messages are queued, most of those that somebody waits for may be held up.
        least = _of_links(run, quickest)
        queued = _behind(run, np.nan_to_num(sample), in_wait, least, there) > 0
        sample = np.where(queued, np.nan, sample)
    typical = _typical(run, sample, 0.5)
    usual = _of_links(run, typical)
    with np.errstate(invalid="ignore"):
        # A receive that is posted late begins its transfer late; one that is held up takes longer.
        held_up = (
            told & ~in_wait & (there > busy_until + LATE * usual + run.moment) & (made < there)
        )
    delay = np.where(held_up, there - made, delay)
    if not told.any():
        queued = _queued_by_starts(run, busy_until, _of_links(run, quickest))
        sample = np.where(queued, np.nan, sample)
        typical = _typical(run, sample, 0.5)
        usual = _of_links(run, typical)
        delay = np.where(queued, np.maximum(run.start - made, usual), np.nan)
    seen = ~np.isnan(delay)
    # Whatever its link takes, it was there when its action began.
    with np.errstate(invalid="ignore"):
        latest = np.maximum(run.start - made, 0.0)
    delay = np.where(seen, delay, np.fmin(usual, latest))
    delay = np.where(receives, delay, 0.0)
    if told.any():
        behind = _behind(run, delay, seen, usual, there)
    else:
        behind = np.where(seen, delay - usual, 0.0)
    return MessageTimes(
        delay,
        seen,
        told,
        np.median(typical, axis=0),
        typical,
        quickest.min(axis=0),
        behind,
        held_up,
    )


def _from_starts(run: Run, busy_until: Times) -> Times:
    """Return delays by which actions began late, for a trace without messages."""
    with np.errstate(invalid="ignore"):
        waits = (run.start > busy_until + run.moment) & (run.produced >= busy_until - run.moment)
        late = run.issued > run.produced + run.moment
    return np.where(waits & ~late, np.maximum(run.start - run.produced, 0.0), np.nan)


def _queued_by_starts(run: Run, busy_until: Times, usual: Times) -> NDArray[np.bool_]:
    """Return times that messages queued for others, for a trace without messages.

    An action that was to begin sooner, and begins just one transfer after another message came to
    its sender, or after the message before it came the same way. If most of what actions are late
    is not like that, it has another reason, and none of it is taken for this.
    """
    found = np.zeros(run.start.shape, dtype=bool)
    receives = np.flatnonzero(run.source >= 0)
    giver, taker = run.rank[run.source[receives]], run.rank[receives]
    with np.errstate(invalid="ignore"):
        due = np.fmax(busy_until, run.produced + usual)
        late = np.where(run.issued > run.produced + run.moment, 0.0, run.start - due)
        held = (late > LATE * usual + run.moment) & (run.source >= 0)
        # Where nobody waited, a message was there when it usually is.
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

    Of all copies for a link that is not known in one, of all links for one known in none.
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
    """Return times of links for every action of every row, 0 where it receives nothing."""
    return np.where(run.link >= 0, typical[run.copy[:, None], run.link[None, :]], 0.0)


def _behind(run: Run, delay: Times, seen: NDArray[np.bool_], usual: Times, there: Times) -> Times:
    """Return the time that held-up messages waited for those in front of them in a queue.

    A queue is a rank's: a receive that was posted before the message was sent, or before it was to
    be received, holds it up until its own data is there; and so does a message sent before.
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
                # Its data was made later, and may have been there when this message was.
                ahead &= (made > ready) & (made + usual[row, others] <= was_there + run.moment)
                ahead &= arrived > ready + usual[row, at]
            if ahead.any():
                until = min(float(arrived[ahead].max()), was_there)
                behind[row, at] = min(max(until - ready, 0.0), delay[row, at] - usual[row, at])
    return behind
