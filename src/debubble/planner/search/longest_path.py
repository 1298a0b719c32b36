"""Bounds for a step with other layers, from the longest path of a step that was simulated.

The order of actions stays if layers move, and so does every path through it. A step takes at least
what its actions on any path take, and what follows on the rank where the path ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import Kind
from debubble.core.placement import Placement
from debubble.core.runtimes import FIRST_IN_W, RUNTIMES
from debubble.engine.event_graph import LINK
from debubble.engine.kernels import evaluate as walk
from debubble.engine.timeline import Timeline
from debubble.planner.candidate import Candidate
from debubble.planner.case import Case
from debubble.planner.cost.stage_costs import layer_sums, times_of_cuts
from debubble.planner.cost.step import StepEnds, ends_of_cuts, step_ends
from debubble.planner.request import PlanRequest
from debubble.planner.search.evaluate import Evaluated

TIMED = (Kind.F, Kind.I, Kind.W, Kind.B)
"""Kinds of actions that take other times with other layers."""

SURE = 1 + 1e-9
"""Ratio to a step from which rounding does not decide whether a bound is above it."""

Cut: TypeAlias = tuple[int, ...]
"""Layers of every stage; they are consecutive, so that their numbers say all."""


class LongestPath:
    """The chain of actions, and the rank at its end, that decide a step.

    `counts` are the times that it runs every kind on every stage, None where that is not known;
    `rest` are the seconds of all else, such as transfers.
    """

    counts: NDArray[np.int64] | None = None

    def __init__(
        self, plan: Evaluated, timeline: Timeline, gradients: Sequence[float] | None = None
    ) -> None:
        graph, schedule, table = timeline.graph, timeline.schedule, timeline.table
        self.placement = schedule.placement
        self.runtime = table.costs.runtime
        times, given = _durations(plan.case, self.runtime), table.duration[list(TIMED)]
        # Pairs of actions that run together have costs of their own.
        alone = graph.base is None and not (graph.dynamic_kind != LINK).any()
        if not alone or given.shape != times.shape:
            return
        # What sending takes where nothing hides it comes on top, as much with other layers.
        if (given - times < -1e-12).any():
            return
        # Any rank gives a bound: that of similar ends is good enough.
        self.gradients = gradients or _ends(plan.case, times, self.placement).gradients
        last = timeline.end[schedule.offsets[1:] - 1]
        self.rank = int(np.argmax(last + np.array(self.gradients)))
        final = int(graph.node[schedule.offsets[self.rank + 1] - 1])
        path = np.zeros(len(graph.first), dtype=np.int64)
        first, second, lag, cost = graph.edges
        length = walk.trace_back.run(
            len(path), first, second, lag, timeline.costs, timeline.node_end, final, path
        )
        places = 1 + np.array(TIMED)[:, None] * schedule.stages + np.arange(schedule.stages)
        self.counts = np.bincount(cost[path[:length]], minlength=int(places.max()) + 1)[places]
        self.rest = float(timeline.node_end[final]) - float((self.counts * times).sum())


def no_gain(path: LongestPath, plan: Evaluated, homes: Sequence[int]) -> NDArray[np.bool_]:
    """Return a mask of moves, from a stage to another, that cannot make a plan's step shorter.

    `path` is of the plan's own step, and layers are alike. Where a layer moves between stages of
    one rank that do not end the step, what follows the pipeline stays; then the step is no shorter
    unless the path is.
    """
    assert path.counts is not None
    F, I, W = np.diff(layer_sums(plan.case).layers[:, :2])[:, 0]
    spent = np.array([F, I, W, I + W]) @ path.counts
    home = np.array(homes)
    first = np.zeros(len(home), dtype=bool)
    first[np.unique(home, return_index=True)[1]] = True
    inside = (home[:, None] == home) & ~(first[:, None] | first)
    mask: NDArray[np.bool_] = inside & (spent >= spent[:, None])
    return mask


def least_step(
    request: PlanRequest, candidate: Candidate, paths: Sequence[LongestPath], enough: float
) -> float:
    """Return seconds that a step takes at least by paths of steps with other layers.

    From `enough` on, less than is known may be returned.
    """
    known = [(path, path.counts) for path in paths if path.counts is not None]
    if not known:
        return 0.0
    case = request.case(candidate)
    times = _durations(case, known[0][0].runtime)
    lengths = [path.rest + float((counts * times).sum()) for path, counts in known]
    if max(lengths) >= enough:
        return max(lengths)
    ends = _ends(case, times, known[0][0].placement)
    after = max(ends.optimizer) + max(ends.weights)
    return after + max(
        length + ends.gradients[path.rank] for length, (path, _) in zip(lengths, known, strict=True)
    )


def are_slow(
    request: PlanRequest, candidate: Candidate, cuts: Sequence[Cut],
    paths: Sequence[LongestPath], enough: float,
) -> NDArray[np.bool_]:  # fmt: skip
    """Return whether :func:`least_step` is above `enough` beyond rounding, for several cuts."""
    known = [(path, path.counts) for path in paths if path.counts is not None]
    if not known or not cuts:
        return np.zeros(len(cuts), dtype=bool)
    case, some = request.case(candidate), np.array(cuts)
    times = _times_of_cuts(case, some, known[0][0].runtime)
    ends = ends_of_cuts(case, some, times[1] + times[2], known[0][0].placement)
    gradients, optimizer, weights = ends
    most: NDArray[np.float64] = np.max(
        [path.rest + np.einsum("ks,kcs->c", counts, times) + gradients[:, path.rank]
         for path, counts in known], axis=0,
    )  # fmt: skip
    slow: NDArray[np.bool_] = most + optimizer.max(axis=1) + weights.max(axis=1) > enough * SURE
    return slow


def _durations(case: Case, runtime: str) -> NDArray[np.float64]:
    """Return seconds of :data:`TIMED` on every stage, in rows."""
    return _times_of_cuts(case, np.array([case.candidate.layers]), runtime)[:, 0]


def _times_of_cuts(case: Case, cuts: NDArray[np.int64], runtime: str) -> NDArray[np.float64]:
    """Return seconds of :data:`TIMED`; shape ``(kinds, cuts, stages)``."""
    F, I, W = times_of_cuts(case, cuts)
    times = np.stack([F, I, W, I + W])
    if FIRST_IN_W in RUNTIMES[runtime].rules:
        times[1, :, 0], times[2, :, 0] = 0.0, times[3, :, 0]
    return times


def _ends(case: Case, times: NDArray[np.float64], placement: Placement) -> StepEnds:
    return step_ends(case, tuple((times[1] + times[2]).tolist()), placement)
