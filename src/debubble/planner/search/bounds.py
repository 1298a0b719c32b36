"""Times and bytes that no plan of a kind, or a candidate, gets below, without simulating any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.engine.timeline import simulate
from debubble.planner.candidate import Candidate, recomputed_layers
from debubble.planner.cost.stage_costs import model_times
from debubble.planner.memory.activations import stage_activations
from debubble.planner.memory.buffers import least_held
from debubble.planner.memory.in_flight import in_flight
from debubble.planner.memory.peaks import fragmentation, margin
from debubble.planner.memory.state import stage_states
from debubble.planner.plannable import placement_of, splits_backwards
from debubble.planner.request import PlanRequest
from debubble.planner.search.choices import Setting
from debubble.planner.search.groups import CandidateGroup
from debubble.planner.search.stages import Stages, stages_of
from debubble.schedules import registry

Floats: TypeAlias = NDArray[np.float64]
Cut: TypeAlias = tuple[int, ...]


def least_time(request: PlanRequest, alone: Candidate, pp: int) -> float:
    """Return seconds below which no schedule and no layer split over `pp` ranks brings a step.

    Some rank does at least the average of all work; nothing else is counted.
    """
    return sum(model_times(request.case(alone))) * alone.microbatches / pp


def pipeline_bound(request: PlanRequest, candidate: Candidate) -> float:
    """Return seconds below which no order of a candidate's stages brings its pipeline.

    Before a rank's first action all stages before its first one run once, then it does its work,
    and after its last backward those stages run a backward each. Where backwards are split, what a
    rank does for its weights may fill that time.
    """
    ahead = stages_of(request, candidate).ahead
    passed = ahead.forward if splits_backwards(candidate.schedule) else ahead.both
    return float((candidate.microbatches * ahead.work + passed).max())


def least_step_of(request: PlanRequest, candidate: Candidate) -> float:
    """Return seconds below which no order of a candidate's stages brings its step.

    By the bound of its pipeline, and by the step's ends, which do not depend on the order: a rank
    sums its gradients after all of its work.
    """
    stages = stages_of(request, candidate)
    worked = candidate.microbatches * stages.ahead.work + stages.ahead.forward
    pipeline = pipeline_bound(request, candidate) + float(stages.gradients.min())
    return max(pipeline, float((worked + stages.gradients).max())) + stages.after


def time_in_memory(request: PlanRequest, candidate: Candidate, limit: float) -> float:
    """Return seconds below which no order within `limit` bytes brings a candidate's pipeline.

    Memory as area: every activation stays for at least as long as a lone microbatch takes from its
    stage to the loss and back, and those of a rank fit into its free memory times the makespan.
    """
    stages = stages_of(request, candidate)
    stays = (stages.times[0] + stages.times[1])[::-1].cumsum()[::-1]
    share = 1 + fragmentation(request.training)
    areas = share * np.bincount(stages.homes, stages.stored * stays)
    free = limit - standing_of(request, candidate)
    if free.min() <= 0:
        return math.inf
    return candidate.microbatches * float((areas / free).max())


def pipeline_bounds(request: PlanRequest, candidate: Candidate, cuts: Sequence[Cut]) -> Floats:
    """Return :func:`pipeline_bound` with several cuts in place of the candidate's."""
    stages = stages_of(request, candidate)
    return bounds_of_cuts(
        stages, cuts, candidate.microbatches, split=splits_backwards(candidate.schedule)
    )


def bounds_of_cuts(
    stages: Stages, cuts: Sequence[Cut], microbatches: int, *, split: bool
) -> Floats:
    """Return bounds of pipelines of several cuts, with backwards whole or `split`."""
    ahead = stages.ahead_of(np.array(cuts))
    passed = ahead.forward if split else ahead.both
    bounds: Floats = (microbatches * ahead.work + passed).max(axis=1)
    return bounds


def homes_of(candidate: Candidate) -> tuple[int, ...]:
    """Return the rank of every stage."""
    return _homes(candidate.schedule, candidate.degrees.pp, candidate.degrees.chunks)


@lru_cache(maxsize=4096)
def _homes(name: str, ranks: int, chunks: int) -> tuple[int, ...]:
    return tuple(placement_of(name, ranks, chunks).ranks_of_stages.tolist())


