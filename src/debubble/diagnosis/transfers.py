"""Times of messages: how long each is in flight once both its ends are ready.

A message leaves when its sender has made it and its receiver has posted the receive, as the p2p
mode of the run has it. What is before that is a wait of the schedule, and no time of the link. A
trace shows the end of a message only if its receiver waited for it. If the receiver was busy, the
message is taken to take as long as its link typically does, but to be over before its action
began.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from debubble.diagnosis.cancellation import check_cancelled
from debubble.diagnosis.head_of_line import LATE, behind_others, queued_by_starts
from debubble.diagnosis.observed import Indices, Times
from debubble.diagnosis.p2p_modes import (
    FITTED_MODES,
    OVERLAPPED,
    FittedMode,
    MessageRules,
    rendezvous,
    rules_of,
)
from debubble.diagnosis.run import Run
from debubble.diagnosis.walk import walk_of

QUICK = 0.1
"""Quantile of the messages of a link that is the time of its quickest ones."""

CLEARLY, ROUNDING = 0.7, 1e-3
"""Maximum ratio of a clearly better mode's distance to that of an earlier one, and minimum
reduction of that distance as a share of a typical action."""

MOST_ROWS = 8
"""Maximum number of rows for the comparison of modes."""

MOST_ROUNDS = 32
"""Maximum number of messages of a queue that hold up each other one after the other."""


@dataclass(frozen=True, eq=False)
class MessageTimes:
    """Times of a run's messages in seconds, by the action that receives each.

    Times of single messages have the shape ``(rows, actions)``.
    """

    mode: FittedMode
    """P2p mode that explains the starts of actions best."""
    off: float
    """Mean distance of starts from that mode, as a share of a typical action."""
    left: Times
    """Time at which both ends were ready; NaN without an input."""
    in_flight: Times
    """Time from there until the message was over; 0 without an input."""
    seen: NDArray[np.bool_]
    """Mask of measured messages."""
    reported: NDArray[np.bool_]
    """Mask of messages with a receive time in the trace, measured or not."""
    held: Times
    """Time until which an action waits for messages that its rank does not need yet; −∞ if for
    none."""
    held_by: Indices
    """Other rank of the last of those messages, −1 for none."""
    by_copy: Times
    """Median time of every link of every copy, shape ``(copies, ranks * ranks)``."""
    quickest: Times
    """Time of the quickest messages of every link of every copy, of the same shape."""
    behind: Times
    """Part of `in_flight` spent in the queue of another message."""

    @property
    def over(self) -> Times:
        """Time at which each message was over; NaN without an input."""
        return self.left + self.in_flight

    @cached_property
    def typical(self) -> Times:
        """Median time of every directed link, ``[source * ranks + target]``; NaN if unused."""
        return np.asarray(np.median(self.by_copy, axis=0))

    def usual(self, run: Run) -> Times:
        """Return the typical time of each action's input link, 0 without an input."""
        return _of_links(run, self.by_copy)


def transfers_of(run: Run) -> MessageTimes:
    """Return the times of a run's messages; the run is on one clock."""
    some = np.zeros(run.rows, dtype=bool)
    some[np.unique(np.linspace(0, run.rows - 1, MOST_ROWS).astype(int))] = True
    sample = run.taken(some) if run.rows > MOST_ROWS else run
    modes = list(FITTED_MODES[1:])
    if _reported(run).any():
        # Without messages in the trace, only a late host and not a mode explains such waits.
        modes.insert(0, _meeting(sample))
    best = _fit(sample, OVERLAPPED)
    assert best is not None, "every run fits without waits for receivers"
    for mode in modes:
        check_cancelled()
        if best.off <= ROUNDING:
            break
        fit = _fit(sample, mode)
        if fit is not None and _clearly_better(fit, best):
            best = fit
    found = best if sample is run else _fit(run, best.mode)
    assert found is not None, "every run fits without waits for receivers"
    return found.times()


def _clearly_better(fit: _Fit, best: _Fit) -> bool:
    """Return whether a mode explains the starts better that both modes say something about."""
    some = ~np.isnan(fit.apart) & ~np.isnan(best.apart) & fit.run.counted
    least = best.off_on(some)
    return fit.off_on(some) < min(least * CLEARLY, least - ROUNDING)


def _meeting(run: Run) -> FittedMode:
    """Return the mode in which messages need their receivers, on all links but those of buffers."""
    free, meeting = _fit(run, OVERLAPPED), _fit(run, rendezvous())
    assert free is not None
    assert meeting is not None
    buffered = [
        link for link in run.links
        if free.off_on(run.link == link) < CLEARLY * meeting.off_on(run.link == link)
    ]  # fmt: skip
    return rendezvous(frozenset(buffered))


def _reported(run: Run) -> NDArray[np.bool_]:
    there = np.fmin(run.arrived, run.waited)
    reported: NDArray[np.bool_] = ~np.isnan(there) & (run.source >= 0)
    return reported


