"""One step of a case: its simulated pipeline, and its ends, which nothing hides.

The ends are gradient sums, the optimizer, and new weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from debubble.core.placement import Placement
from debubble.engine.timeline import Timeline, simulate
from debubble.planner.case import Case
from debubble.planner.cost.layer_times import INTERFERENCE
from debubble.planner.cost.stage_costs import stage_costs
from debubble.planner.hardware.kernel_times import memory_rate
from debubble.planner.hardware.links import NETWORK, all_gather, all_reduce
from debubble.planner.memory.state import (
    gathered_bytes,
    gradient_bytes,
    parameters_of,
)
from debubble.schedules import registry

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

GRADIENT_BYTES = 20
"""Bytes of an optimizer step per parameter for its fp32 gradient: read for the norm, read and
written to clip it, read by Adam, and set to zero."""
WEIGHT_BYTES = 14
"""Bytes of an optimizer step per parameter for weights: the fp32 weight is read and written, then
read again and written in 16 bits."""
SCALED_BYTES = 14
"""Bytes per parameter that fp16 adds: gradients are copied to fp32, checked and divided by the
loss's scale."""

OFFLOADED_BYTES = 28
"""Bytes of an optimizer step per parameter on the host, in fp32: Adam reads weight, gradient and
moments, and writes all but the gradient. Hosts read their memory about as fast as their links to
GPUs take. Gradients and new weights go over these links, too."""


@dataclass(frozen=True)
class StepEnds:
    """Seconds of every rank that nothing hides."""

    gradients: tuple[float, ...]
    """Seconds from the end of a rank's last action until the replicas' gradients are summed."""
    optimizer: tuple[float, ...]
    weights: tuple[float, ...]
    """Seconds to gather the new weights, before the next step's first forward."""


@dataclass(frozen=True)
class Step:
    """The simulated pipeline of a step with its overheads."""

    seconds: float
    timeline: Timeline
    ends: StepEnds


def step_time(case: Case) -> Step:
    """Return seconds of one optimizer step: the engine's timeline and the overheads after it."""
    candidate, degrees, costs = case.candidate, case.degrees, stage_costs(case)
    schedule = registry.make(
        candidate.schedule, ranks=degrees.pp, microbatches=candidate.microbatches, costs=costs,
        chunks=degrees.chunks if degrees.chunks > 1 else None,
    )  # fmt: skip
    return step_of(case, simulate(schedule, costs))


def step_of(case: Case, timeline: Timeline) -> Step:
    """Return the step whose pipeline was simulated with costs of :func:`stage_costs`.

    When the last rank has its gradients, the optimizer runs, and then weights are gathered.
    """
    costs, schedule = timeline.table.costs, timeline.schedule
    assert isinstance(costs.I, tuple)
    assert isinstance(costs.W, tuple)
    backward = tuple(i + w for i, w in zip(costs.I, costs.W, strict=True))
    ends = step_ends(case, backward, schedule.placement)
    last = timeline.end[schedule.offsets[1:] - 1].tolist()
    ready = max(end + wait for end, wait in zip(last, ends.gradients, strict=True))
    return Step(float(ready + max(ends.optimizer) + max(ends.weights)), timeline, ends)


def step_ends(case: Case, backward: tuple[float, ...], placement: Placement) -> StepEnds:
    """Return the overheads of a step on every rank.

    Gradients that are reduced during other work show the time beyond the backward of the
    rank's last stage, and at least one layer's; those that every microbatch scatters, one layer's.
    Without overlap everything shows.

    `backward` are the seconds of one microbatch's backward on every stage, during which gradients
    are reduced.
    """
    cuts = np.array([case.candidate.layers])
    ends = ends_of_cuts(case, cuts, np.array([backward]), placement)
    return StepEnds(*(tuple(each[0].tolist()) for each in ends))


def ends_of_cuts(
    case: Case, cuts: Integers, backward: Floats, placement: Placement
) -> tuple[Floats, Floats, Floats]:
    """Return what :func:`step_ends` does for several cuts in place of the candidate's.

    `cuts` and `backward` have shape ``(cuts, stages)``, the results shape ``(cuts, ranks)``.
    """
    candidate, training, gpu = case.candidate, case.training, case.gpu
    hides = training.runtime.hides_replicas or candidate.zero == 0
    hidden = training.overlap_dp and hides
    if not hidden:
        gpu = replace(gpu, nic=gpu.nic * training.runtime.end_network / NETWORK)
    shards, experts = case.group("shards"), case.group("expert_dp")
    split = candidate.zero >= 1
    reduce = all_gather if split and not training.runtime.reduces_whole else all_reduce

    wide = gathered_bytes(training)
    own = parameters_of(case.model, training, case.degrees, cuts, candidate.mtp_at)
    dense, routed = own[..., 0], own[..., 1]

    def shared(part: complex) -> tuple[float, float]:
        """Return seconds to reduce gradients and to gather weights."""
        return (
            reduce(gpu, shards, training.gradient_bytes * part.real)
            + reduce(gpu, experts, training.gradient_bytes * part.imag),
            all_gather(gpu, shards, wide * part.real) + all_gather(gpu, experts, wide * part.imag),
        )

    # Most stages are like others.
    pairs = (dense + 1j * routed).ravel().tolist()
    kinds = {part: shared(part) for part in set(pairs)}
    both = np.array([kinds[part] for part in pairs]).reshape(*cuts.shape, 2)
    reduced, gathered = both[..., 0], both[..., 1]
    per_parameter = WEIGHT_BYTES + 4 * training.moment_bytes + GRADIENT_BYTES
    per_parameter += SCALED_BYTES * (training.precision == "fp16")
    homes, stages, last = _stages_of(placement)
    layers = np.maximum(cuts, 1)[:, last]
    rows = np.arange(len(cuts))[:, None] * placement.ranks + homes

    def by_rank(each: Floats) -> Floats:
        """Return the sums over the stages of every rank."""
        size = len(cuts) * placement.ranks
        found = np.bincount(rows.ravel(), each[:, stages].ravel(), size).astype(np.float64)
        sums: Floats = found.reshape(len(cuts), -1)
        return sums

    # The stage that comes first in the model ends the step and begins the next.
    beside = backward[:, last]
    first, late = gathered[:, last] / layers, reduced[:, last] / layers
    if case.scatters:
        gradients = late
    elif hidden:
        gradients = np.maximum(reduced[:, last] - beside, late) + INTERFERENCE * by_rank(reduced)
    else:
        gradients = by_rank(reduced)
    if candidate.zero >= 3:
        weights = first
    elif hidden:
        weights = np.maximum(gathered[:, last] - beside / 2, first)
        weights = (weights + INTERFERENCE * by_rank(gathered)) * split
    else:
        weights = by_rank(gathered) * split
    # The optimizer reads and writes every rank's share of all states.
    here, others = by_rank(dense), by_rank(routed)
    share = here / shards.size + others / experts.size if split else here + others
    if training.offload_optimizer:
        optimizer = share * (OFFLOADED_BYTES + gradient_bytes(training) + wide) / gpu.host
    else:
        optimizer = per_parameter * share / memory_rate(gpu)
    return gradients, optimizer, weights


@lru_cache(maxsize=4096)
def _stages_of(placement: Placement) -> tuple[Integers, Integers, Integers]:
    """Return rank and stage of all stages of every copy, and the first stage of every rank."""
    homes = np.array(placement.table).ravel()
    stages = np.tile(np.arange(placement.stages), placement.copies)
    last = np.full(placement.ranks, placement.stages)
    np.minimum.at(last, homes, stages)
    return homes, stages, last
