"""Clock offsets between ranks, from the causality of messages.

A message cannot arrive before it left: with o(r) the reading of rank r's clock at true time 0, a
message from a that left at d and had arrived at b by t gives o(b) − o(a) ≤ t − d. Shortest paths
over these constraints of a step are the tightest bounds of every pair. A cycle of negative length
is a contradiction, and its messages are named.

Clocks of ranks that should share one stay unchanged if all bounds hold at 0. Else a rank's clock is
corrected by the mean of its two bounds against the first rank it is connected with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import unpack
from debubble.diagnosis.observed import Times
from debubble.diagnosis.run import Run

ROUNDING = 2e-4
"""Maximum rounding error of written times, as a share of a typical action."""

DUST = 1e-9
"""Numerical error of bounds, as a share of the largest bound."""


@dataclass(frozen=True)
class Interval:
    """Bounds of the offset of clock b from clock a, in seconds."""

    ranks: tuple[int, int]
    """Both ranks; numbers continue through the data-parallel copies."""
    low: float
    high: float
    """Upper bound; a bound without messages in its direction is ±∞."""
    step: int
    """Number of the step."""


@dataclass(frozen=True)
class Drift:
    """Drift of clock b against clock a, in seconds per second, with its bounds."""

    ranks: tuple[int, int]
    rate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Clocks:
    """Offsets and drifts of the clocks of a run.

    If clocks drift visibly within one step, intervals are those at its beginning.
    """

    intervals: tuple[Interval, ...]
    """Intervals of every pair of ranks that exchange messages, in every step."""
    drifts: tuple[Drift, ...]
    """Drifts of pairs on different hosts whose messages all fit one line."""
    offsets: Times
    """Offsets in seconds to subtract from every rank's times, shape ``(rows, ranks)``."""
    rates: Times
    """Drifts to subtract, in seconds per second of a step, shape ``(rows, ranks)``."""
    warnings: tuple[str, ...]
    """Messages on contradictions, and on pairs with messages in one direction only."""

    @property
    def half_width(self) -> float:
        """Median of half the widths of finite intervals; NaN when there is none."""
        widths = [one.high - one.low for one in self.intervals]
        finite = [width for width in widths if np.isfinite(width)]
        return float(np.median(finite)) / 2 if finite else float("nan")


def align(run: Run) -> Clocks:
    """Return the offsets and drifts of the clocks of a run."""
    ranks = run.schedule.ranks
    rates = np.zeros((run.rows, ranks))
    direct, columns = _direct(run)
    bounds, broken = _closed(direct)
    drifts = tuple(_drifts(run))
    if broken.any() and drifts:
        # Clocks that run apart seem to contradict themselves in a long step.
        likely = _rates(run, drifts)
        straight = _direct(run.moved(np.zeros((run.rows, ranks)), likely))
        closed = _closed(straight[0])
        if closed[1].sum() < broken.sum():
            rates, (direct, columns), (bounds, broken) = likely, straight, closed
    offsets = np.zeros((run.rows, ranks))
    for row in range(run.rows):
        if not broken[row]:
            base = int(run.copy[row]) * ranks
            offsets[row] = _offsets(direct[row], bounds[row], run.hosts[base : base + ranks])
    warnings = [_contradiction(run, row, direct[row], columns[row])
                for row in np.flatnonzero(broken).tolist()]  # fmt: skip
    intervals = []
    one_way = set()
    for row in range(run.rows):
        base = int(run.copy[row]) * ranks
        for a, b in run.pairs:
            if not run.traced[row, [a, b]].all():
                continue
            ends = (direct if broken[row] else bounds)[row]
            low, high = -float(ends[b, a]), float(ends[a, b])
            if np.isinf(low) or np.isinf(high):
                one_way.add((a, b))
            step = run.steps[int(run.step[row])]
            intervals.append(Interval((base + a, base + b), low, high, step))
    warnings += [
        f"clocks of ranks {a} and {b}: bounded on one side only, that needs messages both ways"
        for a, b in sorted(one_way)
    ]
    return Clocks(tuple(intervals), drifts, offsets, rates, tuple(warnings))