@dataclass(eq=False)
class _Fit:
    """A run in a p2p mode; times as in :class:`MessageTimes`."""

    run: Run
    mode: FittedMode
    parts: list[tuple[Indices, MessageRules]]
    """Rows of every order, and the rules of its messages by columns of the run."""

    def __post_init__(self) -> None:
        run = self.run
        self.receives = run.source >= 0
        self.reported = _reported(run)
        told = self.reported.any()
        self.there = np.fmin(run.arrived, run.waited) if told else run.needed
        # Without both ends, nobody knows when a message left.
        self.unknown = self.receives & (np.isnan(run.produced) | ~run.known)
        self.base = run.produced.copy()
        self.buffered = np.ones_like(self.receives)
        self.behind_unknown = np.zeros_like(self.unknown)
        self.free0 = np.fmax(np.fmax(run.before, run.inside), run.began)
        for rows, rules in self.parts:
            at = np.flatnonzero(rules.posted >= 0)
            self.buffered[at] = False
            cells = np.ix_(rows, at)
            self.base[cells] = np.fmax(self.base[cells], run.end[np.ix_(rows, rules.posted[at])])
            for ahead in rules.ahead:
                at = np.flatnonzero(ahead >= 0)
                self.behind_unknown[np.ix_(rows, at)] |= self.unknown[np.ix_(rows, ahead[at])]
        self.base = np.where(self.unknown, np.nan, self.base)
        with np.errstate(invalid="ignore"):
            late = run.issued > self.base + run.moment
        self.told = self.reported if told else ~late & self.receives
        self.told = self.told & ~self.unknown & ~self.behind_unknown
        self.exact = told
        self._solve()

    def _solve(self) -> None:
        """Set when messages left and were over, and until when ranks wait for them."""
        run = self.run
        usual = np.zeros_like(run.start)
        self.held = np.full_like(run.start, -np.inf)
        self.left = self.base
        for rounds in range(MOST_ROUNDS):
            with np.errstate(invalid="ignore"):
                self.seen = self.told & (self.there > self.free0 + run.moment)
                if rounds:
                    # It was there long before; the receiver was late to take it.
                    waited = self.free0 > self.left + LATE * usual + run.moment
                    self.seen &= ~(waited & self.buffered)
                if not self.exact:
                    # Else the host may have been late, or another message is over last.
                    free = np.fmax(self.free0, self._waits(self.left)[1])
                    self.seen &= self.left >= free - run.moment
                self.in_flight = np.where(self.seen, self.there - self.left, np.nan)
                self.in_flight = np.maximum(self.in_flight, 0.0)
            if rounds < 3:
                self.by_copy = typical_of(run, self.in_flight, 0.5)
                usual = _of_links(run, self.by_copy)
            over = np.fmin(self.left + usual, np.fmax(run.needed, self.left))
            over = np.where(self.seen, np.fmax(self.there, self.left), over)
            over = np.where(self.unknown, np.nan, over)
            left, held = self._waits(over)
            if rounds > 2 and np.array_equal(left, self.left, equal_nan=True):
                break
            self.left, self.held = left, held

    def _waits(self, over: Times) -> tuple[Times, Times]:
        """Return when messages left, and until when actions wait for others, from their ends."""
        left, held = self.base.copy(), np.full_like(over, -np.inf)
        for rows, rules in self.parts:
            for ahead in rules.ahead:
                at = np.flatnonzero(ahead >= 0)
                cells = np.ix_(rows, at)
                left[cells] = np.fmax(left[cells], over[np.ix_(rows, ahead[at])])
            for waiting in (rules.held, rules.taken):
                at = np.flatnonzero(waiting >= 0)
                if not len(at):
                    continue
                at = at[np.argsort(waiting[at], kind="stable")]
                begins = np.flatnonzero(np.diff(waiting[at], prepend=-1))
                last = np.fmax.reduceat(over[np.ix_(rows, at)], begins, axis=1)
                cells = np.ix_(rows, waiting[at[begins]])
                held[cells] = np.fmax(held[cells], last)
        left = np.where(self.unknown, np.nan, left)
        return left, self.run.in_groups(held, np.fmax)

    @property
    def off(self) -> float:
        """Mean distance of starts from the mode, as a share of a typical action."""
        return self.off_on(self.run.counted)

    def off_on(self, some: NDArray[np.bool_]) -> float:
        """Return the mean distance of the starts of some actions, as a share of a typical one."""
        run = self.run
        apart = self.apart[:, some] if some.ndim == 1 else self.apart[some]
        apart = apart[~np.isnan(apart)]
        return float(apart.mean()) / run.typical if run.typical and apart.size else 0.0

    @cached_property
    def apart(self) -> Times:
        """Distance of every start from the mode, or of the input's arrival, in seconds.

        A host that is late after an arrival says nothing about the mode, nor does an action that
        waits for a message of a rank without a file: NaN.
        """
        run = self.run
        with np.errstate(invalid="ignore"):
            over = self.left + _of_links(run, self.by_copy)
            there = np.where(self.receives, over - run.lead, -np.inf)
            there = run.in_groups(there, np.fmax)
            free = np.fmax(run.before, self.held)
            starts = np.abs(run.start - np.fmax(np.fmax(free, there), run.begin[:, None]))
            busy = np.fmax(run.before, run.inside)
            arrivals = np.abs(np.fmax(self.there, busy) - np.fmax(np.fmax(free, run.inside), over))
        return np.where(self.vague, np.nan, np.where(self.reported, arrivals, starts))

    @property
    def vague(self) -> NDArray[np.bool_]:
        """Mask of actions that wait for messages of ranks without a file."""
        found = self.unknown | self.behind_unknown
        for rows, rules in self.parts:
            for waiting in (rules.held, rules.taken):
                at = np.flatnonzero(waiting >= 0)
                lost = self.unknown[np.ix_(rows, at)]
                for action in np.unique(waiting[at[lost.any(axis=0)]]).tolist():
                    found[rows, action] |= lost[:, waiting[at] == action].any(axis=1)
        return self.run.in_groups(found, np.logical_or)

    def times(self) -> MessageTimes:
        """Return the times of messages."""
        run = self.run
        usual = _of_links(run, self.by_copy)
        behind = np.zeros_like(usual)
        if not self.mode.queued:
            quickest = _of_links(run, typical_of(run, self.in_flight, QUICK))
            if not self.exact:
                self.seen |= self.queued
                since = np.maximum(self.there - self.left, 0.0)
                self.in_flight = np.where(self.queued, since, self.in_flight)
                # Nobody knows why an action is far later than a message explains.
                self.seen &= self.queued | (self.in_flight <= LATE * usual + run.moment)
            behind = self._behind(np.nan_to_num(self.in_flight), quickest)
            plain = np.where(behind > 0, np.nan, self.in_flight)
            self.by_copy = typical_of(run, plain, 0.5)
            usual = _of_links(run, self.by_copy)
        with np.errstate(invalid="ignore"):
            # A message is over before its action needs it, whatever the time of its link.
            latest = np.maximum(run.needed - self.left, 0.0)
        in_flight = np.where(self.seen, self.in_flight, np.fmin(usual, latest))
        in_flight = np.where(self.receives, in_flight, 0.0)
        if behind.any():
            behind = self._behind(in_flight, usual)
        # An action began when it had not to wait any more.
        held = np.fmin(self.held, run.start)
        return MessageTimes(
            self.mode, self.off, np.where(self.receives, self.left, np.nan), in_flight, self.seen,
            self.reported, held, self._held_by(), self.by_copy,
            typical_of(run, np.where(self.seen, in_flight, np.nan), QUICK), behind,
        )  # fmt: skip

    def _behind(self, in_flight: Times, usual: Times) -> Times:
        """Return the part of messages' times that they are behind others."""
        run = self.run
        if self.exact:
            late = self.seen & (in_flight > LATE * usual + run.moment)
            return behind_others(run, late, self.left, self.there, in_flight, usual)
        return np.where(self.queued, np.maximum(in_flight - usual, 0.0), 0.0)

    @cached_property
    def queued(self) -> NDArray[np.bool_]:
        """Mask of messages behind others in a trace without messages."""
        run = self.run
        usual = _of_links(run, typical_of(run, self.in_flight, QUICK))
        due = np.where(self.told, np.fmax(self.free0, run.produced + usual), np.nan)
        waited = run.start > self.free0 + run.moment
        return queued_by_starts(run, due, np.where(waited, run.start, run.produced + usual), usual)

    def _held_by(self) -> Indices:
        """Return the other rank of the messages that hold up each action, −1 for none."""
        run = self.run
        found = np.full(len(run.rank), -1)
        for _, rules in self.parts:
            for waiting, other in ((rules.held, run.rank), (rules.taken, run.rank[run.source])):
                at = np.flatnonzero(waiting >= 0)
                found[waiting[at]] = other[at]
        return np.asarray(run.in_groups(found[None, :], np.maximum)[0])


