"""Idle time by cause: every gap of a timeline, split into parts.

A rank that has not begun is *filling*, one that is done for good is *draining*. In between it waits
for what its next action needs: for *data* until all of it has been computed, then for *p2p* until
it has arrived. So data is what would be left if transfers took no time; copies of activations back
from the host and gathered weights are data, too. In blocking mode a rank also waits while it sends
and receives, which is p2p. An optimizer step waits for the gradients, or the norm, of other ranks.

A schedule that was made under a memory limit waits for another reason, too: the rank's next forward
could have run, its input was there, but holding one more activation would have gone over the limit,
so the schedule puts it after what frees memory. From the time that input arrived the gap counts as
*memory*: with more of it, another schedule could have used the gap. A rank with a fixed order,
such as 1F1B's, never waits for memory, however little there is. Where a rank waits for an offload
to be over, for the memory that it gives back, the gap is *memory*, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    among,
    begins_group,
    group_bounds,
    kinds_of,
    microbatches_of,
    stages_of,
)
from debubble.core.kind_relations import ACTIVATION_KINDS
from debubble.core.kinds import IN_TURN_KINDS, KINDS, WAIT_KINDS
from debubble.core.schedule import Schedule
from debubble.core.waits import primary_of, waits_for
from debubble.engine.timeline import Timeline

CAUSES = ("fill", "drain", "data", "p2p", "memory")
"""Causes of idle time, in the order of their codes."""

FILL, DRAIN, DATA, P2P, MEMORY = range(len(CAUSES))

Positions = NDArray[np.int64]

_RECEIVES = np.array([spec.receives for spec in KINDS])

ROUNDING = 1e-12
"""Gaps below this share of the makespan are rounding."""


@dataclass(frozen=True, eq=False)
class Bubbles:
    """Every time a rank is idle: one entry each, rank by rank in order of time."""

    rank: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    cause: NDArray[np.int64]
    """Indices into :data:`CAUSES`."""
    before: NDArray[np.int64]
    """Position in the schedule of the action the idle time ends with, −1 for drains."""
    totals: NDArray[np.float64]
    """Idle time by rank and cause, shape ``(ranks, len(CAUSES))``."""


def bubbles(timeline: Timeline) -> Bubbles:
    """Find every idle time of a timeline, and why it is one.

    Only a schedule that was made under a memory limit (see :func:`memory_limit`) has idle time for
    lack of memory.

    Examples
    --------
    >>> import debubble as db
    >>> found = bubbles(db.simulate(db.make("1f1b", ranks=2, microbatches=2), db.Costs(F=1, B=2)))
    >>> [CAUSES[code] for code in found.cause], found.totals.sum(axis=0).tolist()
    (['data', 'data', 'fill', 'drain'], [1.0, 2.0, 3.0, 0.0, 0.0])
    """
    schedule = timeline.schedule
    kinds = kinds_of(schedule.actions)
    busy = np.flatnonzero(among(kinds, IN_TURN_KINDS) & begins_group(schedule.actions))
    rank = np.searchsorted(schedule.offsets, busy, side="right") - 1
    opening = np.diff(rank, prepend=-1) > 0
    begin, end = timeline.start[busy], timeline.end[busy]
    free = np.where(opening, 0.0, np.concatenate([[0.0], end])[: len(busy)])
    computed = np.where(opening, begin, free)
    gaps = np.flatnonzero(~opening & (begin - free > ROUNDING * timeline.makespan))
    known = _computed(timeline, busy[gaps], rank[gaps])
    computed[gaps] = np.clip(known, free[gaps], begin[gaps])

    cause = np.where(opening, FILL, np.where(among(kinds[busy], WAIT_KINDS), MEMORY, DATA))
    parts = [(rank, free, computed, cause, busy)]
    parts.append((rank, computed, begin, np.full(len(busy), P2P), busy))
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
    """Return the memory limits that a schedule was made for, shape ``(ranks,)``, or None.

    Schedules made for a limit have it among their options; others ignore it.
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
    """Return the parts in order of rank and time, without the empty ones."""
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