def _rates(run: Run, drifts: tuple[Drift, ...]) -> Times:
    """Return the drift of every rank's clock against the first one's, shape ``(rows, ranks)``.

    It is the smallest drift that the bounds allow, so that no correction goes beyond the data.
    """
    ranks = run.schedule.ranks
    by_pair = {one.ranks: float(np.clip(one.rate, one.low, one.high)) for one in drifts}
    rates = np.zeros((run.rows, ranks))
    for copy in np.unique(run.copy).tolist():
        known = {0: 0.0}
        for _ in range(ranks):
            for a, b in run.pairs:
                rate = by_pair.get((copy * ranks + a, copy * ranks + b), 0.0)
                if a in known:
                    known.setdefault(b, known[a] + rate)
                elif b in known:
                    known.setdefault(a, known[b] - rate)
        rates[run.copy == copy] = [known.get(rank, 0.0) for rank in range(ranks)]
    return rates


PARTS = 8
"""Number of parts of a step; each has its tightest messages in both directions."""

MOST_STEPS = 50
"""Maximum number of steps to search for drifting clocks."""


def _drifts(run: Run) -> Iterator[Drift]:
    """Yield the drift of all pairs of clocks, from messages of all steps or within single steps."""
    left, slack = _slack(run)
    ranks = run.schedule.ranks
    for copy in np.unique(run.copy).tolist():
        rows = np.flatnonzero(run.copy == copy)
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, MOST_STEPS).astype(int))]
        hosts = run.hosts[copy * ranks : (copy + 1) * ranks]
        for a, b in run.pairs:
            if hosts[a] == hosts[b]:
                continue
            # All times are on the clock of a, where messages to b leave and those from b arrive.
            rounding = ROUNDING * run.typical
            upper = _tightest(rows, left, slack, run.link == a * ranks + b, rounding)
            lower = _tightest(rows, left + slack, slack, run.link == b * ranks + a, rounding)
            low, high = _slopes(upper, lower, together=True)
            if low > high:
                # These clocks start anew in every step.
                low, high = _slopes(upper, lower, together=False)
            if low <= high and np.isfinite(low) and np.isfinite(high):
                together = high - low < NARROW
                rate = (low + high) / 2 if together else float(np.clip(0.0, low, high))
                yield Drift((copy * ranks + a, copy * ranks + b), rate, low, high)


NARROW = 1e-4
"""Maximum width of a drift's bounds, in seconds per second, for which their mean is used."""


def _tightest(
    rows: NDArray[np.int64], time: Times, slack: Times, columns: NDArray[np.bool_], rounding: float
) -> tuple[Times, Times, NDArray[np.int64]]:
    """Return the time, slack and row of the tightest message in every part of every row."""
    here = np.flatnonzero(columns)
    found = []
    for row in rows.tolist():
        times, slacks = time[row, here], slack[row, here]
        real = np.isfinite(slacks)
        times, slacks = times[real], slacks[real]
        if not len(times):
            continue
        part = PARTS * (times - times.min()) // max(float(np.ptp(times)), 1e-30)
        for number in np.unique(part):
            at = np.flatnonzero(part == number)
            best = at[slacks[at].argmin()]
            found.append((times[best], slacks[best] + rounding, row))
    table = np.array(found).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2].astype(np.int64)


Bounds = tuple[Times, Times, NDArray[np.int64]]


def _slopes(upper: Bounds, lower: Bounds, *, together: bool) -> tuple[float, float]:
    """Return the least and the steepest line below the upper and above the lower bounds.

    They are one line for all rows, or a parallel one for each row.
    """
    (t, u, row), (s, slack, other) = upper, lower
    apart = t[:, None] - s[None, :]
    room = u[:, None] + slack[None, :]
    counts = np.ones_like(apart, dtype=bool) if together else row[:, None] == other[None, :]
    later, sooner = counts & (apart > 0), counts & (apart < 0)
    low = (room[sooner] / apart[sooner]).max(initial=-np.inf)
    high = (room[later] / apart[later]).min(initial=np.inf)
    return float(low), float(high)


def _slack(run: Run) -> tuple[Times, Times]:
    """Return the send time of each received message, and its time until arrival, or ∞."""
    left = np.fmax(run.produced, run.sent)
    there = np.fmin(run.needed, np.fmin(run.arrived, run.waited))
    return left, np.where(np.isnan(there - left), np.inf, there - left)


