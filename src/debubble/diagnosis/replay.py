"""Replay of a run with the measured time of every action and message."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import group_bounds
from debubble.core.costs import Costs
from debubble.core.layers import Layers
from debubble.core.schedule import Schedule
from debubble.diagnosis.cancellation import check_cancelled
from debubble.diagnosis.observed import Indices, Times
from debubble.diagnosis.p2p_modes import FittedMode
from debubble.diagnosis.run import Run
from debubble.diagnosis.times_under_schedule import shares_in_groups
from debubble.diagnosis.transfers import MessageTimes
from debubble.diagnosis.walk import Walk, any_walk
from debubble.engine.measured_timeline import measured_timeline
from debubble.engine.timeline import Timeline

MILLISECONDS = 1e3

BLOCK = 1 << 24
"""Maximum number of elements in a matrix of cost vectors."""


@dataclass(frozen=True, eq=False)
class Replay:
    """Graphs of the steps of a run, to evaluate with other times."""

    run: Run
    """The run, on one clock."""
    transfers: MessageTimes
    """Times of its messages."""
    layers: Layers | None = None
    """Layers of the model, by which stages of other schedules are cut; None for equal distances."""

    @cached_property
    def times(self) -> Times:
        """Time of every action in seconds, filled in from other ranks for those without a file."""
        return filled(self.run)

    @cached_property
    def shares(self) -> Times:
        """Share of every action in its overlapped group, 1 for actions alone.

        It is measured if the members of a group ran one after the other.
        """
        run = self.run
        usual = shares_in_groups(run, self.times)
        measured = run.in_groups(self.leads, np.maximum) > 0
        if not measured.any():
            return usual
        behind = np.hstack([self.leads[:, 1:], np.zeros((run.rows, 1))])
        behind = np.where(run.counted, 1.0, behind)
        return np.where(measured, behind - self.leads, usual)

    @cached_property
    def sure(self) -> NDArray[np.bool_]:
        """Mask of actions with a known arrival of their input."""
        run, transfers = self.run, self.transfers
        with np.errstate(invalid="ignore"):
            long_there = run.before > transfers.over + transfers.usual(run)
        reported = transfers.reported & ~np.isnan(run.produced)
        return (run.source < 0) | reported | long_there

    @cached_property
    def gaps(self) -> Times:
        """Certain delay of a rank in seconds: it was free, and all input was complete.

        An overlapped group needs the input of all its members.
        """
        run, transfers = self.run, self.transfers
        there = np.where(run.source >= 0, transfers.over - run.lead, -np.inf)
        there = run.in_groups(there, np.fmax)
        sure = run.in_groups(self.sure, np.logical_and)
        ready = np.fmax(np.fmax(run.before, transfers.held), there)
        ready = np.fmax(ready, run.begin[:, None])
        late = np.where(sure & run.known, np.maximum(run.start - ready, 0.0), 0.0)
        return np.where(np.isnan(late), 0.0, late)

    @cached_property
    def leads(self) -> Times:
        """Share of an overlapped group's time that it computes before it needs each input."""
        duration = self.run.duration
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.nan_to_num(np.where(duration > 0, self.run.lead / duration, 0.0))

    def lengths(
        self, times: Times | None = None, messages: Times | None = None,
        mode: FittedMode | None = None,
    ) -> Times:  # fmt: skip
        """Return the time of every row, shape ``(rows,)``, with other times of actions or messages.

        Times of actions include the host delay before them; by default all times are observed, and
        the p2p mode is that of the run.
        """
        run = self.run
        times = self.times + self.gaps if times is None else times
        messages = self.transfers.in_flight if messages is None else messages
        found = np.zeros(run.rows)
        for schedule, rows, column in run.by_order:
            # Indexing with whole rows is many times as fast.
            part = slice(None) if schedule is run.schedule else column
            for block in in_blocks(rows, 3 * len(column)):
                mine = (values[block][:, part] for values in (times, messages, self.leads))
                found[block] = self.walked(block, schedule, *mine, mode=mode)
        return found

    def walked(
        self, rows: Indices, schedule: Schedule, times: Times, messages: Times, leads: Times, *,
        mode: FittedMode | None = None,
    ) -> Times:  # fmt: skip
        """Return the time of some rows of the run under a schedule, shape ``(rows,)``.

        `times` of the schedule's actions and of the messages they receive, and `leads`, shares as
        in :attr:`leads`, have the shape ``(rows, actions)``.
        """
        run, walk = self.run, self.walk(schedule, mode)
        vectors = times, messages, times * leads if leads.any() else None
        found = walk.lengths(*vectors)
        for place in np.flatnonzero(~run.traced[rows].all(axis=1)).tolist():
            # A step lasts from the first start to the last end of ranks with a file.
            mine = (None if each is None else each[[place]] for each in vectors)
            end = walk.ends(*mine)[0]  # type: ignore[arg-type]
            seen = run.traced[rows[place], schedule.ranks_of_actions]
            found[place] = end[seen].max() - (end - times[place])[seen].min()
        return found

    def walk(self, schedule: Schedule, mode: FittedMode | None = None) -> Walk:
        """Return the walk through a schedule in a p2p mode, by default the run's."""
        return any_walk(schedule, self.transfers.mode if mode is None else mode)

    def steps(self, times: Times | None = None, messages: Times | None = None) -> Times:
        """Return the time of every step: that of its slowest copy."""
        return self.run.slowest(self.lengths(times, messages))

    @cached_property
    def replayed(self) -> Times:
        """Time of every step as replayed."""
        return self.steps()

    @cached_property
    def error(self) -> float:
        """Median error of the replay over all steps, as a share of the step."""
        return float(np.median(np.abs(self.replayed / self.run.step_times - 1)))

    def reordered(self, times: Times, messages: Times, schedule: Schedule) -> Times:
        """Return the time of every row with its actions in another order, shape ``(rows,)``."""
        run = self.run
        column = run.columns_of(schedule)
        mine = (values[:, column] for values in (times, messages, self.leads))
        return self.walked(np.arange(run.rows), schedule, *mine)

    @property
    def mode(self) -> FittedMode:
        """P2p mode that explains the starts of actions best."""
        return self.transfers.mode

    def model_times(self, copy: int | None = None) -> tuple[Times, Times]:
        """Times of actions and messages in a model of the run, or of one copy of it.

        Every action takes the median time of its kind and stage, every message that of its link.
        Both have shape ``(actions,)``.
        """
        run, transfers = self.run, self.transfers
        rows = np.ones(run.rows, dtype=bool) if copy is None else run.copy == copy
        first, behind = group_bounds(run.schedule.actions)
        key = np.stack(
            [run.cls, run.stage[first], run.stage[behind - 1], run.unit % run.schedule.slices]
        )
        _, group = np.unique(key, axis=1, return_inverse=True)
        times = np.zeros(len(run.cls))
        for one in range(int(group.max()) + 1):
            mine = group.ravel() == one
            times[mine] = np.median(self.times[np.ix_(rows, mine)])
        typical = np.nan_to_num(transfers.typical if copy is None else transfers.by_copy[copy])
        return times, np.where(run.link >= 0, typical[run.link], 0.0)

    def model_ends(self, copy: int | None = None) -> Times:
        """End of every action in a model of the run with no host late, shape ``(actions,)``."""
        times, messages = (values[None, :] for values in self.model_times(copy))
        leads = times * np.median(self.leads, axis=0)
        return np.asarray(self.walk(self.run.schedule).ends(times, messages, leads)[0])

    @cached_property
    def modeled(self) -> Timeline:
        """Timeline of a model of the run, in milliseconds."""
        times, _ = self.model_times()
        end = self.model_ends()
        return drawn(self.run.schedule, end - times, end)

    @cached_property
    def plan(self) -> float:
        """Time of a step in a model of the run, in seconds."""
        return float(self.model_ends().max())

    @cached_property
    def model_error(self) -> float:
        """Error of a model of the slowest copy, as a share of a step."""
        copies = np.unique(self.run.copy).tolist()
        longest = max(float(self.model_ends(copy).max()) for copy in copies)
        return abs(longest / float(self.run.step_times.mean()) - 1)

    @cached_property
    def uncertainty(self) -> float:
        """Error of predictions, as a share of a step.

        It is that of the run if all messages of a link take one time, as times that are fitted to
        single messages may be those of anything; and at least the error of the replay.
        """
        transfers = self.transfers
        steps = self.steps(messages=transfers.usual(self.run) + transfers.behind)
        return max(abs(float(steps.mean() / self.run.step_times.mean()) - 1), self.error)


