"""A timeline: when every action of a schedule runs, and what follows from it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core import hooks
from debubble.core.actions import COPY_KINDS, KIND_MASK, among, computes, kinds_of, pairs_of
from debubble.core.cost_table import CostTable
from debubble.core.costs import Costs, check_costs
from debubble.core.errors import ScheduleError, check_type
from debubble.core.kind_relations import RECOMPUTE_KINDS
from debubble.core.kinds import FORWARD_KINDS
from debubble.core.runtimes import RECOMPUTES_LATE, has_rule
from debubble.core.schedule import Schedule
from debubble.engine import cost_mismatch
from debubble.engine.action_table import ActionTable
from debubble.engine.action_times import checked, with_times
from debubble.engine.critical_path import CriticalAction, critical_actions, times_paid
from debubble.engine.ensembles import Spread, spread_of
from debubble.engine.graph import EventGraph, P2PMode, compile_graph
from debubble.engine.jitter import Jitter, Times
from debubble.engine.kernels import evaluate as walk
from debubble.engine.memory import (
    MemoryUse,
    changes,
    changes_in_order,
    measure_memory,
    measure_over_time,
)
from debubble.engine.validate import has


@dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """The simulation of a schedule with given costs.

    Parameters
    ----------
    graph
        The compiled schedule.
    table
        Costs of every (kind, stage).
    costs
        The cost vector of the graph.
    node_end
        End time of every node of the graph, as soon as it can be.
    late
        End time of every node with forwards as late as possible, None where they are not; see
        :meth:`as_late_as_possible`.
    measured
        Whether times were measured, or read from a file, and not simulated.

    Notes
    -----
    Arrays over actions are in the schedule's order: rank 0's program, then rank 1's, …
    """

    graph: EventGraph
    table: CostTable
    costs: NDArray[np.float64]
    node_end: NDArray[np.float64]
    late: NDArray[np.float64] | None = None
    measured: bool = False

    @property
    def schedule(self) -> Schedule:
        """The schedule that was simulated."""
        return self.graph.schedule

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Caveats of the times: the order lacks actions, or was computed for other costs."""
        complete = self.graph.complete or self.measured
        return cost_mismatch.caveats_of(self.schedule, self.table, complete)

    @property
    def mode(self) -> P2PMode:
        """The p2p mode of the simulation."""
        return self.graph.mode

    @cached_property
    def makespan(self) -> float:
        """Last end minus first start over all ranks."""
        return float(self.node_end.max())

    @cached_property
    def end(self) -> NDArray[np.float64]:
        """End time of every action, shape ``(n,)``."""
        return (self.node_end if self.late is None else self.late)[self.graph.node]

    @cached_property
    def start(self) -> NDArray[np.float64]:
        """Start time of every action, shape ``(n,)``; the halves of a pair start together."""
        return self.end - self.duration

    @cached_property
    def duration(self) -> NDArray[np.float64]:
        """Time every action takes, shape ``(n,)``; both halves of a pair have the pair's."""
        return self.costs[self.graph.cost[self.graph.node]]

    @cached_property
    def busy(self) -> NDArray[np.float64]:
        """Time every rank computes, shape ``(ranks,)``."""
        return self.graph.work.total(self.costs, self.schedule.ranks)

    @cached_property
    def _span(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        schedule = self.schedule
        begins, ends = schedule.offsets[:-1].tolist(), schedule.offsets[1:].tolist()
        first = np.zeros(schedule.ranks)
        last = np.zeros(schedule.ranks)
        for rank, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            # Transfers at either end of a program are not work.
            while begin < end and not computes(schedule.actions[begin] & KIND_MASK):
                begin += 1
            while begin < end and not computes(schedule.actions[end - 1] & KIND_MASK):
                end -= 1
            if begin == end:
                continue
            first[rank], last[rank] = self.start[begin], self.end[end - 1]
        return first, last

    @property
    def stage_time(self) -> NDArray[np.float64]:
        """Last end minus first start of every rank, shape ``(ranks,)``."""
        first, last = self._span
        return last - first

    @cached_property
    def ideal(self) -> float:
        """Return the work of the busiest rank, without waits."""
        return float(self.busy.max())

    @property
    def bubble_ratio(self) -> float:
        """Idle share of rank-time: 1 − Σ busy / (p · makespan)."""
        if self.makespan == 0:
            return 0.0
        return float(1 - self.busy.sum() / (self.schedule.ranks * self.makespan))

    @property
    def stage_bubble_rate(self) -> float:
        """(largest stage time − ideal) / largest stage time, as in the Zero Bubble paper."""
        largest = float(self.stage_time.max())
        return (largest - self.ideal) / largest if largest else 0.0

    @property
    def overhead(self) -> float:
        """(makespan − ideal) / ideal."""
        return (self.makespan - self.ideal) / self.ideal if self.ideal else 0.0

    @cached_property
    def memory(self) -> MemoryUse:
        """Activation memory of every rank."""
        use = measure_memory(self.schedule, self.table)
        if not self.graph.has_copies:
            return use
        return measure_over_time(self.schedule, use, self._shown_begin, self.end)

    @cached_property
    def _begin(self) -> NDArray[np.float64]:
        """Start of every action, not rounded: the end of what it waited for last."""
        graph, end = self.graph, self.node_end
        node = graph.node
        return np.maximum(
            end[graph.first[node]], end[graph.second[node]] + self.costs[graph.lag[node]]
        )

    @property
    def _shown_begin(self) -> NDArray[np.float64]:
        """Start of every action with the delay of forwards that are as late as possible."""
        return self._begin + (self.end - self.node_end[self.graph.node])

    @property
    def peak_activation(self) -> NDArray[np.float64]:
        """Largest memory of every rank, shape ``(ranks,)``.

        Of activations, and what the costs call `static`.
        """
        return self.memory.peak

    def memory_curve(self, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return times at which a rank's memory changes, and the memory from each time on."""
        change, begin = changes_in_order, self.start
        if self.graph.has_copies:
            change, begin = changes, self._shown_begin
        times, deltas = change(self.schedule, self.memory, begin, self.end, rank)
        return times, self.table.static[rank] + np.cumsum(deltas)

    @cached_property
    def slack(self) -> NDArray[np.float64]:
        """Largest delay of each action's end that keeps the makespan, shape ``(n,)``."""
        graph = self.graph
        latest = np.full(len(graph.first), self.makespan)
        walk.latest_ends.run(len(latest), *graph.edges, self.costs, None, latest)
        return latest[graph.node] - self.end

    @cached_property
    def _critical_nodes(self) -> NDArray[np.int64]:
        graph = self.graph
        path = np.zeros(len(graph.first), dtype=np.int64)
        last = len(path) - 1 - int(np.argmax(self.node_end[::-1]))
        first, second, lag, _ = graph.edges
        length = walk.trace_back.run(
            len(path), first, second, lag, self.costs, self.node_end, last, path
        )
        return path[:length][::-1]

    @cached_property
    def critical(self) -> NDArray[np.bool_]:
        """Mask of the actions on the critical path, shape ``(n,)``."""
        on_path = np.zeros(len(self.graph.first), dtype=np.bool_)
        on_path[self._critical_nodes] = True
        return on_path[self.graph.node]

    def actions(self) -> ActionTable:
        """Start, end and duration of every action, as a table.

        It has a column for each of rank, action, stage, kind, microbatch, slice, start, end and
        duration: ``table.start`` is an array, ``for row in table`` gives named tuples,
        ``pandas.DataFrame(table.columns)`` a data frame, and ``table.csv()`` text.
        """
        return ActionTable.of(self)

    def critical_path(self) -> list[CriticalAction]:
        """Return one longest chain of actions, first to last: its length is the makespan."""
        return critical_actions(self, self._critical_nodes, self._begin)

    def sensitivity(self) -> dict[str, int]:
        """Number of times each cost is paid along the critical path.

        This is the derivative of the makespan with respect to that cost: a cost that is paid k
        times makes the iteration k times as much longer as itself. Where actions have times of
        their own, they count for the cost of their kind and stage all the same.
        """
        return times_paid(self, self._critical_nodes)

    def as_late_as_possible(self) -> Timeline:
        """Return a timeline with every forward as late as it can be without delaying anything else.

        The order on every rank and the times of all other actions stay, and with them the makespan
        and the critical path. Activations are held for a shorter time; as ranks keep their order,
        the largest memory is the same. Forwards of overlapped pairs stay where they are.

        Examples
        --------
        >>> import debubble as db
        >>> soon = db.simulate(db.make("1f1b", ranks=4, microbatches=8), db.Costs(F=1, B=2))
        >>> late = soon.as_late_as_possible()
        >>> soon.makespan, late.makespan, soon.start[1:4].tolist(), late.start[1:4].tolist()
        (33.0, 33.0, [1.0, 2.0, 3.0], [3.0, 6.0, 9.0])
        """
        graph, actions = self.graph, self.schedule.actions
        # Transfers of forwards move with them, be they actions or nodes of the graph alone.
        movable = graph.order < 0
        kinds = among(kinds_of(actions), FORWARD_KINDS)
        movable[graph.node[kinds & (pairs_of(actions) == 0)]] = True
        movable[0] = False
        late = np.where(movable, np.inf, self.node_end)
        walk.latest_ends.run(len(late), *graph.edges, self.costs, self.node_end, late)
        return replace(self, late=late)

    def jitter(self, times: Times | Jitter | None = None, **more: Any) -> Spread:
        """Step times when what ranks compute varies, and a step waits for the slowest copy.

        Parameters
        ----------
        times
            How times vary, ``"normal:3%"`` for instance, see :class:`debubble.Jitter`; or all of
            that in one.
        **more
            ``samples``, ``seed``, ``replicas`` and ``slow``, as of :class:`debubble.Jitter`.

        Examples
        --------
        >>> import debubble as db
        >>> timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8), db.Costs(F=1, B=2))
        >>> timeline.jitter(slow={"rank2": 1.5}).mean
        43.5
        """
        return spread_of(self, times if isinstance(times, Jitter) else Jitter(times, **more))

    def __repr__(self) -> str:
        return (
            f"<Timeline {self.schedule.name}: makespan {self.makespan:g}, "
            f"bubble ratio {self.bubble_ratio:.4f}, peak activation {self.memory.peak.max():g}>"
        )

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw with matplotlib, into `ax` when given; returns the axes."""
        return hooks.plot_timeline(self, ax=ax, **options)

    def save(self, path: str | Path, **options: Any) -> None:
        """Write a picture: .png, .svg, .pdf, .html or .txt."""
        hooks.save_timelines([self], path, **options)

    def _repr_html_(self) -> str:
        html: str = hooks.timelines_html([self])
        return html


def simulate(
    schedule: Schedule,
    costs: Costs | None = None,
    p2p_mode: P2PMode = "overlapped",
    *,
    durations: ArrayLike | None = None,
) -> Timeline:
    """Simulate a schedule.

    Parameters
    ----------
    schedule
        Schedule to run.
    costs
        Costs of actions; the default is one unit of time each for F, I and W.
    p2p_mode
        What a transfer between ranks does, see :mod:`debubble.engine.modes`.
    durations
        Time of every action in the schedule's order (rank 0's program, then rank 1's, …), shape
        ``(n,)``, in place of what `costs` say: measured ones, for instance. What actions take that
        do not compute still comes from `costs`; an overlapped pair takes that of its second half.

    Raises
    ------
    ScheduleError
        When the order cannot run.
    CostError
        When the costs do not fit the schedule, or `durations` are not a time for every action.

    Warns
    -----
    UserWarning
        When the order was computed without costs, and these are others.

    Examples
    --------
    >>> import debubble as db
    >>> db.simulate(db.make("1f1b", ranks=4, microbatches=8), db.Costs(F=10, B=18)).makespan
    308.0
    """
    check_type("schedule", schedule, Schedule, "give a Schedule: debubble.make or debubble.load")
    check_costs(costs)
    given = None if durations is None else checked(durations, len(schedule))
    timeline = evaluate_graph(compile_graph(schedule, p2p_mode), costs or Costs(), given)
    if schedule.made_for == cost_mismatch.DEFAULT and timeline.notes:
        warnings.warn(f"{schedule.name}: {timeline.notes[-1]}", stacklevel=2)
    return timeline


def evaluate_graph(
    graph: EventGraph, costs: Costs, durations: NDArray[np.float64] | None = None
) -> Timeline:
    """Simulate a compiled schedule with other costs, or with a time for every action."""
    if has_rule(costs, RECOMPUTES_LATE):
        graph = _with_late_recomputes(graph)
    if graph.has_copies and costs.host_link_shared_by != graph.shared:
        graph = compile_graph(graph.schedule, graph.mode, costs.host_link_shared_by)
    return timeline_of(graph, costs.table(graph.schedule), durations)


def _with_late_recomputes(graph: EventGraph) -> EventGraph:
    """Return the graph of the schedule in which recomputes wait for the gradient."""
    schedule = graph.schedule
    if schedule.recompute_after == "gradient" or not has(schedule, RECOMPUTE_KINDS):
        return graph
    return compile_graph(replace(schedule, recompute_after="gradient"), graph.mode, graph.shared)


def timeline_of(
    graph: EventGraph, table: CostTable, durations: NDArray[np.float64] | None = None
) -> Timeline:
    """Return the timeline of a compiled schedule, with the costs of a table."""
    if table.lengths is None and table.boundaries is None and durations is None:
        graph = graph.base or graph
        vector = graph.cost_vector(table)
    else:
        graph, vector = with_times(graph, table, durations)
    return Timeline(graph, table, vector, graph.evaluate(vector))


def memory_use(schedule: Schedule, costs: Costs, p2p_mode: P2PMode = "overlapped") -> MemoryUse:
    """Activation memory of a schedule, simulated only where activations leave their ranks.

    An order that cannot run is measured as if copies took no time.
    """
    if has(schedule, COPY_KINDS):
        try:
            return simulate(schedule, costs, p2p_mode).memory
        except ScheduleError:
            pass
    return measure_memory(schedule, costs.table(schedule))
