"""A run as arrays: a row for every step of every copy, a column for every action."""

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
from debubble.core.kinds import FORWARD_KINDS, Kind
from debubble.core.schedule import Schedule
from debubble.core.waits import waits_for
from debubble.diagnosis.observed import Indices, Messages, Observed, Pauses, Times
from debubble.diagnosis.order import Orders
from debubble.diagnosis.schedule_names import NO_PAIR

MOMENT = 4e-4
"""Share of a typical action below which a gap is no wait."""

PAIR = len(Kind)
"""The class of overlapped groups; that of other actions is their kind."""


@dataclass(frozen=True, eq=False)
class Run:
    """The complete steps of a run."""

    orders: tuple[Schedule, ...]
    """The schedules that were run, the most frequent first; columns are its actions."""
    step: Indices
    """Index of the step of every row, shape ``(rows,)``."""
    copy: Indices
    """Its copy of the model."""
    order: Indices
    """Its order."""
    steps: tuple[int, ...]
    """Numbers of the steps."""
    hosts: tuple[str, ...]
    """Host of every rank of every copy, as observed; all alike where ranks share a clock."""
    start: Times
    end: Times
    issued: Times
    waited: Times
    busy: Times
    """Busy time of the device in seconds, like the four fields above of shape ``(rows, actions)``
    and defined in :class:`debubble.diagnosis.observed.ObservedActions`. Unknown values are NaN.
    All members of an overlapped group have the group's values."""
    sent: Times
    posted: Times
    began: Times
    arrived: Times
    """As the three before, of the message that an action receives, as in
    :class:`debubble.diagnosis.observed.Messages`; `began` is when the target began to wait."""
    pauses: Pauses
    """Times at which hosts stood still."""

    @property
    def schedule(self) -> Schedule:
        """The most frequent order."""
        return self.orders[0]

    @property
    def rows(self) -> int:
        """Steps times copies, as far as they are complete."""
        return len(self.step)

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
        """Actions whose time counts: those alone, and the last of every overlapped group."""
        return ends_group(self.schedule.actions)

    @cached_property
    def cls(self) -> Indices:
        """Class of every action whose times are compared: its kind, or :data:`PAIR`."""
        alone = (self.schedule.actions & (PAIR_MASK << PAIR_SHIFT)) == 0
        return np.where(alone, self.kind, PAIR)

    def in_groups(self, values: NDArray[Any], join: np.ufunc) -> NDArray[Any]:
        """Return values of actions, shape ``(rows, actions)``, joined over overlapped groups."""
        opens = begins_group(self.schedule.actions)
        joined = join.reduceat(values, np.flatnonzero(opens), axis=1)
        return np.asarray(joined[:, np.cumsum(opens) - 1])

    @cached_property
    def source(self) -> Indices:
        """The action of another rank that each action waits for, −1 for none."""
        return sources_of(self.schedule)

    @cached_property
    def link(self) -> Indices:
        """Directed link that each action receives through: source · ranks + target, or −1."""
        return links_of(self.schedule)

    @cached_property
    def duration(self) -> Times:
        """Time of every action, 0 at least."""
        return np.maximum(self.end - self.start, 0.0)

    @cached_property
    def typical(self) -> float:
        """Median time of what ranks computed at once."""
        times = self.duration[:, self.counted]
        times = times[times > 0]
        return float(np.median(times)) if times.size else 0.0

    @property
    def moment(self) -> float:
        """Time below which nothing counts as a wait."""
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
        """Ranks of which nothing was observed, as (copy, rank)."""
        unknown = ~self.known
        rows, columns = np.nonzero(unknown)
        gone = {(int(self.copy[r]), int(self.rank[c])) for r, c in
                zip(rows.tolist(), columns.tolist(), strict=True)}  # fmt: skip
        return tuple(sorted(gone))

    def column(self, order: int) -> Indices:
        """Return the column of every action of an order."""
        return self.columns_of(self.orders[order])

    def columns_of(self, schedule: Schedule) -> Indices:
        """Return the column of every action of a schedule that has the same ones."""
        mine, base = schedule.actions & NO_PAIR, self.schedule.actions & NO_PAIR
        sort = np.argsort(base)
        return sort[np.searchsorted(base, mine, sorter=sort)]

    @cached_property
    def before(self) -> Times:
        """End of the action before on the rank, shape ``(rows, actions)``, −∞ if there is none.

        Members of an overlapped group wait for what ran before the group.
        """
        found = np.full_like(self.end, -np.inf)
        for number, schedule in enumerate(self.orders):
            here = np.flatnonzero(self.order == number)
            column = self.column(number)
            ends = self.end[np.ix_(here, column)]
            first, _ = group_bounds(schedule.actions)
            opening = np.isin(first, schedule.offsets[:-1])
            previous = np.where(opening[None, :], -np.inf, ends[:, np.maximum(first - 1, 0)])
            found[np.ix_(here, column)] = previous
        return found

    @cached_property
    def produced(self) -> Times:
        """End of the action that made the input of each action; NaN where it receives nothing."""
        return np.where(self.source >= 0, self.end[:, self.source], np.nan)

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
        """Time of every step that has rows: that of its slowest copy."""
        return self.slowest(self.length)

    @cached_property
    def step_of(self) -> tuple[Indices, Indices]:
        """The steps that have rows, and the place of every row's among them."""
        steps, place = np.unique(self.step, return_inverse=True)
        return steps, place

    @cached_property
    def shown(self) -> int:
        """The row that is drawn: of the slowest copy, in the step of median length."""
        _, place = self.step_of
        times = self.step_times
        step = int(np.argsort(times, kind="stable")[len(times) // 2])
        rows = np.flatnonzero(place == step)
        return int(rows[self.length[rows].argmax()])

    def slowest(self, lengths: Times) -> Times:
        """Return the largest of the rows of every step."""
        steps, place = self.step_of
        found = np.zeros(len(steps))
        np.maximum.at(found, place, lengths)
        return found

    def moved(self, offsets: Times, rates: Times) -> Run:
        """Return the run on one clock.

        What is subtracted is `offsets`, and `rates` times the time since the row's first start,
        both of shape ``(rows, ranks)``.
        """
        there = np.where(self.source >= 0, self.rank[self.source], 0)
        begin = self.begin[:, None]

        def right(times: Times, rank: Indices) -> Times:
            return times - offsets[:, rank] - rates[:, rank] * (times - begin)

        mine: dict[str, Any] = {name: right(getattr(self, name), self.rank) for name in OWN}
        return replace(self, **mine, sent=right(self.sent, there))

    def taken(self, rows: NDArray[np.bool_]) -> Run:
        """Return the run with some of its rows."""
        cut: dict[str, Any] = {name: getattr(self, name)[rows] for name in (*OWN, "busy", "sent")}
        return replace(self, step=self.step[rows], copy=self.copy[rows], order=self.order[rows],
                       **cut)  # fmt: skip

    @cached_property
    def warm(self) -> NDArray[np.bool_]:
        """Mask of rows after the warm-up, which is a first step that takes far longer than others.

        Shape ``(rows,)``.
        """
        _, place = self.step_of
        times = self.step_times
        if len(times) < FEW or times[0] < WARM_UP * np.median(times[1:]):
            return np.ones(self.rows, dtype=bool)
        warm: NDArray[np.bool_] = place > 0
        return warm


FEW, WARM_UP = 4, 1.5
"""A first step of at least so many is warm-up where it takes so many times the others' median."""

OWN = ("start", "end", "issued", "waited", "posted", "began", "arrived")
"""Times on the clock of the rank that has the action."""


def sources_of(schedule: Schedule) -> Indices:
    """Return the action of another rank that each action of a schedule waits for, −1 for none."""
    waits, rank = waits_for(schedule), schedule.ranks_of_actions
    far = rank[waits.producer] != rank[waits.consumer]
    found = np.full(len(rank), -1, dtype=np.int64)
    found[waits.consumer[far]] = waits.producer[far]
    return found


def links_of(schedule: Schedule) -> Indices:
    """Return the directed link of each action's input: source · ranks + target, or −1."""
    source, rank = sources_of(schedule), schedule.ranks_of_actions
    return np.where(source >= 0, rank[source] * schedule.ranks + rank, -1)


def run_of(observed: Observed, orders: Orders) -> Run:
    """Return the complete steps of what was observed."""
    schedule = orders.schedules[0]
    actions = observed.actions
    shape = (len(orders.step), len(schedule))
    at = np.stack(orders.rows)
    unknown: dict[str, Any] = {name: np.full(shape, np.nan) for name in (*OWN, "busy", "sent")}
    run = Run(
        orders.schedules, orders.step, orders.copy, orders.order, observed.steps,
        _hosts(observed), pauses=observed.pauses, **unknown,
    )  # fmt: skip
    for number in range(len(orders.schedules)):
        here = np.flatnonzero(orders.order == number)
        cells = np.ix_(here, run.column(number))
        rows = at[here]
        for name in ("start", "end", "issued", "waited", "busy"):
            getattr(run, name)[cells] = np.where(rows >= 0, getattr(actions, name)[rows], np.nan)
    _join_groups(run)
    _match(run, observed.messages, max(schedule.slices, 1))
    return run


def _hosts(observed: Observed) -> tuple[str, ...]:
    workers = observed.ranks * observed.copies
    if observed.clocks == "ranks":
        return tuple(f"rank {number}" for number in range(workers))
    if observed.clocks == "one" or len(observed.hosts) != workers:
        return ("",) * workers
    return observed.hosts


def _join_groups(run: Run) -> None:
    """Give all members of an overlapped group the times of the group."""
    first, behind = group_bounds(run.schedule.actions)
    for begin in np.unique(first[behind - first > 1]).tolist():
        part = slice(begin, int(behind[begin]))
        run.start[:, part] = run.start[:, part].min(axis=1, keepdims=True)
        run.end[:, part] = run.end[:, part].max(axis=1, keepdims=True)
        run.issued[:, part] = run.issued[:, part].min(axis=1, keepdims=True)


def _match(run: Run, messages: Messages, slices: int) -> None:
    """Put what is known of every message where the action is that receives it."""
    if not len(messages):
        return
    receives = np.flatnonzero(run.source >= 0)
    producer = run.source[receives]
    forward = np.isin(run.kind[producer], FORWARD_KINDS)
    keys = _keys(forward, run.stage[producer], run.unit[producer])
    sort = np.argsort(keys)
    row_of = {pair: row for row, pair in enumerate(zip(run.step.tolist(), run.copy.tolist(),
                                                       strict=True))}  # fmt: skip
    pairs = zip(messages.step.tolist(), messages.copy.tolist(), strict=True)
    row = np.array([row_of.get(pair, -1) for pair in pairs])
    unit = messages.microbatch.astype(np.int64) * slices + messages.slice
    wanted = _keys(np.isin(messages.kind, FORWARD_KINDS), messages.stage.astype(np.int64), unit)
    spot = np.minimum(np.searchsorted(keys, wanted, sorter=sort), len(keys) - 1)
    column = receives[sort[spot]]
    real = (row >= 0) & (keys[sort[spot]] == wanted)
    columns = {"sent": "sent", "posted": "posted", "waited": "began", "arrived": "arrived"}
    for name, mine in columns.items():
        getattr(run, mine)[row[real], column[real]] = getattr(messages, name)[real]


def _keys(forward: NDArray[np.bool_], stage: Indices, unit: Indices) -> Indices:
    """Return one number for every result that is sent."""
    return (unit << 21) | (stage << 1) | forward


def without_waits(run: Run) -> Run:
    """Cut from actions that contain their wait what was surely waited, on one clock."""
    there = np.fmax(run.produced, run.arrived)
    return replace(run, start=np.fmax(run.start, np.where(there < run.end, there, run.start)))
