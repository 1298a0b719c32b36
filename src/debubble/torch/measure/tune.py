"""Faster schedules for a pipeline that trains, from the measured costs of its stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from debubble.analysis.check import check
from debubble.core.actions import COPY_KINDS, SHARDING_KINDS
from debubble.core.costs import Costs
from debubble.core.errors import DebubbleError, ParameterError
from debubble.core.kind_relations import SPLIT_KINDS
from debubble.core.kinds import STEP_KINDS
from debubble.core.schedule import Schedule
from debubble.core.units import rough_percent
from debubble.engine.graph import compile_graph
from debubble.engine.recompute import recomputed_stages
from debubble.engine.timeline import Timeline, evaluate_graph
from debubble.engine.validate import has
from debubble.torch.autograd.gradients import local
from debubble.torch.engine.recorder import KEPT
from debubble.torch.models.modules import restored
from debubble.torch.setup import not_for_pytorch

if TYPE_CHECKING:
    from debubble.torch.pipeline import Pipeline

LEAST = 0.005
"""Smallest gain for which a schedule is changed, as a share of the step."""


class Tuned:
    """Result of :func:`tune`, equal on every rank.

    Attributes
    ----------
    schedule
        The schedule that runs from now on.
    before
        The schedule that ran.
    found
        The fastest schedule that was found.
    predicted_gain
        Share of a step's time that `found` saves over `before`, both simulated with measured costs.
    noise
        Spread of measured steps: half of them are within this share of the median.
    difference
        Largest difference of gradients between the two schedules, relative to the largest number of
        the same gradient; None without `compare`.
    step_before, step_after
        Median time of measured steps, in ms; that of the new schedule is None until it has run long
        enough.
    simulated_before
        Simulated step of the schedule before, in ms; None with given costs, which have units of
        their own.
    """

    def __init__(self, pipe: Pipeline, found: Schedule, times: NDArray[np.float64]) -> None:
        self.before, self.found = pipe.schedule, found
        self.schedule = self.before
        self.steps = len(times)
        self.step_before = float(np.median(times))
        quarter, three_quarters = np.percentile(times, [25, 75])
        self.noise = float(three_quarters - quarter) / self.step_before
        self.predicted_gain = 0.0
        self.simulated_before: float | None = None
        self.difference: float | None = None
        self.step_after: float | None = None
        self._left = self.steps + 1  # the first step of a schedule is slower

    @property
    def changed(self) -> bool:
        """If another schedule runs than before; not where the gain is below the noise."""
        return self.schedule is not self.before

    @property
    def measured_gain(self) -> float | None:
        """Share of a step's time that is saved; None until as many steps ran as before."""
        return None if self.step_after is None else 1 - self.step_after / self.step_before

    def report(self) -> str:
        """Return prediction and measurement in a few lines."""
        simulated = ""
        if self.simulated_before is not None:
            error = self.simulated_before / self.step_before - 1
            simulated = f"; simulated {self.simulated_before:.4g} ms ({rough_percent(error)})"
        lines = [
            f"a step takes {self.step_before:.4g} ms (median of {self.steps}){simulated}",
            f"the fastest schedule found saves {rough_percent(self.predicted_gain)}",
        ]
        if self.difference is not None:
            lines.append(f"largest relative difference of a gradient: {self.difference:.2g}")
        if not self.changed and self.step_after is None:
            lines.append(f"steps vary by {rough_percent(self.noise)}: the schedule stays as it is")
        elif self.step_after is None or self.measured_gain is None:
            lines.append(f"measured: after {self._left} more steps")
        else:
            side = "less" if self.measured_gain >= 0 else "more"
            lines.append(
                f"measured: {self.step_after:.4g} ms, {rough_percent(abs(self.measured_gain))} "
                + side
                + ("" if self.changed else "; the previous schedule runs again")
            )
        return "\n".join(lines)

    def _start(self, pipe: Pipeline) -> None:
        """Run the new schedule from now on."""
        pipe.use(self.found)
        self.schedule = self.found
        pipe._after_step = lambda: self._follow(pipe)

    def _follow(self, pipe: Pipeline) -> None:
        """Count a step of the new schedule; measure it after the last of them."""
        self._left -= 1
        if self._left:
            pipe._after_step = lambda: self._follow(pipe)
            return
        self.step_after = float(np.median(pipe.step_times()[-self.steps :]))
        if self.step_after > self.step_before * (1 + self.noise):
            self.schedule = self.before
            pipe.use(self.before)


