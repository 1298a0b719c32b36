"""Arrays of a run: a row for every step of every copy, a column for every action."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    PAIR_MASK,
    PAIR_SHIFT,
    begins_group,
    ends_group,
    group_bounds,
    kinds_of,
    microbatches_of,
    stages_of,
)
from debubble.core.kinds import Kind
from debubble.core.schedule import Schedule
from debubble.core.waits import waits_for
from debubble.diagnosis.observed import Device, Indices, Location, Pauses, Times
from debubble.diagnosis.schedule_names import NO_PAIR

MOMENT = 4e-4
"""Minimum length of a wait, as a share of a typical action."""

PAIR = len(Kind)
"""Class of overlapped groups; the class of other actions is their kind."""


@dataclass(frozen=True, eq=False)
class Run:
    """Complete steps of a run, with times in seconds."""

    orders: tuple[Schedule, ...]
    """Schedules of the run by descending frequency; columns are the actions of the first."""
    step: Indices
    """Index of the step of every row, shape ``(rows,)``."""
    copy: Indices
    """Copy of the model of every row, shape ``(rows,)``."""
    order: Indices
    """Index in `orders` of every row, shape ``(rows,)``."""
    steps: tuple[int, ...]
    """Numbers of the steps."""
    hosts: tuple[str, ...]
    """Host of every rank of every copy, as observed; all equal if ranks share a clock."""
    start: Times
    end: Times
    issued: Times
    waited: Times
    busy: Times
    """Busy time of the device in seconds, like the four fields above of shape ``(rows, actions)``
    and defined in :class:`debubble.diagnosis.observed.ObservedActions`. Unknown values are NaN.
    All members of an overlapped group have the group's values. If members ran one after the other,
    the group starts so long before its end as they computed together."""
    lead: Times
    """Computing of an overlapped group before it needs the input of this member, in seconds."""
    inside: Times
    """End of the members of an overlapped group that run before this one; NaN if none does."""
    sent: Times
    posted: Times
    began: Times
    arrived: Times
    """Arrival of the message that an action receives. This and the three fields above have the
    shape ``(rows, actions)`` and are defined in :class:`debubble.diagnosis.observed.Messages`;
    `began` is the time at which the target began to wait."""
    pauses: Pauses
    """Pauses of hosts."""
    locations: tuple[Location, ...] = ()
    """Location of every rank of every copy, as observed; empty if unknown."""
    backend: str = ""
    device: Device = ""
    """Device of the computing, and above it the communication backend; empty if unknown."""

    @property
    def schedule(self) -> Schedule:
        """Most frequent schedule."""
        return self.orders[0]

    @property
    def rows(self) -> int:
        """Number of rows: complete steps of all copies."""
        return len(self.step)

    @cached_property
    def copies(self) -> int:
        """Number of data-parallel copies."""
        return int(self.copy.max()) + 1

    def location(self, copy: int, rank: int) -> Location:
        """Return the location of a rank of a copy."""
        at = copy * self.schedule.ranks + rank
        return self.locations[at] if at < len(self.locations) else Location()

    @cached_property
    def kind(self) -> Indices:
        """Kind of every action."""
        return kinds_of(self.schedule.actions)

    @cached_property
    def stage(self) -> Indices:
        """Stage of every action."""
        return stages_of(self.schedule.actions)

    @cached_property
    def unit(self) -> Indices:
        """Microbatch, or slice of one, of every action."""
        return microbatches_of(self.schedule.actions)

    @cached_property
    def rank(self) -> Indices:
        """Rank of every action."""
        return self.schedule.ranks_of_actions

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Mask of actions whose time counts: actions alone, and the last of every group."""
        return ends_group(self.schedule.actions)

    @cached_property
    def cls(self) -> Indices:
        """Class of every action for comparisons of times: its kind, or :data:`PAIR`."""
        alone = (self.schedule.actions & (PAIR_MASK << PAIR_SHIFT)) == 0
        return np.where(alone, self.kind, PAIR)

    def in_groups(self, values: NDArray[Any], join: np.ufunc) -> NDArray[Any]:
        """Return values of actions, shape ``(rows, actions)``, joined over overlapped groups."""
        opens = begins_group(self.schedule.actions)
        joined = join.reduceat(values, np.flatnonzero(opens), axis=1)
        return np.asarray(joined[:, np.cumsum(opens) - 1])

    @cached_property
    def source(self) -> Indices:
        """Action of another rank that each action waits for, −1 for none."""
        return sources_of(self.schedule)

    @cached_property
    def link(self) -> Indices:
        """Directed link of each action's input: source · ranks + target, or −1."""
        return links_of(self.schedule)

    @cached_property
    def links(self) -> list[int]:
        """Directed links with messages."""
        return sorted(set(self.link[self.link >= 0].tolist()))

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of ranks that exchange messages, the lower rank first."""
        ends = (sorted(divmod(link, self.schedule.ranks)) for link in self.links)
        return sorted({(low, high) for low, high in ends})

    @cached_property
    def duration(self) -> Times:
        """Duration of every action in seconds, at least 0, shape ``(rows, actions)``."""
        return np.maximum(self.end - self.start, 0.0)

    @cached_property
    def typical(self) -> float:
        """Median duration of actions in seconds; a group counts as one action."""
        times = self.duration[:, self.counted]
        times = times[times > 0]
        return float(np.median(times)) if times.size else 0.0

    @property
    def moment(self) -> float:
        """Minimum length of a wait in seconds."""
        return MOMENT * self.typical

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """Mask of actions of ranks with a file, shape ``(rows, actions)``."""
        return ~np.isnan(self.start)

    @cached_property
    def traced(self) -> NDArray[np.bool_]:
        """Mask of ranks with a file, shape ``(rows, ranks)``."""
        found = np.zeros((self.rows, self.schedule.ranks), dtype=bool)
        for rank in range(self.schedule.ranks):
            mine = slice(*self.schedule.offsets[rank : rank + 2])
            found[:, rank] = self.known[:, mine].any(axis=1)
        return found

    @cached_property
    def missing(self) -> tuple[tuple[int, int], ...]:
        """Ranks without a file, as (copy, rank)."""
        unknown = ~self.known
        rows, columns = np.nonzero(unknown)
        gone = {(int(self.copy[r]), int(self.rank[c])) for r, c in
                zip(rows.tolist(), columns.tolist(), strict=True)}  # fmt: skip
        return tuple(sorted(gone))

    @cached_property
    def by_order(self) -> list[tuple[Schedule, Indices, Indices]]:
        """Schedules that ran, with their rows, and the columns of their actions."""
        return [
            (schedule, np.flatnonzero(self.order == number), self.columns_of(schedule))
            for number, schedule in enumerate(self.orders) if (self.order == number).any()
        ]  # fmt: skip

    def order_of(self, row: int) -> tuple[Schedule, Indices]:
        """Return the schedule of a row, and the columns of its actions."""
        schedule = self.orders[int(self.order[row])]
        return schedule, self.columns_of(schedule)

    def columns_of(self, schedule: Schedule) -> Indices:
        """Return the column of every action of a schedule with equal actions."""
        mine, base = schedule.actions & NO_PAIR, self.schedule.actions & NO_PAIR
        sort = np.argsort(base)
        return sort[np.searchsorted(base, mine, sorter=sort)]

    @cached_property
    def before(self) -> Times:
        """End of the previous action on the rank, shape ``(rows, actions)``, −∞ if there is none.

        For members of an overlapped group, it is the action before the group.
        """
        found = np.full_like(self.end, -np.inf)
        for schedule, here, column in self.by_order:
            ends = self.end[np.ix_(here, column)]
            first, _ = group_bounds(schedule.actions)
            opening = np.isin(first, schedule.offsets[:-1])
            previous = np.where(opening[None, :], -np.inf, ends[:, np.maximum(first - 1, 0)])
            found[np.ix_(here, column)] = previous
        return found

    @cached_property
    def produced(self) -> Times:
        """End of the action that produced each action's input; NaN without an input."""
        return np.where(self.source >= 0, self.end[:, self.source], np.nan)

    @cached_property
    def needed(self) -> Times:
        """Time at which each action needed its input."""
        return self.start + self.lead

    @cached_property
    def begin(self) -> Times:
        """First start of every row."""
        return np.asarray(np.nanmin(self.start, axis=1))

    @cached_property
    def length(self) -> Times:
        """Last end minus first start of every row."""
        return np.asarray(np.nanmax(self.end, axis=1) - self.begin)

    @cached_property
    def step_times(self) -> Times:
        """Time of every step with rows in seconds: that of its slowest copy."""
        return self.slowest(self.length)

    @cached_property
    def step_of(self) -> tuple[Indices, Indices]:
        """Steps with rows, and the position of every row's step among them."""
        steps, place = np.unique(self.step, return_inverse=True)
        return steps, place

    @cached_property
    def rows_of_steps(self) -> list[Indices]:
        """Rows of every step with rows."""
        _, place = self.step_of
        return np.split(np.argsort(place, kind="stable"), np.cumsum(np.bincount(place))[:-1])

    @cached_property
    def shown(self) -> int:
        """Row of the drawing: the slowest copy in the step of median length."""
        times = self.step_times
        rows = self.rows_of_steps[int(np.argsort(times, kind="stable")[len(times) // 2])]
        return int(rows[self.length[rows].argmax()])

    def slowest(self, lengths: Times) -> Times:
        """Return the largest value over the rows of every step."""
        steps, place = self.step_of
        found = np.zeros(len(steps))
        np.maximum.at(found, place, lengths)
        return found

    def moved(self, offsets: Times, rates: Times) -> Run:
        """Return the run on one clock.

        Subtract `offsets`, and `rates` times the time since the row's first start; both have the
        shape ``(rows, ranks)``.
        """
        there = np.where(self.source >= 0, self.rank[self.source], 0)
        begin = self.begin[:, None]

        def right(times: Times, rank: Indices) -> Times:
            return times - offsets[:, rank] - rates[:, rank] * (times - begin)

        mine: dict[str, Any] = {name: right(getattr(self, name), self.rank) for name in ON_CLOCK}
        return replace(self, **mine, sent=right(self.sent, there))

    def taken(self, rows: NDArray[np.bool_]) -> Run:
        """Return the run with some of its rows."""
        cut: dict[str, Any] = {name: getattr(self, name)[rows] for name in (*ON_CLOCK, *OTHERS)}
        return replace(self, step=self.step[rows], copy=self.copy[rows], order=self.order[rows],
                       **cut)  # fmt: skip

    @cached_property
    def warm(self) -> NDArray[np.bool_]:
        """Mask of rows after the warm-up, which is a first step far longer than the others.

        Shape ``(rows,)``.
        """
        _, place = self.step_of
        times = self.step_times
        if len(times) < FEW or times[0] < WARM_UP * np.median(times[1:]):
            return np.ones(self.rows, dtype=bool)
        warm: NDArray[np.bool_] = place > 0
        return warm


def class_name(cls: int) -> str:
    """Return the name of a class of actions."""
    return "OVERLAP_F_B" if cls == PAIR else Kind(cls).name


FEW, WARM_UP = 4, 1.5
"""Minimum number of steps with a warm-up, and its minimum ratio to the others' median."""

ON_CLOCK = ("start", "end", "issued", "waited", "inside", "posted", "began", "arrived")
"""Fields with times on the clock of the action's rank."""

OTHERS = ("busy", "lead", "sent")
"""Fields with other times."""


def sources_of(schedule: Schedule) -> Indices:
    """Return the action of another rank that each action of a schedule needs, −1 for none.

    What stages carry is a part of the messages of their neighbors.
    """
    waits, rank = waits_for(replace(schedule, carries=())), schedule.ranks_of_actions
    far = rank[waits.producer] != rank[waits.consumer]
    found = np.full(len(rank), -1, dtype=np.int64)
    found[waits.consumer[far]] = waits.producer[far]
    return found


def links_of(schedule: Schedule) -> Indices:
    """Return the directed link of each action's input: source · ranks + target, or −1."""
    source, rank = sources_of(schedule), schedule.ranks_of_actions
    return np.where(source >= 0, rank[source] * schedule.ranks + rank, -1)


def work_of_ranks(schedule: Schedule, times: Times) -> Times:
    """Return the sum of the times of every rank's actions, shape ``(rows, ranks)``."""
    counted = np.where(ends_group(schedule.actions), times, 0.0)
    full = np.concatenate([counted, np.zeros((len(times), 1))], axis=1)
    return np.asarray(np.add.reduceat(full, schedule.offsets[:-1], axis=1))


def without_waits(run: Run) -> Run:
    """Remove certain waits from actions that contain their wait; times are on one clock."""
    there = np.fmax(run.produced, run.arrived)
    return replace(run, start=np.fmax(run.start, np.where(there < run.end, there, run.start)))
