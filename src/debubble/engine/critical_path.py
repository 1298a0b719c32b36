"""The longest chain of actions of a timeline: its length is the makespan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Action, among, kinds_of, unpack
from debubble.core.kinds import SEND_KINDS

if TYPE_CHECKING:
    from debubble.engine.timeline import Timeline


@dataclass(frozen=True)
class CriticalAction:
    """One action of a critical path."""

    action: Action
    rank: int
    start: float
    end: float
    waited_for: str
    """``"rank"`` when the rank's previous action was the last to end, ``"data"`` when the input
    from another rank was, ``"start"`` for the first action."""
    slices: int = 1
    """Slices that microbatches are cut into."""

    def __str__(self) -> str:
        text = self.action.text(self.slices)
        return f"{text} on rank {self.rank} [{self.start:g}, {self.end:g}]"


def critical_actions(
    timeline: Timeline, nodes: NDArray[np.int64], begin: NDArray[np.float64]
) -> list[CriticalAction]:
    """Return the actions of a chain of nodes, where `begin` is the exact start of every action."""
    graph, schedule = timeline.graph, timeline.schedule
    order = graph.order.copy()
    # A transfer has one node for both its ends: it is shown as its send.
    sends = np.flatnonzero(among(kinds_of(schedule.actions), SEND_KINDS))
    order[graph.node[sends]] = sends
    path: list[CriticalAction] = []
    previous_rank, previous_end = -1, 0.0
    for node in nodes.tolist():
        position = int(order[node])
        if position < 0:
            continue
        rank = schedule.rank_of(position)
        # Shards of the output layer may wait for others in between two of their passes.
        own = rank == previous_rank and begin[position] == previous_end
        waited_for = "start" if not path else "rank" if own else "data"
        end = float(timeline.node_end[node])
        path.append(
            CriticalAction(
                unpack(int(schedule.actions[position])),
                rank,
                end - float(timeline.costs[graph.cost[node]]),
                end,
                waited_for,
                schedule.slices,
            )
        )
        previous_rank, previous_end = rank, end
    return path


def times_paid(timeline: Timeline, nodes: NDArray[np.int64]) -> dict[str, int]:
    """Count how often each cost is paid along a chain of nodes."""
    graph = timeline.graph
    shared = graph.base or graph
    names = graph.cost_names()
    counts = np.bincount(shared.cost[nodes], minlength=len(names))
    previous = np.concatenate([[0], nodes[:-1]])
    by_data = (graph.second[nodes] == previous) & (
        timeline.node_end[graph.second[nodes]] + timeline.costs[graph.lag[nodes]]
        > timeline.node_end[graph.first[nodes]]
    )
    counts += np.bincount(shared.lag[nodes][by_data], minlength=len(names))
    return {names[i]: int(counts[i]) for i in np.flatnonzero(counts) if i > 0}
