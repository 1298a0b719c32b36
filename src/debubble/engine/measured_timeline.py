"""A timeline of times that somebody else found: those of a real run, or of a trace file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs
from debubble.core.errors import ScheduleError
from debubble.core.schedule import Schedule
from debubble.engine.graph import compile_graph
from debubble.engine.timeline import Timeline

MAX_CELLS = 1 << 24
"""Ranks times actions of a recorded timeline: every action has a duration of its own, and the time
that ranks are busy is a sum over all of them."""


def measured_timeline(
    schedule: Schedule,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    costs: Costs | None = None,
) -> Timeline:
    """Return the timeline of a schedule with times that were measured, from the first start on.

    What waits for what is the schedule's, so that idle times have causes and there is a critical
    path: an action that began later than its input was computed waited for p2p that long. Costs are
    for the memory of activations; their times are not used. Raises ScheduleError for an order that
    cannot run or has too many actions, CostError for costs that do not fit it.
    """
    if len(schedule) * schedule.ranks > MAX_CELLS:
        raise ScheduleError(
            f"{schedule.name} has {len(schedule):,} measured actions on {schedule.ranks:,} ranks; "
            f"the limit is {MAX_CELLS // schedule.ranks:,} actions on as many ranks"
        )
    table = (costs or Costs()).table(schedule)
    graph = compile_graph(schedule)
    nodes, count = len(graph.first), len(schedule)
    begins, ends = np.zeros(nodes), np.zeros(nodes)
    begins[graph.node], ends[graph.node] = start, end
    mine = np.zeros(nodes, dtype=bool)
    mine[graph.node] = True
    first, second = graph.first, graph.second
    for node in np.flatnonzero(~mine)[1:].tolist():  # joins, which follow what they join
        begins[node] = ends[node] = max(ends[first[node]], ends[second[node]])
    # The gap before an action is the journey of its input where that came last.
    by_data = mine & (second > 0) & (ends[second] >= ends[first])
    gaps = np.where(by_data, np.maximum(begins - ends[second], 0.0), 0.0)
    cost = np.zeros(nodes, dtype=np.uint32)
    cost[graph.node] = 1 + np.arange(count)
    lag = np.where(by_data, np.uint32(1 + count) + np.arange(nodes, dtype=np.uint32), 0)
    lengths = np.concatenate([[0.0], end - start, gaps])
    own = replace(graph, cost=cost, lag=lag.astype(np.uint32), base=graph)
    return Timeline(own, table, lengths, ends, measured=True)