def turns_of(group: CandidateGroup) -> float:
    """Return the least time of a group's pipelines, in times of one microbatch's work."""
    ranks, microbatches = group.degrees.pp, group.microbatches
    slow = group.choices.all_fill_slowly
    return least_turns(ranks, microbatches) if slow else microbatches / ranks


def least_turns(ranks: int, microbatches: int) -> float:
    """Return the least time of a pipeline that fills slowly, in times of one microbatch's work.

    Whatever the work w of each rank: each rank r takes m·w(r) and all w ahead of it. The longest of
    these is shortest where they are equal, with w(r) falling by 1 − 1/m from rank to rank.
    """
    return 1 / (1 - (1 - 1 / microbatches) ** ranks)


@cache
def saves_memory(name: str) -> bool:
    """Return whether a schedule holds less than 1F1B, as a larger pipeline shows."""
    ranks = 16
    made = registry.make(name, ranks=ranks, microbatches=2 * ranks)
    return float(simulate(made).peak_activation.max()) < 0.8 * ranks


def least_memory(request: PlanRequest, alone: Candidate, pp: int) -> float:
    """Return bytes below which the fullest of `pp` ranks does not get.

    The sum of the margin and two averages over ranks: of static memory, and of one microbatch's
    activations, all of which are there when its first backward starts.
    """
    held = least_state(request, alone) + least_activations(request, alone)
    return held / pp + margin(request.training)


def least_state(request: PlanRequest, alone: Candidate) -> float:
    """Return bytes of weights, gradients and optimizer states of a model on one stage."""
    (state,) = stage_states(request.case(alone))
    return state.total


def least_activations(request: PlanRequest, alone: Candidate) -> float:
    """Return bytes of activations of one microbatch of a model on one stage."""
    if recomputed_layers(alone.recompute) is not None:
        alone = alone.recomputing("full")  # the first N of every stage may be all
    (held,) = stage_activations(request.case(alone))
    return held.stored


class LeastMemory:
    """Bytes below which no candidate of a group gets."""

    def __init__(self, request: PlanRequest) -> None:
        self.request = request
        self._states: dict[tuple[int, ...], float] = {}
        self._held: dict[tuple[object, ...], float] = {}

    def of(self, group: CandidateGroup, *settings: Setting) -> float:
        """Return what :func:`least_memory` does with least state and, apart, least activations.

        Of some settings, or of all.
        """
        degrees, request = group.degrees, self.request
        tp, cp, ep = degrees.tp, degrees.cp, degrees.ep
        recomputes, zeros = map(set, zip(*(settings or group.all_settings), strict=True))
        states, held = [], []
        for zero in zeros:
            key = tp, cp, ep, degrees.dp, zero
            if key not in self._states:
                self._states[key] = least_state(request, group.alone(("full", zero)))
            states.append(self._states[key])
        for recompute in recomputes:
            own = tp, cp, ep, group.microbatch_size, recompute
            if own not in self._held:
                self._held[own] = least_activations(request, group.alone((recompute, 0)))
            held.append(self._held[own])
        return (min(states) + min(held)) / degrees.pp + margin(request.training)


def least_peaks(request: PlanRequest, candidate: Candidate) -> NDArray[np.float64] | None:
    """Return bytes below which no rank of a candidate stays; shape ``(pp,)``.

    :func:`standing_of` and the activations of the microbatches in flight, with fragmentation: all
    but logits, other buffers of transfers, and recomputed activations. If the schedule depends on
    costs, one microbatch is counted. None for schedules that are too long to count.
    """
    degrees, stages = candidate.degrees, stages_of(request, candidate)
    counts = in_flight(
        candidate.schedule, degrees.pp, candidate.microbatches, degrees.chunks, stages.case.engine
    )
    if counts is None and not candidate.uses_costs:
        return None
    held = (
        np.bincount(stages.homes, stages.stored)
        if counts is None
        else counts.peaks(stages.stored, stages.kept)
    )
    return standing_of(request, candidate) + (1 + fragmentation(request.training)) * held


def standing_of(request: PlanRequest, candidate: Candidate) -> Floats:
    """Return bytes that every rank holds at any time; shape ``(pp,)``.

    Static memory, and the tensors between stages that the runtime keeps for the whole step.
    """
    stages, share = stages_of(request, candidate), 1 + fragmentation(request.training)
    count = least_held(candidate.microbatches)
    found: Floats = stages.standing + share * count * stages.buffered
    return found