def drawn(schedule: Schedule, start: Times, end: Times) -> Timeline:
    """Return a timeline in milliseconds of predicted times of actions in seconds."""
    costs = schedule.made_for or Costs(time_unit="ms")
    return measured_timeline(schedule, start * MILLISECONDS, end * MILLISECONDS, costs)


def in_blocks(rows: Indices, width: int) -> Iterator[Indices]:
    """Yield rows in blocks whose matrices of a given width have at most :data:`BLOCK` elements."""
    size = max(1, BLOCK // max(width, 1))
    for first in range(0, len(rows), size):
        check_cancelled()
        yield rows[first : first + size]


def as_matrix(links: Times) -> list[list[float]]:
    """Return times of all links as a matrix, 0 for unused links."""
    ranks = math.isqrt(len(links))
    found: list[list[float]] = np.nan_to_num(links).reshape(ranks, ranks).tolist()
    return found


def filled(run: Run) -> Times:
    """Return the time of each action; without a file the mean of other copies or stages."""
    times = np.where(run.known, run.duration, np.nan)
    if run.known.all():
        return times
    for rows in run.rows_of_steps:
        absent = np.isnan(times[rows])
        there = (~absent).any(axis=0)
        mean = np.full(times.shape[1], np.nan)
        mean[there] = np.nanmean(times[rows][:, there], axis=0)
        for cls in np.unique(run.cls).tolist():
            alike = run.cls == cls
            gone = alike & ~there
            if gone.any():
                mean[gone] = np.nanmedian(times[rows][:, alike]) if (alike & there).any() else 0.0
        times[rows] = np.where(absent, mean[None, :], times[rows])
    return times