def _computed(timeline: Timeline, before: Positions, rank: Positions) -> NDArray[np.float64]:
    """Return the time at which the last input of each action was computed; shape of `before`.

    An action waits with the other half of its pair: what either needs holds up both. One that needs
    nothing of another rank has nothing on its way: all of its wait is for data, except in blocking
    mode, where it is for the transfers before it.
    """
    schedule = timeline.schedule
    last = group_bounds(schedule.actions)[1][before] - 1
    of, producer, consumer = _needs(schedule, before, last)
    # What a receive brings was computed when what was sent was.
    primary = primary_of(schedule)
    arrives = _RECEIVES[kinds_of(schedule.actions[producer])]
    sent = primary[producer]
    source = np.where(arrives & (sent >= 0), primary[sent], producer)
    home = np.searchsorted(schedule.offsets, source, side="right") - 1
    far = home != rank[of]
    computed = _largest(timeline.end[source], of, len(before))
    if timeline.late is not None:
        # Actions that could have started sooner wait no longer for a transfer than it takes.
        journey = _largest(_journeys(timeline, source, consumer), of, len(before))
        computed = np.maximum(computed, timeline.start[before] - np.maximum(journey, 0.0))
    if timeline.mode != "blocking":
        computed[np.bincount(of[far], minlength=len(before)) == 0] = np.inf
    return computed


def _needs(
    schedule: Schedule, first: Positions, last: Positions
) -> tuple[Positions, Positions, Positions]:
    """Return what actions in ranges `first` … `last` need: index of range, producer, consumer."""
    waits = waits_for(schedule)
    begin, end = waits.offsets[first], waits.offsets[last + 1]
    of = np.repeat(np.arange(len(first)), end - begin)
    inside = np.arange(len(of)) - np.repeat(np.cumsum(end - begin) - (end - begin), end - begin)
    some = begin[of] + inside
    return of, waits.producer[some], waits.consumer[some]


def _journeys(timeline: Timeline, source: Positions, target: Positions) -> NDArray[np.float64]:
    """Return the time that each result of a source takes to the rank of a target that needs it."""
    schedule, homes = timeline.schedule, timeline.schedule.ranks_of_actions
    actions = schedule.actions[source]
    unit = schedule.microbatch_of(microbatches_of(actions))
    kinds, places = kinds_of(actions), schedule.places_of(actions)
    times = timeline.table.transfers(homes[source], homes[target], unit, kinds, places)
    if not schedule.carries:
        return times
    goals = schedule.places_of(schedule.actions[target])
    stages = [stages_of(schedule.actions[some]) for some in (source, target)]
    carried = np.zeros(len(source), dtype=bool)
    for pair in schedule.carries:
        carried |= (stages[0] == pair[0]) & (stages[1] == pair[1])
        carried |= (stages[0] == pair[1]) & (stages[1] == pair[0])
    carried &= homes[source] != homes[target]
    own = timeline.table.carried_times(places[carried], goals[carried], unit[carried])
    # Neighbors may carry something to each other in addition, and the last is waited for.
    next_to = np.abs(stages[0] - stages[1])[carried] == 1
    times[carried] = np.where(next_to, np.maximum(own, times[carried]), own)
    return times


def _largest(values: NDArray[np.float64], of: Positions, count: int) -> NDArray[np.float64]:
    """Return the largest value of every group, −∞ for none; `of` is sorted; shape ``(count,)``."""
    found = np.full(count, -np.inf)
    opens = np.flatnonzero(np.diff(of, prepend=-1))
    if len(opens):
        found[of[opens]] = np.maximum.reduceat(values, opens)
    return found


def _split_memory(
    timeline: Timeline, part: _Part, limits: NDArray[np.float64]
) -> tuple[_Part, _Part]:
    """Cut from waits for data the time in which the next forward only lacked memory."""
    schedule = timeline.schedule
    rank, start, end, cause, before = part
    actions = schedule.actions
    home = schedule.ranks_of_actions

    # The next forward of the rank at or after every position.
    count = len(actions)
    forward = np.where(among(kinds_of(actions), ACTIVATION_KINDS), np.arange(count), count)
    following = np.minimum.accumulate(np.append(forward, count)[::-1])[::-1][before]
    real = following < count
    following = np.where(real, following, 0)
    real &= (home[following] == rank) & (following != before) & (cause == DATA)

    of, producer, consumer = _needs(schedule, following, following)
    arrival = timeline.end[producer] + _journeys(timeline, producer, consumer)
    ready = np.maximum(_largest(arrival, of, len(following)), 0.0)

    held = np.zeros(count)
    taken = np.zeros(count)
    for number in range(schedule.ranks):
        span = slice(int(schedule.offsets[number]), int(schedule.offsets[number + 1]))
        added, freed = timeline.memory.deltas(schedule, number)
        taken[span] = added
        held[span] = np.cumsum(added + freed) - (added + freed)
    over = held[before] + taken[following] > limits[rank] * (1 + 1e-9)
    # A forward that waits after this very gap has its input at the latest when it starts.
    blocked = real & over & (ready < end)
    since = np.where(blocked, np.clip(ready, start, end), end)
    return (
        (rank, start, since, cause, before),
        (rank, since, end, np.full(len(rank), MEMORY), before),
    )
