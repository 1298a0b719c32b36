"""Clocks of ranks against each other, from what causes what.

A message cannot arrive before it left. With o(r) for what rank r's clock shows at true time 0, a
message from a to b that left at d (a's clock) and had arrived by t (b's clock) says
o(b) − o(a) ≤ t − d. All messages of a step together are difference constraints, whose shortest
paths are the tightest bounds: an interval of o(b) − o(a) for every pair. A cycle of negative length
is a contradiction, and its messages are named.

Where all bounds hold at 0 on ranks that should share a clock, they are left alone. Else a rank's
clock is corrected by the mean of its two bounds against rank 0, which fulfils every constraint;
where a rank has no file, each part of the pipeline by those against the first rank of the part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import unpack
from debubble.diagnosis.run import Run, Times

ROUNDING = 2e-6
"""Seconds by which written times may be off."""


@dataclass(frozen=True)
class Interval:
    """What clock b shows more than clock a, in seconds.

    Parameters
    ----------
    ranks
        Both ranks; those of later data-parallel copies are numbered on.
    low, high
        Bounds; ±∞ where messages go one way only.
    step
        Number of the step.
    """

    ranks: tuple[int, int]
    low: float
    high: float
    step: int


@dataclass(frozen=True)
class Drift:
    """How two clocks run apart, as a line through all intervals; in seconds per second."""

    ranks: tuple[int, int]
    rate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Clocks:
    """What is known of the clocks of a run.

    Parameters
    ----------
    intervals
        Of every pair of ranks that exchange messages, in every step.
    drifts
        Of the pairs whose intervals a line goes through, over three steps at least.
    offsets
        What to subtract from every rank's times, shape ``(rows, ranks)``.
    warnings
        Contradictions, and pairs of which messages go one way only.
    """

    intervals: tuple[Interval, ...]
    drifts: tuple[Drift, ...]
    offsets: Times
    warnings: tuple[str, ...]

    @property
    def half_width(self) -> float:
        """Median of half the widths of finite intervals; NaN when there is none."""
        widths = [one.high - one.low for one in self.intervals]
        finite = [width for width in widths if np.isfinite(width)]
        return float(np.median(finite)) / 2 if finite else float("nan")


def align(run: Run) -> Clocks:
    """Find what the clocks of a run show, and what to correct."""
    ranks = run.schedule.ranks
    direct, columns = _direct(run)
    bounds, broken = _closed(direct)
    offsets = np.zeros((run.rows, ranks))
    for row in range(run.rows):
        if not broken[row]:
            offsets[row] = _offsets(direct[row], bounds[row], _hosts_of(run, row))
    warnings = [_contradiction(run, row, direct[row], columns[row])
                for row in np.flatnonzero(broken).tolist()]  # fmt: skip
    pairs = _pairs(run)
    intervals = []
    one_way = set()
    for row in range(run.rows):
        base = int(run.copy[row]) * ranks
        for a, b in pairs:
            if not (run.known[row, run.rank == a].any() and run.known[row, run.rank == b].any()):
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
    return Clocks(tuple(intervals), tuple(_drifts(run, intervals)), offsets, tuple(warnings))


def _hosts_of(run: Run, row: int) -> tuple[str, ...]:
    base = int(run.copy[row]) * run.schedule.ranks
    return run.hosts[base : base + run.schedule.ranks]


def _pairs(run: Run) -> list[tuple[int, int]]:
    """Pairs of ranks that exchange messages."""
    links = np.unique(run.link[run.link >= 0]).tolist()
    ends = (divmod(link, run.schedule.ranks) for link in links)
    return sorted({(min(pair), max(pair)) for pair in ends})


def _direct(run: Run) -> tuple[Times, NDArray[np.int64]]:
    """The bound that messages from a to b give, and the action that receives the tightest.

    Both of shape ``(rows, ranks, ranks)``; ∞ and −1 where there is no message.
    """
    ranks, rows = run.schedule.ranks, run.rows
    left = np.fmax(run.produced, run.sent)
    there = np.fmin(run.start, np.fmin(run.arrived, run.waited))
    slack = np.where(np.isnan(there - left), np.inf, there - left)
    direct = np.full((rows, ranks, ranks), np.inf)
    columns = np.full((rows, ranks, ranks), -1)
    for link in np.unique(run.link[run.link >= 0]).tolist():
        here = np.flatnonzero(run.link == link)
        tightest = slack[:, here].argmin(axis=1)
        source, target = divmod(link, ranks)
        direct[:, source, target] = slack[np.arange(rows), here[tightest]] + ROUNDING
        columns[:, source, target] = here[tightest]
    direct[:, np.arange(ranks), np.arange(ranks)] = 0
    return direct, columns


def _closed(direct: Times) -> tuple[Times, NDArray[np.bool_]]:
    """Shortest paths between all ranks, and the rows in which a cycle is negative."""
    bounds = direct.copy()
    for via in range(bounds.shape[1]):
        np.minimum(bounds, bounds[:, :, via, None] + bounds[:, None, via, :], out=bounds)
    broken = np.diagonal(bounds, axis1=1, axis2=2).min(axis=1) < 0
    return bounds, broken


def _offsets(direct: Times, bounds: Times, hosts: tuple[str, ...]) -> Times:
    """What each rank's clock shows more than the first one's, 0 where that may well be."""
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
            # What is bounded on one side, or not at all, keeps its clock as far as it may.
            kept = np.clip(0.0, -bounds[first, 0], bounds[0, first])
            found[together] = kept + (bounds[first, together] - bounds[together, first]) / 2
    return found


def _contradiction(run: Run, row: int, direct: Times, columns: NDArray[np.int64]) -> str:
    """The messages of a shortest cycle that cannot be, in words."""
    cycle = _negative_cycle(direct)
    parts = []
    for source, target in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        at = int(columns[source, target])
        sent = unpack(int(run.schedule.actions[run.source[at]]))
        parts.append(f"{run.schedule.text(sent)} from rank {source} to rank {target}")
    length = sum(direct[a, b] for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    copy = f" of copy {run.copy[row]}" if run.copy.max() else ""
    return (
        f"step {run.steps[int(run.step[row])]}{copy}: {' and '.join(parts)} contradict each other "
        f"by {-length * 1e3:.3g} ms: no clocks show such times"
    )


def _negative_cycle(direct: Times) -> list[int]:
    """Ranks of a negative cycle: two where two suffice."""
    both = direct + direct.T
    a, b = np.unravel_index(int(both.argmin()), both.shape)
    if both[a, b] < 0:
        return [int(a), int(b)]
    ranks = len(direct)
    far, came = np.zeros(ranks), np.full(ranks, -1)
    last = -1
    for _ in range(ranks + 1):
        last = -1
        through = far[:, None] + direct
        best = through.argmin(axis=0)
        better = through[best, np.arange(ranks)] < far - 1e-12
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


def _drifts(run: Run, intervals: list[Interval]) -> list[Drift]:
    """Lines through the intervals of every pair, over the times of their steps."""
    steps, _ = run.step_of
    middle = {run.steps[int(s)]: float((run.begin + run.length / 2)[run.step == s].mean())
              for s in steps}  # fmt: skip
    by_pair: dict[tuple[int, int], list[Interval]] = {}
    for one in intervals:
        by_pair.setdefault(one.ranks, []).append(one)
    found = []
    for pair, several in by_pair.items():
        if len(several) < 3 or not all(np.isfinite([(o.low, o.high) for o in several]).ravel()):
            continue
        time = np.array([middle[one.step] for one in several])
        low, high = (np.array([getattr(o, end) for o in several]) for end in ("low", "high"))
        apart = time[None, :] - time[:, None]
        later = apart > 0
        # Between any two times the line rises at least as much, and at most as much, as these say.
        least = ((low[None, :] - high[:, None])[later] / apart[later]).max(initial=-np.inf)
        most = ((high[None, :] - low[:, None])[later] / apart[later]).min(initial=np.inf)
        if least <= most and np.isfinite(least + most):
            found.append(Drift(pair, (least + most) / 2, float(least), float(most)))
    return found
