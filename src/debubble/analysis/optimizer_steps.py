"""Checks of optimizer steps: one per rank and iteration, with its gradients and weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.problems import Findings, Problem, spot
from debubble.analysis.structure import period_of
from debubble.core.actions import Action, kinds_of, microbatches_of
from debubble.core.kind_relations import FORWARD_KIND, STEP_KIND
from debubble.core.kinds import GRADIENT_KINDS, WEIGHT_KINDS
from debubble.core.schedule import Schedule


@dataclass(frozen=True, eq=False)
class _RankSteps:
    """Actions of one rank, and the optimizer steps among them."""

    schedule: Schedule
    rank: int
    kinds: NDArray[np.int64]
    units: NDArray[np.int64]
    spots: NDArray[np.int64]
    """Places of the steps in the rank's program."""

    @property
    def begin(self) -> int:
        """Position in the schedule of the rank's first action."""
        return int(self.schedule.offsets[self.rank])

    @property
    def done(self) -> NDArray[np.int64]:
        """Number of steps before every action."""
        counts = np.diff(self.spots, prepend=0, append=len(self.kinds))
        return np.repeat(np.arange(len(self.spots) + 1), counts)


def inspect_steps(schedule: Schedule, found: Findings) -> None:
    """Report steps that are missing, repeated, or that use the wrong gradients or weights.

    Notes
    -----
    Let step k be the optimizer step that ends iteration k. On every rank,

    * the steps are 0, 1, …, each once, in order;
    * step k comes after every backward of iteration k, or gradients are lost, and before every
      weight gradient of iteration k + 1, or gradients of two iterations are mixed;
    * at most `weight_versions` − 1 steps come between a forward and its backward: with n steps
      between them the backward needs weights that are n steps old, so that n + 1 versions are in
      use at the same time. By the rules above the backward of iteration k runs after exactly k
      steps, so its forward runs after at least k − (weight_versions − 1). One version is training
      with a flush; two are PipeDream-2BW (arXiv 2006.09503).
    """
    for rank in range(schedule.ranks):
        program = schedule.program(rank)
        kinds, units = kinds_of(program), microbatches_of(program)
        spots = np.flatnonzero(kinds == STEP_KIND)
        steps = _RankSteps(schedule, rank, kinds, units, spots)
        # A file may claim more iterations than fit in memory.
        if len(spots) != schedule.iterations or (units[spots] != np.arange(len(spots))).any():
            _sequence(steps, found)
            continue
        # Microbatches that do not exist belong to no iteration; they are reported as such.
        kinds[(units < 0) | (units >= schedule.units)] = STEP_KIND
        _gradients(steps, found)
        _weights(steps, found)


def _sequence(steps: _RankSteps, found: Findings) -> None:
    """Report steps of a rank that are missing, repeated or out of order."""
    schedule = steps.schedule
    count, seen = schedule.iterations, steps.units[steps.spots]
    stages = schedule.placement.stages_on(steps.rank)
    stage = stages[0] if stages else 0

    def absent(iteration: int) -> Problem:
        text = str(Action(stage, STEP_KIND, iteration))
        return Problem(
            "optimizer",
            f"rank {steps.rank} has no optimizer step for iteration {iteration}",
            steps.rank,
            None,
            (text,),
            f"add {text} after the last backward of that iteration",
        )

    def misplaced(item: int) -> Problem:
        if not 0 <= seen[item] < count:
            what, fix = "steps an iteration that does not exist", f"they go to {count - 1}"
        elif again[item]:
            what, fix = "steps an iteration that was stepped before", "remove one of the two"
        else:
            what, fix = "comes after the step of a later iteration", "order steps by iteration"
        return spot(schedule, steps.begin + steps.spots[item]).problem("optimizer", what, fix)

    again = np.ones(len(seen), dtype=bool)
    again[np.unique(seen, return_index=True)[1]] = False
    outside = (seen < 0) | (seen >= count)
    highest = np.maximum.accumulate(np.where(outside, -1, seen)) if len(seen) else seen
    late = seen < highest
    found.add_gaps("optimizer", np.unique(seen[~outside]), count, absent)
    found.add("optimizer", np.flatnonzero(outside | again | late), misplaced)


def _gradients(steps: _RankSteps, found: Findings) -> None:
    """Report backwards on the wrong side of a step."""
    schedule, kinds, units = steps.schedule, steps.kinds, steps.units
    period, begin, done = period_of(schedule), steps.begin, steps.done
    weight = np.isin(kinds, WEIGHT_KINDS)
    lost = (weight | np.isin(kinds, GRADIENT_KINDS)) & (units < done * period)
    mixed = weight & (units >= (done + 1) * period) & (done < schedule.iterations)

    def describe(position: int) -> Problem:
        here = spot(schedule, position)
        iteration = int(units[position - begin]) // period
        if lost[position - begin]:
            step = spot(schedule, begin + steps.spots[iteration]).text
            what = f"comes after {step}, the step that needs its gradient"
            return here.problem("optimizer", what, f"move {here.text} before {step}", step)
        step = spot(schedule, begin + steps.spots[iteration - 1]).text
        what = f"comes before {step}, so that gradients of two iterations are added up"
        return here.problem("optimizer", what, f"move {here.text} after {step}", step)

    found.add("optimizer", np.flatnonzero(lost | mixed) + begin, describe)


def _weights(steps: _RankSteps, found: Findings) -> None:
    """Report forwards whose weights are gone before their backward."""
    schedule, units, done, begin = steps.schedule, steps.units, steps.done, steps.begin
    period, versions = period_of(schedule), schedule.versions[steps.rank]
    early = (steps.kinds == FORWARD_KIND) & (units >= (done + versions) * period)

    def describe(position: int) -> Problem:
        iteration = int(units[position - begin]) // period
        between = iteration - int(done[position - begin])
        kept = "1 version is" if versions == 1 else f"{versions} versions are"
        return spot(schedule, position).problem(
            "weight-versions",
            f"is {between} optimizer step{'' if between == 1 else 's'} ahead of its "
            f"backward, which takes {between + 1} versions of the weights; {kept} kept",
            f"run it after the step of iteration {iteration - versions}, "
            f"or make the schedule with weight_versions={between + 1}",
        )

    found.add("weight-versions", np.flatnonzero(early) + begin, describe)
