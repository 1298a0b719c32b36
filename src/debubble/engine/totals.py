"""What a schedule comes to with given costs: numbers per rank, and nothing per action.

For whoever asks thousands of times, with the same schedule and other costs: what follows from the
schedule alone is worked out once and kept with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs, check_costs
from debubble.core.errors import check_type
from debubble.core.schedule import Schedule
from debubble.engine.graph import P2PMode, compile_graph
from debubble.engine.timeline import evaluate_graph


@dataclass(frozen=True, eq=False)
class Totals:
    """Time and memory of a schedule with given costs.

    Parameters
    ----------
    makespan
        Last end minus first start over all ranks.
    busy
        Time every rank computes, shape ``(ranks,)``.
    peak
        Largest activation memory of every rank, shape ``(ranks,)``.
    fullest
        Position, in ``schedule.actions``, of the action during which every rank first holds it,
        shape ``(ranks,)``; −1 where there is none, or the times of copies decide.
    """

    makespan: float
    busy: NDArray[np.float64]
    peak: NDArray[np.float64]
    fullest: NDArray[np.int64]


def totals(
    schedule: Schedule, costs: Costs | None = None, p2p_mode: P2PMode = "overlapped"
) -> Totals:
    """Time and memory of a schedule: what :func:`debubble.simulate` finds, without the timeline.

    Parameters
    ----------
    schedule
        Schedule to run; hold on to it, because its graph is kept with it.
    costs, p2p_mode
        As in :func:`debubble.simulate`.

    Raises
    ------
    ScheduleError
        When the order cannot run.
    CostError
        When the costs do not fit the schedule.

    Examples
    --------
    >>> import debubble as db
    >>> found = totals(db.make("1f1b", ranks=4, microbatches=8), db.Costs(F=10, B=18))
    >>> found.makespan, found.busy.tolist(), found.peak.tolist()
    (308.0, [224.0, 224.0, 224.0, 224.0], [4.0, 3.0, 2.0, 1.0])
    """
    check_type("schedule", schedule, Schedule, "give a Schedule: debubble.make or debubble.load")
    check_costs(costs)
    timeline = evaluate_graph(compile_graph(schedule, p2p_mode), costs or Costs())
    graph, use = timeline.graph, timeline.memory
    key = (Totals, graph.mode, graph.shared)
    if key not in schedule.derived:
        schedule.derived[key] = graph.work
    busy = schedule.derived[key].total(timeline.costs, schedule.ranks)
    return Totals(timeline.makespan, busy, use.peak, use.fullest)
