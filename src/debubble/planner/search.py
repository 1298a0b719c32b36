"""The best plans among all candidates, and what proves that none that was left out is better."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache

from debubble.core.actions import Kind
from debubble.core.errors import DebubbleError
from debubble.core.kinds import kind_bits
from debubble.engine.exist import survey_of
from debubble.planner.activations import stage_activation
from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.degrees import Group, Setting, Split
from debubble.planner.memory import margin
from debubble.planner.plan import Asked, Plan, finished, timed, with_peaks
from debubble.planner.stage_costs import stage_times
from debubble.planner.state import stage_state
from debubble.schedules import registry

Progress = Callable[["Found"], None]
"""Is told, now and then, what has been found so far."""


@dataclass
class Found:
    """What a search has found.

    Parameters
    ----------
    plans
        The best plans that fit, fastest first.
    near
        The fastest plans that do not fit.
    considered
        Number of candidates that were decided on.
    simulated
        How many of them ran in the engine.
    left_out
        How many were left out, by reason.
    interrupted
        Whether the search was stopped; then other candidates may be better.
    """

    top: int
    plans: list[Plan] = field(default_factory=list)
    near: list[Plan] = field(default_factory=list)
    considered: int = 0
    simulated: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def slowest_kept(self) -> float:
        """A candidate that cannot be faster than this cannot be among the plans; in seconds."""
        if len(self.plans) < self.top:
            return math.inf
        return max(plan.step_time for plan in self.plans)

    def leave_out(self, reason: str, count: int = 1, *, simulated: bool = False) -> None:
        """Count candidates that were left out."""
        self.left_out[reason] = self.left_out.get(reason, 0) + count
        self.considered += count
        self.simulated += count * simulated

    def take(self, plan: Plan) -> None:
        """Keep a plan if it is among the best."""
        self.considered += 1
        self.simulated += 1
        kept = self.plans if plan.fits else self.near
        alike = next((one for one in kept if _alike(one) == _alike(plan)), None)
        if alike is not None and _rank(alike) <= _rank(plan):
            self._leave(plan)
            return
        if alike is not None:
            kept.remove(alike)
            self._leave(alike)
        kept.append(plan)
        kept.sort(key=_rank)
        if len(kept) > self.top:
            self._leave(kept.pop())

    def _leave(self, plan: Plan) -> None:
        reason = SLOWER if plan.fits else TOO_LARGE
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def _alike(plan: Plan) -> tuple[Degrees, int, str]:
    """Of plans with the same, only the best is kept, so that the others are real alternatives."""
    candidate = plan.candidate
    return replace(candidate.degrees, chunks=1), candidate.microbatch_size, candidate.schedule


USUAL_ZERO = 1
"""The level of ZeRO that every framework has."""


def _rank(plan: Plan) -> tuple[float, int, int, float]:
    """Faster first; of plans as fast as each other the simpler one, then the smaller."""
    candidate = plan.candidate
    unusual = abs(candidate.zero - USUAL_ZERO)
    return float(f"{plan.step_time:.3g}"), candidate.degrees.chunks, unusual, max(plan.peaks)


SLOWER = "simulated, and slower"
TOO_LARGE = "simulated, and too large for the memory"
NO_ROOM = "weights and optimizer states alone are too large"
BOUND = "cannot be faster, whatever the schedule and the layer split"
SLOW_PIPELINE = "cannot be faster with these stages, whatever the order"
NO_ORDER = "no order of the schedule for these sizes and this memory"
"""Reasons for which candidates are left out."""


@dataclass(frozen=True, order=True)
class Batch:
    """Candidates of one group with one setting: the same work in the same bytes of weights.

    `bound` is a time in seconds that none of them is faster than.
    """

    bound: float
    number: int
    group: Group = field(compare=False)
    setting: Setting = field(compare=False)

    @cached_property
    def count(self) -> int:
        """How many candidates there are."""
        return sum(len(splits) for _, splits in self._orders())

    def candidates(self) -> Iterator[Candidate]:
        """The candidates."""
        group = self.group
        for schedule, splits in self._orders():
            for chunks, layers in splits:
                yield Candidate(
                    replace(group.degrees, chunks=chunks), group.microbatch_size,
                    group.microbatches, schedule, layers, *self.setting,
                )  # fmt: skip

    def _orders(self) -> Iterator[tuple[str, tuple[Split, ...]]]:
        """Orders that go with the setting, by schedule."""
        for schedule, splits in self.group.orders.items():
            if self.setting in self.group.settings[schedule]:
                yield schedule, splits


def search(
    asked: Asked,
    groups: Iterable[Group],
    top: int = 10,
    progress: Progress | None = None,
) -> Found:
    """The fastest plans that fit, out of all candidates of `groups`.

    Candidates that differ only in schedule, chunks and layer split do the same work with the same
    weights. That gives one bound for all of them, the lowest of which come first; when the next
    bound is above the slowest plan to be kept, no candidate that is left can be among the best.
    Ctrl-C ends the search with the best so far, as does a `progress` that raises
    KeyboardInterrupt.
    """
    found = Found(top)
    tell = progress or _silent
    batches: list[Batch] = []
    try:
        for group in groups:
            batches += _bounded(asked, group, len(batches), found)
            tell(found)
        heapq.heapify(batches)
        while batches and batches[0].bound < found.slowest_kept:
            for candidate in heapq.heappop(batches).candidates():
                _try(asked, candidate, found)
                tell(found)
        if batches:
            found.leave_out(BOUND, sum(rest.count for rest in batches))
    except KeyboardInterrupt:
        found.interrupted = True
    found.plans = [finished(asked, plan) for plan in found.plans]
    found.near = [finished(asked, plan) for plan in found.near]
    return found


def _bounded(asked: Asked, group: Group, number: int, found: Found) -> Iterator[Batch]:
    """The batches of a group with their bounds, without those that have no room."""
    for setting in dict.fromkeys(one for each in group.settings.values() for one in each):
        alone = _on_one_rank(asked, group, setting)
        batch = Batch(least_time(asked, alone, group.degrees.pp), number, group, setting)
        if least_memory(asked, alone, group.degrees.pp) > asked.limit:
            found.leave_out(NO_ROOM, batch.count)
        else:
            number += 1
            yield batch


def _try(asked: Asked, candidate: Candidate, found: Found) -> None:
    if found.plans and pipeline_bound(asked, candidate) >= found.slowest_kept:
        found.leave_out(SLOW_PIPELINE)
        return
    try:
        plan, timeline = timed(asked, candidate)
        if plan.step_time >= found.slowest_kept:
            found.leave_out(SLOWER, simulated=True)
            return
        plan = with_peaks(asked, plan, timeline)
    except DebubbleError:
        found.leave_out(NO_ORDER)
    else:
        found.take(plan)


def _silent(found: Found) -> None:
    """Tell nobody."""


def _on_one_rank(asked: Asked, group: Group, setting: Setting) -> Candidate:
    """A candidate with all layers on one stage, in the same groups otherwise."""
    return Candidate(
        replace(group.degrees, pp=1, chunks=1), group.microbatch_size, group.microbatches, "1f1b",
        (len(asked.model.layers),), *setting,
    )  # fmt: skip


def least_time(asked: Asked, alone: Candidate, pp: int) -> float:
    """Seconds below which no schedule and no layer split over `pp` ranks brings a step.

    Some rank does at least the average of all work; nothing else is counted.
    """
    (whole,) = stage_times(
        asked.model, asked.cluster, asked.training, alone, asked.factors
    )  # fmt: skip
    return (whole.F + whole.I + whole.W) * alone.microbatches / pp


def pipeline_bound(asked: Asked, candidate: Candidate) -> float:
    """Seconds below which no order of a candidate's stages brings its pipeline.

    Before a rank's first action all stages before its first one run once, then it does its work,
    and after its last backward those stages run a backward each. Where backwards are split, what a
    rank does for its weights may fill that time.
    """
    times = stage_times(
        asked.model, asked.cluster, asked.training, candidate, asked.factors
    )  # fmt: skip
    degrees, m = candidate.degrees, candidate.microbatches
    homes, split = _pipeline(candidate.schedule, degrees.pp, degrees.chunks)
    work, before = [0.0] * degrees.pp, [-1.0] * degrees.pp
    passed = 0.0
    for rank, one in zip(homes, times, strict=True):
        if before[rank] < 0:
            before[rank] = passed
        work[rank] += m * (one.F + one.I + one.W)
        passed += one.F if split else one.F + one.I + one.W
    return max(map(sum, zip(work, before, strict=True)))


@lru_cache(maxsize=4096)
def _pipeline(name: str, ranks: int, chunks: int) -> tuple[tuple[int, ...], bool]:
    """The rank of every stage, and whether backwards are split."""
    placement = registry.find(name).placement(ranks, chunks)
    return tuple(placement.ranks_of_stages.tolist()), _splits(name)


@cache
def _splits(name: str) -> bool:
    """Whether a schedule has backwards in two parts, looked up in a small one."""
    made = registry.make(name, ranks=2, microbatches=8)
    return bool(survey_of(made).kinds & kind_bits((Kind.I, Kind.W)))


def least_memory(asked: Asked, alone: Candidate, pp: int) -> float:
    """Bytes below which the fullest of `pp` ranks does not get.

    The average over ranks of what stays all the time and of one microbatch's activations, all of
    which are there when its first backward starts; and the margin.
    """
    state = stage_state(asked.model, asked.training, alone, 0)
    stored = stage_activation(asked.model, asked.training, alone, 0).stored
    return (state.total + stored) / pp + margin(asked.training)
