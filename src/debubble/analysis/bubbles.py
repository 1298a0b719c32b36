"""Why ranks are idle: every gap of a timeline, split by cause.

A rank that has not begun is *filling*, one that is done for good is *draining*. In between it waits
for the input of its next action: for *data* until another rank has computed it, then for *p2p*
until it has arrived. In blocking mode a rank also waits while it sends and receives, which is p2p.
An optimizer step waits for data, too: for the gradients, or the norm, of other ranks.

An order that was made under a memory limit waits for another reason, too: the rank's next forward
could have run, its input was there, but holding one more activation would have gone over the limit,
so the order puts it behind what frees memory. From the time that input arrived the gap counts as
*memory*: with more of it, another order could have used the gap. A rank that runs a fixed order,
such as 1F1B's, never waits for memory, however little there is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    Kind,
    begins_group,
    computes,
    group_bounds,
    kinds_of,
    microbatches_of,
    pairs_of,
    stages_of,
)
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline

CAUSES = ("fill", "drain", "data", "p2p", "memory")
"""What ranks are idle for, in the order of their codes."""

FILL, DRAIN, DATA, P2P, MEMORY = range(len(CAUSES))

ROUNDING = 1e-12
"""Gaps below this share of the makespan are rounding."""


@dataclass(frozen=True, eq=False)
class Bubbles:
    """Every time a rank is idle.

    Parameters
    ----------
    rank, start, end, cause
        One entry per idle time, rank by rank in order of time; causes are indices into
        :data:`CAUSES`.
    before
        Position in the schedule of the action the idle time ends with, −1 for drains.
    totals
        Idle time by rank and cause, shape ``(ranks, len(CAUSES))``.
    """

    rank: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    cause: NDArray[np.int64]
    before: NDArray[np.int64]
    totals: NDArray[np.float64]


def bubbles(timeline: Timeline) -> Bubbles:
    """Find every idle time of a timeline, and why it is one.

    Parameters
    ----------
    timeline
        A simulated schedule. Only one whose order was made under a memory limit (see
        :func:`memory_limit`) has idle time for lack of memory.

    Examples
    --------
    >>> import debubble as db
    >>> found = bubbles(db.simulate(db.make("1f1b", ranks=2, microbatches=2), db.Costs(F=1, B=2)))
    >>> [CAUSES[code] for code in found.cause], found.totals.sum(axis=0).tolist()
    (['data', 'data', 'fill', 'drain'], [1.0, 2.0, 3.0, 0.0, 0.0])
    """
    schedule = timeline.schedule
    busy = np.flatnonzero(computes(kinds_of(schedule.actions)) & begins_group(schedule.actions))
    rank = np.searchsorted(schedule.offsets, busy, side="right") - 1
    opening = np.diff(rank, prepend=-1) > 0
    begin, end = timeline.start[busy], timeline.end[busy]
    free = np.where(opening, 0.0, np.concatenate([[0.0], end])[: len(busy)])
    computed = np.clip(_computed(timeline)[busy], free, begin)
    if timeline.late is not None:
        # Forwards that could have started sooner wait no longer for a transfer than it takes.
        needs = inputs_of(schedule)[busy]
        source = np.searchsorted(schedule.offsets, needs, side="right") - 1
        journey = np.where(needs < 0, 0.0, timeline.table.link[source, rank])
        computed = np.clip(np.maximum(computed, begin - journey), free, begin)

    cause = np.where(opening, FILL, DATA)
    parts = [(rank, free, np.where(opening, begin, computed), cause, busy)]
    parts.append((rank, np.where(opening, begin, computed), begin, np.full(len(busy), P2P), busy))
    limits = memory_limit(schedule)
    if limits is not None:
        parts[0], held_up = _split_memory(timeline, parts[0], limits)
        parts.append(held_up)
    last = np.flatnonzero(np.diff(rank, append=schedule.ranks) > 0)
    idle = np.flatnonzero(np.bincount(rank, minlength=schedule.ranks) == 0)
    ends = np.concatenate([end[last], np.zeros(len(idle))])
    owners = np.concatenate([rank[last], idle])
    full = np.full(len(owners), timeline.makespan)
    parts.append((owners, ends, full, np.full(len(owners), DRAIN), np.full(len(owners), -1)))
    return _collected(timeline, parts)


def memory_limit(schedule: Schedule) -> NDArray[np.float64] | None:
    """Memory of every rank that the order was made for, shape ``(ranks,)``; None without a limit.

    Orders that look at memory remember the limit among their options; others ignore it.
    """
    limit = schedule.options.get("memory")
    try:
        limits = np.asarray(limit, dtype=np.float64)
        return None if limit is None else np.broadcast_to(limits, schedule.ranks)
    except (TypeError, ValueError):
        # An option of somebody's own that has this name.
        return None


_Part = tuple[
    NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64],
    NDArray[np.int64],
]  # fmt: skip


def _collected(timeline: Timeline, parts: list[_Part]) -> Bubbles:
    """The parts in order of rank and time, without the empty ones."""
    kept = []
    for part in parts:
        real = np.flatnonzero(part[2] - part[1] > ROUNDING * timeline.makespan)
        kept.append([column[real] for column in part])
    columns = [np.concatenate(column) for column in zip(*kept, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    rank, start, end, cause, before = (column[order] for column in columns)
    ranks = timeline.schedule.ranks
    totals = np.zeros((ranks, len(CAUSES)))
    np.add.at(totals, (rank, cause), end - start)
    return Bubbles(rank, start, end, cause, before, totals)


def inputs_of(schedule: Schedule) -> NDArray[np.int64]:
    """Position of the action whose result each action needs, −1 for none; shape ``(n,)``.

    A forward needs the stage before, a backward for the input the stage behind (on the last stage,
    its own forward), and a backward for the weights its own backward for the input.
    """
    actions, stages = schedule.actions, schedule.stages
    kind, stage, unit = kinds_of(actions), stages_of(actions), microbatches_of(actions)
    forward = np.flatnonzero(kind == Kind.F)
    backward = np.flatnonzero((kind == Kind.I) | (kind == Kind.B))
    weights = np.flatnonzero(kind == Kind.W)
    wide = stages + 1
    where_f = np.full(wide * schedule.units, -1)
    where_b = np.full(wide * schedule.units, -1)
    # Shifted by one stage, so that the first stage's forward finds nothing before it.
    where_f[unit[forward] * wide + stage[forward] + 1] = forward
    where_b[unit[backward] * wide + stage[backward]] = backward
    found = np.full(len(actions), -1)
    found[forward] = where_f[unit[forward] * wide + stage[forward]]
    last = stage[backward] == stages - 1
    found[backward] = np.where(
        last,
        where_f[unit[backward] * wide + stage[backward] + 1],
        where_b[unit[backward] * wide + stage[backward] + 1],
    )
    found[weights] = where_b[unit[weights] * wide + stage[weights]]
    return found


def _computed(timeline: Timeline) -> NDArray[np.float64]:
    """When what every action waits for was computed, also for the other half of its pair.

    An action that needs nothing from another rank has nothing on its way: all of its wait is for
    data, except in blocking mode, where it is for the transfers before it.
    """
    schedule = timeline.schedule
    needs = inputs_of(schedule)
    ranks = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets))
    remote = (needs >= 0) & (ranks[needs] != ranks)
    local = np.where(kinds_of(schedule.actions) == Kind.OPT, np.inf, -np.inf)
    if timeline.mode != "blocking":
        local[:] = np.inf
    computed = np.where(remote, timeline.end[needs], local)
    members = np.flatnonzero(pairs_of(schedule.actions))
    if len(members):
        # The member whose input arrives last decides; an input of the same rank has no journey.
        arrival = np.where(remote, timeline.end[needs] + timeline.table.link[ranks[needs], ranks],
                           -np.inf)  # fmt: skip
        begin = group_bounds(schedule.actions)[0][members]
        order = np.lexsort((members, -arrival[members], begin))
        first, last_to_come = np.unique(begin[order], return_index=True)
        computed[first] = computed[members[order][last_to_come]]
    return computed


def _split_memory(
    timeline: Timeline, part: _Part, limits: NDArray[np.float64]
) -> tuple[_Part, _Part]:
    """Cut from waits for data the time in which the next forward only lacked memory."""
    schedule = timeline.schedule
    rank, start, end, cause, before = part
    actions = schedule.actions
    needs = inputs_of(schedule)
    home = np.repeat(np.arange(schedule.ranks), np.diff(schedule.offsets))
    source = timeline.end[needs] + timeline.table.link[home[needs], home]
    ready = np.where(needs >= 0, source, 0.0)

    # The next forward of the rank at or behind every position.
    count = len(actions)
    forward = np.where(kinds_of(actions) == Kind.F, np.arange(count), count)
    following = np.minimum.accumulate(np.append(forward, count)[::-1])[::-1][before]
    real = following < count
    following = np.where(real, following, 0)
    real &= (home[following] == rank) & (following != before) & (cause == DATA)

    held = np.zeros(count)
    taken = np.zeros(count)
    for number in range(schedule.ranks):
        span = slice(int(schedule.offsets[number]), int(schedule.offsets[number + 1]))
        added, freed = timeline.memory.deltas(schedule, number)
        taken[span] = added
        held[span] = np.cumsum(added + freed) - (added + freed)
    over = held[before] + taken[following] > limits[rank] * (1 + 1e-9)
    # A forward that waits behind this very gap has its input at the latest when it starts.
    blocked = real & over & (ready[following] < end)
    since = np.where(blocked, np.clip(ready[following], start, end), end)
    return (
        (rank, start, since, cause, before),
        (rank, since, end, np.full(len(rank), MEMORY), before),
    )