def _fit(run: Run, mode: FittedMode) -> _Fit | None:
    """Return a run in a p2p mode; None if one of its orders cannot run in the mode."""
    parts = []
    for schedule, rows, column in run.by_order:
        rules = rules_of(mode, schedule)
        if rules is None or walk_of(schedule, mode) is None:
            return None
        parts.append((rows, rules.placed(column)))
    return _Fit(run, mode, parts)


def typical_of(run: Run, sample: Times, share: float) -> Times:
    """Return a quantile of every link of every copy, shape ``(copies, ranks * ranks)``.

    A link without messages in a copy has the quantile of all copies, or else of all links.
    """
    typical = np.full((run.copies, run.schedule.ranks**2), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        overall = float(np.nanquantile(sample, share)) if sample.size else np.nan
        for link in run.links:
            mine = sample[:, run.link == link]
            every = np.nanquantile(mine, share)
            for copy in range(run.copies):
                here = mine[run.copy == copy]
                own = np.nanquantile(here, share) if here.size else np.nan
                known = (value for value in (own, every, overall, 0.0) if not np.isnan(value))
                typical[copy, link] = next(known)
    return typical


def _of_links(run: Run, typical: Times) -> Times:
    """Return the time of each action's input link in every row, 0 without an input."""
    return np.where(run.link >= 0, typical[run.copy[:, None], run.link[None, :]], 0.0)
