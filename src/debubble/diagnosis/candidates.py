"""Possible causes of a slow run, with the predicted times of the run without each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from debubble.core.schedule import Schedule
from debubble.diagnosis.causes import find_faults
from debubble.diagnosis.observed import Times
from debubble.diagnosis.p2p_modes import OVERLAPPED, FittedMode
from debubble.diagnosis.replay import Replay
from debubble.diagnosis.run import Run
from debubble.diagnosis.slowdown import Slowdown

SLOW_LINK = 2.0
"""Minimum ratio of a slow link's time to the median of the other links."""

Where = dict[str, int | list[int]]


@dataclass(frozen=True, eq=False)
class Cause:
    """One cause of lost time, and the time of every row without it."""

    cause: str
    where: Where
    """Stage, rank, copy or link of the cause."""
    without: Times
    """Time of every row in seconds with only this cause fixed, shape ``(rows,)``."""
    alone: Times
    """Time of every row in seconds with all other causes fixed, shape ``(rows,)``."""
    size: float
    """Ratio of the times with the cause to those without; NaN if it has no meaning."""
    by_kind: dict[str, float] = field(default_factory=dict)
    """Ratio as in `size`, by kind of action."""
    count: int = 0
    """Number of affected actions if they are few; else 0."""
    mode: FittedMode | None = None
    """P2p mode that causes the loss; None for any other cause."""


@dataclass(frozen=True, eq=False)
class Causes:
    """Causes of a run, and its times without them."""

    found: tuple[Cause, ...]
    """All causes found, with any gain."""
    clean: Times
    """Time of every row in seconds with all causes fixed, shape ``(rows,)``."""
    excess: dict[str, Times]
    """Excess time of actions by cause, shape ``(rows, actions)``; not negative."""
    slow_link: Times
    """Excess time of messages on slow links, shape ``(rows, actions)``."""


def find_causes(replay: Replay, nearest: Schedule | None) -> Causes:
    """Find every cause, and replay the run without it.

    `nearest` is the schedule that the run follows except for some actions, if there is one.
    """
    run, transfers = replay.run, replay.transfers
    times, messages = replay.times + replay.gaps, transfers.in_flight
    faults = find_faults(run, replay.times, replay.gaps, replay.shares)
    slow = list(_slow_links(replay))
    slow_link = np.sum([one[1] for one in slow], axis=0) if slow else np.zeros_like(messages)
    # A slow link does not explain the time in the queue of another message.
    behind = transfers.behind
    slow_link = np.minimum(slow_link, np.maximum(messages - behind, 0.0))
    inside = sum((fault.excess + fault.late for fault in faults), np.zeros_like(times))
    clean_times, clean_messages = times - inside, messages - slow_link - behind

    def lengths(times: Times, messages: Times) -> Times:
        return replay.lengths(np.maximum(times, 0.0), np.maximum(messages, 0.0))

    clean = lengths(clean_times, clean_messages)
    found = []

    def add(
        cause: str, where: Where, work: Times | float, flight: Times | float,
        size: float = np.nan, **more: Any,
    ) -> None:  # fmt: skip
        """Add a cause by the excess of actions and of messages."""
        without = lengths(times - work, messages - flight)
        alone = lengths(clean_times + work, clean_messages + flight)
        found.append(Cause(cause, where, without, alone, size, **more))

    for fault in faults:
        add(fault.cause, {**fault.where}, fault.excess + fault.late, 0.0, fault.size,
            by_kind=fault.by_kind, count=fault.count)  # fmt: skip
    for where, added, size in slow:
        add("slow-link", where, 0.0, added, size)
    if replay.mode.holds_up:
        cause = "head-of-line" if replay.mode.queued else "transfer"
        free = replay.lengths(times, messages, mode=OVERLAPPED)
        found.append(Cause(cause, {}, free, clean, np.nan, mode=replay.mode))
    if behind.any():
        add("head-of-line", _most_behind(run, behind), 0.0, behind)
    rest = np.maximum(messages - slow_link - behind, 0.0)
    if rest.any():
        add("transfer", {}, 0.0, rest)
    if nearest is not None:
        without = replay.reordered(times, messages, nearest)
        found.append(Cause("order", {}, without, clean, np.nan))
    excess: dict[str, Times] = {}
    for fault in faults:
        excess[fault.cause] = excess.get(fault.cause, 0.0) + np.maximum(fault.excess, 0.0)
    return Causes(tuple(found), clean, excess, slow_link)


def _slow_links(replay: Replay) -> Iterator[tuple[Where, Times, float]]:
    """Yield pairs of ranks with slower messages than other pairs or copies have.

    A link is slow if even its quickest messages are: others may have waited for something else.
    """
    run, by_copy, messages = replay.run, replay.transfers.quickest, replay.transfers.in_flight
    ranks = run.schedule.ranks
    pairs: dict[tuple[int, int], list[int]] = {}
    for link in run.links:
        source, target = divmod(link, ranks)
        pairs.setdefault((min(source, target), max(source, target)), []).append(link)
    if not pairs:
        return
    # Both directions together: clocks may have shifted time from one to the other.
    means = np.stack([by_copy[:, links].mean(axis=1) for links in pairs.values()], axis=1)
    for place, (pair, links) in enumerate(pairs.items()):
        others = np.delete(means, place, axis=1)
        slow = []
        for copy in range(len(means)):
            like = others if others.size else np.delete(means[:, place], copy)
            usual = float(np.median(like)) if like.size else np.inf
            if means[copy, place] > SLOW_LINK * usual + run.moment:
                slow.append((copy, usual))
        everywhere = len(slow) == len(means)
        groups = [slow] if everywhere and slow else [[one] for one in slow]
        for group in groups:
            added = np.zeros_like(messages)
            for copy, usual in group:
                rows = np.flatnonzero(run.copy == copy)
                for link in links:
                    cells = np.ix_(rows, np.flatnonzero(run.link == link))
                    share = 1 - usual / float(means[copy, place])
                    added[cells] = messages[cells] * share
            where: Where = {"link": list(pair)}
            where |= {} if everywhere else {"copy": group[0][0]}
            size = means[group[0][0], place] / max(group[0][1], run.moment)
            yield where, added, float(size)


def _most_behind(run: Run, behind: Times) -> Where:
    """Return the link that loses most of the time, and its target rank."""
    lost = np.bincount(np.maximum(run.link, 0), behind.sum(axis=0))
    source, target = divmod(int(lost.argmax()), run.schedule.ranks)
    return {"link": [source, target]}


def saved_by_waits(replay: Replay, causes: Causes) -> dict[str, float]:
    """Return the time saved in a mean step without each cause that lies only in waits of ranks."""
    before = replay.run.slowest(replay.lengths())
    found: dict[str, float] = {}
    for one in causes.found:
        if one.cause == "order" or one.mode is not None:
            saved = float((before - replay.run.slowest(one.without)).mean())
            found[one.cause] = max(found.get(one.cause, 0.0), saved)
    return found


def worst_of_copies(causes: Causes, slowdown: Slowdown) -> dict[int, str]:
    """Return the cause that makes each copy slower than others: its own, or any other cause."""
    found = {}
    anywhere = [
        cause for cause in ("sequence-length", "garbage-collection", "jitter")
        if cause in causes.excess
    ]  # fmt: skip
    for copy in range(len(slowdown.copy)):
        own = [one.cause for one in causes.found if one.where.get("copy") == copy]
        if own or anywhere:
            found[copy] = (own or anywhere)[0]
    return found