def _direct(run: Run) -> tuple[Times, NDArray[np.int64]]:
    """Return the bound that messages from a to b give, and the action that receives the tightest.

    Both have shape ``(rows, ranks, ranks)``; without a message they are ∞ and −1.
    """
    ranks, rows = run.schedule.ranks, run.rows
    _, slack = _slack(run)
    direct = np.full((rows, ranks, ranks), np.inf)
    columns = np.full((rows, ranks, ranks), -1)
    for link in run.links:
        here = np.flatnonzero(run.link == link)
        tightest = slack[:, here].argmin(axis=1)
        source, target = divmod(link, ranks)
        direct[:, source, target] = slack[np.arange(rows), here[tightest]] + ROUNDING * run.typical
        columns[:, source, target] = here[tightest]
    direct[:, np.arange(ranks), np.arange(ranks)] = 0
    return direct, columns


def _closed(direct: Times) -> tuple[Times, NDArray[np.bool_]]:
    """Return shortest paths between all ranks, and a mask of rows with a negative cycle."""
    bounds = direct.copy()
    for via in range(bounds.shape[1]):
        np.minimum(bounds, bounds[:, :, via, None] + bounds[:, None, via, :], out=bounds)
    broken = np.diagonal(bounds, axis1=1, axis2=2).min(axis=1) < 0
    return bounds, broken


def _offsets(direct: Times, bounds: Times, hosts: tuple[str, ...]) -> Times:
    """Return the offset of each rank's clock from the first one's, 0 if the bounds allow that."""
    groups = [hosts.index(host) for host in hosts]
    if len(set(groups)) < len(groups):
        merged = direct.copy()
        alike = np.equal.outer(groups, groups)
        merged[alike] = np.minimum(merged[alike], 0.0)
        closed, broken = _closed(merged[None])
        if not broken[0]:
            bounds = closed[0]
    if len(set(groups)) == 1 and (direct >= 0).all():
        return np.zeros(len(direct))
    found = np.zeros(len(bounds))
    bounded = np.isfinite(bounds) & np.isfinite(bounds.T)
    for first in range(len(bounds)):
        together = np.flatnonzero(bounded[first])
        if together[0] == first:
            # A clock with one bound, or none, changes as little as the bound allows.
            kept = np.clip(0.0, -bounds[first, 0], bounds[0, first])
            found[together] = kept + (bounds[first, together] - bounds[together, first]) / 2
    return found


def _contradiction(run: Run, row: int, direct: Times, columns: NDArray[np.int64]) -> str:
    """Return the messages of a shortest contradictory cycle, in words."""
    cycle = _negative_cycle(direct)
    links = list(pairwise([*cycle, cycle[0]]))
    parts = []
    for source, target in links:
        at = int(columns[source, target])
        sent = unpack(int(run.schedule.actions[run.source[at]]))
        parts.append(f"{run.schedule.text(sent)} from rank {source} to rank {target}")
    length = sum(direct[link] for link in links)
    copy = f" of copy {run.copy[row]}" if run.copies > 1 else ""
    return (
        f"step {run.steps[int(run.step[row])]}{copy}: {' and '.join(parts)} contradict each other "
        f"by {-length * 1e3:.3g} ms: no clocks show such times"
    )


def _negative_cycle(direct: Times) -> list[int]:
    """Return the ranks of a negative cycle, only two if two suffice."""
    both = direct + direct.T
    a, b = np.unravel_index(int(both.argmin()), both.shape)
    if both[a, b] < 0:
        return [int(a), int(b)]
    ranks = len(direct)
    far, came = np.zeros(ranks), np.full(ranks, -1)
    dust = DUST * np.abs(direct[np.isfinite(direct)]).max()
    last = -1
    for _ in range(ranks + 1):
        last = -1
        through = far[:, None] + direct
        best = through.argmin(axis=0)
        better = through[best, np.arange(ranks)] < far - dust
        far = np.where(better, through[best, np.arange(ranks)], far)
        came = np.where(better, best, came)
        if better.any():
            last = int(np.flatnonzero(better)[0])
    for _ in range(ranks):
        last = int(came[last])
    cycle = [last]
    while int(came[cycle[-1]]) != last:
        cycle.append(int(came[cycle[-1]]))
    return cycle[::-1]
