"""Times: from what ranks noted to what a simulation says.

A prediction is a simulation in which every action takes the time it was measured to take (the
median of its kind and stage) or was made to take, plus one overhead for all: what a runtime spends
on an action beside the action, and on the way from rank to rank. The overhead is calibrated: it is
the one with which the simulation of a short 1F1B takes as long as that did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import COMPUTE_KINDS, among, kinds_of
from debubble.core.boundaries import largest_message
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline, simulate
from debubble.interchange.run_trace import Transfer
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.engine.recorder import transfers_of

Times = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """What some steps of a schedule took, in seconds."""

    starts: Times
    """When every action of the schedule as given began, from the first start of the step on; shape
    ``(steps, n)``."""
    ends: Times
    """When it ended, likewise."""
    makespans: Times
    """Last end minus first start of computations, shape ``(steps,)``."""
    transfers: Sequence[Transfer] = ()
    """The messages of the typical step."""
    hosts: Sequence[str] = ()
    """Where each rank ran."""

    @classmethod
    def of(
        cls, plan: ExecutionPlan, parts: Sequence[NDArray[np.int64]], hosts: Sequence[str] = ()
    ) -> Measured:
        """From each rank's times on one clock, as of a recorder: ``(steps, 3, actions)``."""
        times = np.concatenate(parts, axis=2)
        starts, ends = times[:, 0, plan.positions], times[:, 1, plan.positions]
        compute = computations(plan.schedule)
        zero = starts[:, compute].min(axis=1)
        makespans = (ends[:, compute].max(axis=1) - zero) / 1e9
        found = cls((starts - zero[:, None]) / 1e9, (ends - zero[:, None]) / 1e9, makespans)
        step = found.typical
        messages = transfers_of(plan.lowered, times[step], int(zero[step]))
        return replace(found, transfers=messages, hosts=hosts)

    @property
    def makespan(self) -> float:
        """Median over the steps."""
        return float(np.median(self.makespans))

    @property
    def typical(self) -> int:
        """The step whose makespan is the (lower) median."""
        return int(np.argsort(self.makespans, kind="stable")[(len(self.makespans) - 1) // 2])

    @property
    def durations(self) -> Times:
        """Median time of every action, shape ``(n,)``."""
        median: Times = np.median(self.ends - self.starts, axis=0)
        return median


def computations(schedule: Schedule) -> NDArray[np.int64]:
    """Positions of what occupies a rank."""
    return np.flatnonzero(among(kinds_of(schedule.actions), COMPUTE_KINDS))


def sleeping_times(schedule: Schedule, costs: Costs, shortest: float) -> Times:
    """How long every action lasts when the shortest takes `shortest` seconds.

    Raises ParameterError when all costs are zero, or transfers have costs: they take the time they
    really take.
    """
    if np.any(np.asarray(costs.p2p) > 0) or largest_message(costs) > 0:
        raise ParameterError(
            "transfers of a real run take the time they take; leave p2p and message out"
        )
    timeline = simulate(schedule, costs)
    seconds = np.zeros(len(schedule))
    compute = computations(schedule)
    seconds[compute] = timeline.duration[compute]
    if not np.any(seconds > 0):
        raise ParameterError("all times are 0; give some with --times")
    return seconds * (shortest / float(seconds[seconds > 0].min()))


def predict(schedule: Schedule, seconds: Times, overhead: float) -> Timeline:
    """Simulate a schedule whose actions take `seconds`, the median where they share a cost."""
    timeline = simulate(schedule)
    graph = timeline.graph
    compute = computations(schedule)
    index = graph.cost[graph.node[compute]]
    vector = np.zeros_like(timeline.costs)
    for cost in np.unique(index):
        vector[cost] = np.median(seconds[compute[index == cost]]) + overhead
    return replace(timeline, costs=vector, node_end=graph.evaluate(vector))


def calibrate(schedule: Schedule, seconds: Times, makespan: float) -> float:
    """The overhead with which a prediction equals a measured makespan; at least 0."""
    low = predict(schedule, seconds, 0.0).makespan
    if makespan <= low:
        return 0.0
    # The makespan is convex and increasing in the overhead: Newton's steps come from above.
    overhead = makespan - low
    for _ in range(50):
        step = overhead * 1e-3
        value = predict(schedule, seconds, overhead).makespan
        slope = (value - predict(schedule, seconds, overhead - step).makespan) / step
        change = (value - makespan) / slope
        overhead -= change
        if abs(change) <= 1e-9:
            break
    return max(overhead, 0.0)