def tune(
    pipe: Pipeline,
    memory: float | Sequence[float] | None = None,
    *,
    time_limit: float = 10.0,
    steps: int = 5,
    costs: Costs | None = None,
    compare: Callable[[], Any] | None = None,
) -> Tuned:
    """Find a faster schedule for a pipeline between two of its steps, and run it from then on.

    One rank searches with the costs that :meth:`Pipeline.costs` measured; stages stay where they
    are, and the number of microbatches stays. Every rank calls it, and gets the same answer.

    Parameters
    ----------
    pipe
        A pipeline that ran some steps.
    memory
        Limit for the activations of every rank, or one per rank, in activation units; the default
        is what each rank holds now, at its peak.
    time_limit
        Seconds that the search takes.
    steps
        Number of steps that are measured before and after; up to 15.
    costs
        Costs in place of the measured ones, for instance those of :func:`profile`. A schedule with
        whole backwards does not show the costs of I and W alone: without `costs`, its backwards
        stay whole.
    compare
        A function that runs ``pipe.step`` on data that are the same every time. It is called with
        either schedule, and gradients are compared. Gradients of earlier steps are kept.

    Returns
    -------
    Tuned
        With ``predicted_gain``; ``measured_gain`` follows when `steps` more steps ran. When they
        are slower, the schedule before runs again.

    Raises
    ------
    ParameterError
        When there are too few steps to measure, such schedules cannot be searched, or none fits
        into `memory`.

    Notes
    -----
    Data-parallel replicas of a pipeline measure different times. Tune one of them, and give its
    ``schedule`` to the others with :meth:`Pipeline.use`.
    """
    pipe._enter("tune")
    _check(pipe, time_limit, steps)
    times = pipe.step_times()
    if len(times) < steps:
        raise ParameterError(
            f"{len(times)} steps were measured, the first aside, and steps is {steps}; run "
            f"{steps - len(times)} more before"
        )
    measured = costs or pipe.costs()
    if memory is None:
        memory = _simulated(pipe.schedule, measured).peak_activation.tolist()
    found: Schedule | DebubbleError | None = None
    if pipe._ranks.rank == 0:
        try:
            found = _search(pipe.schedule, measured, memory, time_limit, costs is not None)
        except DebubbleError as error:
            found = error
    found, measured, memory = pipe._ranks.channel.gather((found, measured, memory))[0]
    if isinstance(found, DebubbleError):
        raise found
    assert found is not None, "rank 0 has found something"
    report = check(found, memory=memory, costs=measured)
    assert report.ok, report
    tuned = Tuned(pipe, found, times[-steps:])
    before = _simulated(pipe.schedule, measured).makespan
    if costs is None:
        tuned.simulated_before = before
    tuned.predicted_gain = 1 - _simulated(found, measured).makespan / before
    impossible = pipe._kind == "torch" and not_for_pytorch(found)
    if tuned.predicted_gain > max(tuned.noise, LEAST) and not impossible:
        if compare is not None:
            tuned.difference = _compare(pipe, found, compare)
        tuned._start(pipe)
    return tuned


def _check(pipe: Pipeline, time_limit: float, steps: int) -> None:
    """Refuse schedules and limits that cannot be searched with."""
    reason = _not_for_search(pipe.schedule)
    if reason:
        raise ParameterError(
            f"'{pipe.schedule.name}' {reason}, which tune() does not search; compare schedules on "
            "pipe.costs() with debubble.compare, and make a Pipeline of the best"
        )
    timeout = pipe._ranks.timeout.total_seconds()
    if not 0 < time_limit <= timeout / 2:
        raise ParameterError(
            f"time_limit is {time_limit:g} s; give a positive number up to {timeout / 2:g}, half "
            "of the Pipeline's timeout, as the other ranks wait"
        )
    if not 1 <= steps < KEPT:
        raise ParameterError(f"steps is {steps}; give a number from 1 to {KEPT - 1}")


def _simulated(schedule: Schedule, costs: Costs) -> Timeline:
    """Simulate with measured costs, without a warning that a schedule is for other costs."""
    return evaluate_graph(compile_graph(schedule), costs)


def _not_for_search(schedule: Schedule) -> str:
    """Return the part of a schedule that cannot be searched, empty for none."""
    reasons = {
        "has several copies of the model": schedule.placement.copies > 1,
        "cuts sequences into slices": schedule.slices > 1,
        "shards the output layer": bool(schedule.vocabulary),
        "keeps several versions of the weights": max(schedule.versions) > 1,
        "has optimizer steps within": has(schedule, STEP_KINDS),
        "offloads activations": has(schedule, COPY_KINDS),
        "has actions for data-parallel replicas": has(schedule, SHARDING_KINDS),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _search(
    schedule: Schedule,
    costs: Costs,
    memory: float | Sequence[float],
    time_limit: float,
    splits: bool,
) -> Schedule:
    """Return the fastest schedule of the same work; `splits` if the costs of I and W are known."""
    from debubble.optimize.search import optimize

    splits = splits or has(schedule, SPLIT_KINDS)
    result = optimize(
        ranks=schedule.ranks, microbatches=schedule.microbatches, placement=schedule.placement,
        costs=costs, memory=memory, backward="free" if splits else "fused",
        recompute=recomputed_stages(schedule) or "none",
        time_limit=time_limit, cache=False, published=False,
    )  # fmt: skip
    return result.schedule


def _compare(pipe: Pipeline, found: Schedule, run: Callable[[], Any]) -> float:
    """Return the largest relative difference of a gradient between two schedules."""
    weights = list(pipe.parameters())
    gradients = []
    for schedule in (pipe.schedule, found):
        pipe.use(schedule)
        with restored(list(pipe.stages.values()), pipe._ranks.device):
            run()
            gradients.append([weight.grad for weight in weights])
    largest = torch.zeros(1, dtype=torch.float64)
    for one, other in zip(*gradients, strict=True):
        if one is None and other is None:
            continue
        a, b = (torch.zeros(1) if each is None else local(each).double().cpu()
                for each in (one, other))  # fmt: skip
        scale = max((float(each.abs().max()) for each in (a, b) if each.numel()), default=0.0)
        if scale:
            largest = torch.maximum(largest, (a - b).abs().max() / scale)
    return float(pipe._ranks.channel.sum(largest, largest=True))
