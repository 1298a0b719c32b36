"""Replay of a run with the measured time of every action and delay of every message."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs
from debubble.core.errors import ScheduleError
from debubble.core.layers import Layers
from debubble.core.schedule import Schedule
from debubble.diagnosis.cancellation import check_cancelled
from debubble.diagnosis.observed import Indices, Times
from debubble.diagnosis.run import Run
from debubble.diagnosis.times_under_schedule import shares_in_groups
from debubble.diagnosis.transfers import MessageTimes
from debubble.engine.action_times import shared_costs, with_action_times
from debubble.engine.event_graph import EventGraph
from debubble.engine.graph import compile_graph
from debubble.engine.modes import MODES, P2PMode

BLOCK = 1 << 24
"""Maximum number of elements in a matrix of cost vectors."""

CLEARLY, ROUNDING = 0.7, 1e-3
"""Maximum ratio of a clearly nearer p2p mode's distance of starts to that of an earlier mode, and
minimum reduction of that distance as a share of the step."""

MOST_ROWS = 8
"""Maximum number of rows for the comparison of p2p modes."""


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
        """Share of every action in its overlapped group, 1 for actions alone."""
        return shares_in_groups(self.run, self.times)

    @cached_property
    def sure(self) -> NDArray[np.bool_]:
        """Mask of actions with a known arrival of their input."""
        run, transfers = self.run, self.transfers
        with np.errstate(invalid="ignore"):
            long_there = run.before > run.produced + transfers.delay + transfers.usual(run)
        reported = transfers.reported & ~np.isnan(run.produced)
        return (run.source < 0) | reported | long_there

    @cached_property
    def under_way(self) -> Times:
        """Time of messages since both ends were ready, in seconds.

        A message held up by a busy receiver counts from the time the receiver was free. Any other
        counts from its production, as in the delays.
        """
        run, transfers = self.run, self.transfers
        there = run.in_groups(np.where(run.source >= 0, run.produced + transfers.delay, -np.inf),
                              np.fmax)  # fmt: skip
        free = np.where(transfers.held_up, 0.0, transfers.delay)
        ready = run.in_groups(np.where(run.source >= 0, run.produced + free, -np.inf), np.fmax)
        with np.errstate(invalid="ignore"):
            left = np.maximum(there - np.fmax(run.before, ready), 0.0)
        return np.where(transfers.held_up, np.nan_to_num(left), transfers.delay)

    def split(self, under_way: Times) -> tuple[Times, Times]:
        """Return the times of messages from free receivers on, and from their production on.

        Adding the first to the receiving actions makes both together equal :attr:`under_way`.
        """
        held_up = self.transfers.held_up
        late = self.run.in_groups(np.where(held_up, under_way, 0.0), np.maximum)
        return late, np.where(held_up, 0.0, under_way)

    @cached_property
    def gaps(self) -> Times:
        """Certain delay of a rank in seconds: it was free, and all input was complete.

        An overlapped group needs the input of all its members.
        """
        run = self.run
        there = np.where(run.source >= 0, run.produced + self.transfers.delay, -np.inf)
        there = run.in_groups(there, np.fmax)
        sure = run.in_groups(self.sure, np.logical_and)
        ready = np.fmax(np.fmax(run.before, there), run.begin[:, None])
        late = np.where(sure & run.known, np.maximum(run.start - ready, 0.0), 0.0)
        return np.where(np.isnan(late), 0.0, late)

    def lengths(self, times: Times | None = None, delays: Times | None = None) -> Times:
        """Return the time of every row, shape ``(rows,)``, with other times of actions or messages.

        Times of actions include the host delay before them; by default all times are observed.
        """
        run = self.run
        times = self.times + self.gaps if times is None else times
        delays = self.transfers.delay if delays is None else delays
        found = np.zeros(run.rows)
        for number, schedule in enumerate(run.orders):
            rows, column = np.flatnonzero(run.order == number), run.column(number)
            for block in in_blocks(rows, 2 * len(column)):
                cells = np.ix_(block, column)
                # Indexing with whole rows is many times as fast.
                usual = np.array_equal(column, np.arange(times.shape[1]))
                mine = (values[block] if usual else values[cells] for values in (times, delays))
                found[block] = lengths_of(run, block, schedule, *mine)
        return found

    def steps(self, times: Times | None = None, delays: Times | None = None) -> Times:
        """Return the time of every step: that of its slowest copy."""
        return self.run.slowest(self.lengths(times, delays))

    @cached_property
    def replayed(self) -> Times:
        """Time of every step as replayed."""
        return self.steps()

    @cached_property
    def error(self) -> float:
        """Median error of the replay over all steps, as a share of the step."""
        return float(np.median(np.abs(self.replayed / self.run.step_times - 1)))

    @cached_property
    def mode(self) -> tuple[P2PMode, float]:
        """P2p mode with the nearest starts of actions, and their mean distance.

        In every mode, the rows are replayed with the time of the quickest messages of every link
        and without host delays, which a mode may explain. The distance is the mean over all starts,
        as a share of the step. Modes are tried in the sequence of
        :data:`debubble.engine.modes.MODES`; a later one has to be clearly nearer.
        """
        run = self.run
        best: P2PMode = "overlapped"
        least = np.inf
        rows = np.unique(np.linspace(0, run.rows - 1, MOST_ROWS).astype(int))
        for spec in MODES:
            starts = self.starts_in(spec.name, rows)
            if starts is None:
                continue
            apart = np.abs(starts - (run.start[rows] - run.begin[rows, None]))
            off = float(np.mean(np.nanmean(apart, axis=1) / run.length[rows]))
            if off < least * CLEARLY and off < least - ROUNDING:
                best, least = spec.name, off
        return best, float(least)

    def starts_in(self, mode: P2PMode, rows: Indices) -> Times | None:
        """Return start times of some rows in a p2p mode; None if the schedule cannot run in it.

        Every message takes the time of the quickest ones of its link, and hosts are never late.
        """
        run = self.run
        links = Costs(F=0, I=0, W=0, R=0, p2p=as_matrix(self.transfers.quickest))
        found = np.zeros((len(rows), run.start.shape[1]))
        for number in np.unique(run.order[rows]).tolist():
            schedule = run.orders[number]
            try:
                graph = with_action_times(compile_graph(schedule, mode, explain=False))
            except ScheduleError:
                return None
            shared = graph.cost_vector(links.table(schedule))
            column = run.column(number)
            for place in np.flatnonzero(run.order[rows] == number).tolist():
                check_cancelled()
                times = self.times[rows[place], column]
                end = graph.evaluate(np.concatenate([shared, times]))[graph.node]
                found[place, column] = end - times
        return found

    def lengths_in(self, mode: P2PMode) -> Times | None:
        """Return the time of every row in a p2p mode, as in :meth:`starts_in`."""
        starts = self.starts_in(mode, np.arange(self.run.rows))
        return None if starts is None else np.asarray((starts + self.times).max(axis=1))


def in_blocks(rows: Indices, width: int) -> Iterator[Indices]:
    """Yield rows in blocks whose matrices of a given width have at most :data:`BLOCK` elements."""
    size = max(1, BLOCK // max(width, 1))
    for first in range(0, len(rows), size):
        check_cancelled()
        yield rows[first : first + size]


def walk(schedule: Schedule) -> tuple[EventGraph, Times]:
    """Return the graph of a schedule with only times of actions and messages as costs."""
    graph = with_action_times(compile_graph(schedule), delays=True)
    return graph, np.zeros(shared_costs(graph))


def lengths_of(run: Run, rows: Indices, schedule: Schedule, times: Times, delays: Times) -> Times:
    """Return the time of some rows of a run under a schedule, shape ``(rows,)``.

    `times` of the schedule's actions and `delays` of their inputs have shape ``(rows, actions)``.
    """
    graph, shared = walk(schedule)
    vectors = np.hstack([np.broadcast_to(shared, (len(rows), len(shared))), times, delays])
    found = graph.makespans(vectors)
    for place in np.flatnonzero(~run.traced[rows].all(axis=1)).tolist():
        # A step lasts from the first start to the last end of ranks with a file.
        end = graph.evaluate(vectors[place])[graph.node]
        seen = run.traced[rows[place], schedule.ranks_of_actions]
        found[place] = end[seen].max() - (end - times[place])[seen].min()
    return found


def reordered(run: Run, times: Times, delays: Times, schedule: Schedule) -> Times:
    """Return the time of every row under another schedule, shape ``(rows,)``."""
    column = run.columns_of(schedule)
    return lengths_of(run, np.arange(run.rows), schedule, times[:, column], delays[:, column])


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
    steps, place = run.step_of
    for step in range(len(steps)):
        rows = np.flatnonzero(place == step)
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
