"""Predictions of measured steps: simulations with the times that actions take.

In a prediction every action takes the time it was measured to take (the median of its kind and
stage) or was made to take, plus one overhead for all: the runtime's time per action and per way
from rank to rank. The overhead is calibrated: it is the one with which the simulation of a short
1F1B takes as long as that did.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from debubble.core.boundaries import largest_message
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline, simulate
from debubble.torch.measure.recorded import computations

Seconds = NDArray[np.float64]
"""A time of every action."""


def sleeping_times(schedule: Schedule, costs: Costs, shortest: float) -> Seconds:
    """Return the times that actions sleep when the shortest takes `shortest` seconds.

    Raises ParameterError when all costs are zero, or transfers have costs: those take their real
    time.
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


def predict_timeline(schedule: Schedule, seconds: Seconds, overhead: float) -> Timeline:
    """Simulate a schedule whose actions take `seconds`, the median where they share a cost."""
    timeline = simulate(schedule)
    graph = timeline.graph
    compute = computations(schedule)
    index = graph.cost[graph.node[compute]]
    vector = np.zeros_like(timeline.costs)
    for cost in np.unique(index):
        vector[cost] = np.median(seconds[compute[index == cost]]) + overhead
    return replace(timeline, costs=vector, node_end=graph.evaluate(vector))


def calibrate(schedule: Schedule, seconds: Seconds, makespan: float) -> float:
    """Return the overhead with which a prediction equals a measured makespan; at least 0."""
    low = predict_timeline(schedule, seconds, 0.0).makespan
    if makespan <= low:
        return 0.0
    # The makespan is convex and increasing in the overhead: Newton's steps come from above.
    overhead = makespan - low
    for _ in range(50):
        step = overhead * 1e-3
        value = predict_timeline(schedule, seconds, overhead).makespan
        slope = (value - predict_timeline(schedule, seconds, overhead - step).makespan) / step
        change = (value - makespan) / slope
        overhead -= change
        if abs(change) <= 1e-9:
            break
    return max(overhead, 0.0)
