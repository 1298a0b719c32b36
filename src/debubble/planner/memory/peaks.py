"""Memory of every rank at its peak, in bytes, as a schedule's simulation makes it.

At any moment a GPU holds weights, gradients and optimizer states
(:mod:`debubble.planner.memory.state`), the activations of the microbatches in flight
(:mod:`debubble.planner.memory.activations`, by the engine's own count of those in flight), the
buffers of transfers (:mod:`debubble.planner.memory.buffers`), the logits of the microbatch whose
head runs, and a margin.

Moments are those of a rank's own program: the start of an action, where it takes memory, and its
end, where it frees some. Tensors from another rank count from the start of the action during which
they arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.costs import Costs
from debubble.core.kind_relations import boundary_offsets
from debubble.core.placement import Placement
from debubble.engine.memory import RECOMPUTED_F
from debubble.engine.timeline import Timeline
from debubble.planner.candidate import Training
from debubble.planner.case import Case
from debubble.planner.memory._moments_kernel import Changes, Peaks, Rest
from debubble.planner.memory.activations import logits_bytes, stage_activations
from debubble.planner.memory.buffers import tensors_of
from debubble.planner.memory.memory_events import backwards, moments_of
from debubble.planner.memory.state import TrainingState, stage_states

Floats = NDArray[np.float64]

MARGIN = 2e9
"""Bytes of a GPU that no formula here itemizes: the driver's context, buffers of the communication
library, workspaces of kernels."""

FRAGMENTATION, GRAPH_FRAGMENTATION = 0.1, 0.3
"""Share of dynamic memory that lies unused between tensors; other planners assume the same. Next to
the pools of CUDA graphs, which share nothing, 59.5 GiB were reserved on top of 210 GiB
(Megatron-Bridge#2221)."""

HELD_LOGITS = 4.0
"""Bytes per logit that stay between the head's forward and its backward: the fp32 softmax."""

HELD_FUSED = 1 / 2
"""Share of a microbatch's logits that stays with a fused loss: the logits in bf16, without their
gradients."""


class Moment(NamedTuple):
    """The moment at which a rank's memory is largest."""

    action: str
    """The action that starts or ends then."""
    time: float
    """In the timeline's unit."""


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank at its peak, in bytes per GPU; the parts add up to `peak`."""

    rank: int
    peak: float
    """The most that one of its GPUs holds at a time, margin included."""
    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    logits: float
    margin: float
    at: Moment
    """The moment of the peak."""
    room: float
    """Bytes that stay free, negative where it does not fit."""

    @property
    def fits(self) -> bool:
        """True if the peak is within the GPU's memory."""
        return self.room >= 0


def memory_of(case: Case, timeline: Timeline) -> tuple[RankMemory, ...]:
    """Return the largest memory of every rank with its parts, in bytes per GPU.

    The timeline is one step of the candidate's schedule, simulated with any costs in time.
    """
    states = rank_states(case, timeline.schedule.placement)
    changes, rest = changes_of(case, timeline), _rest(case, states)
    peaks = moments_of(timeline, changes, rest)
    rows: Iterator[Any] = map(Peaks._make, zip(*(part.tolist() for part in peaks), strict=True))
    found = []
    for rank, (state, one) in enumerate(zip(states, rows, strict=True)):
        buffered = one.tensors * changes.boundary
        changing = one.activations + buffered + one.logits
        action = timeline.schedule.text_at(one.position)
        found.append(
            RankMemory(
                rank=rank, peak=one.total, **state._asdict(), activations=one.activations,
                buffers=buffered, logits=one.logits,
                margin=rest.fixed + rest.fragmentation * changing, at=Moment(action, one.time),
                room=case.gpu.memory - one.total,
            )
        )  # fmt: skip
    return tuple(found)


def peaks_of(case: Case, timeline: Timeline) -> Floats:
    """Return the peaks of :func:`memory_of` alone, shape ``(ranks,)``."""
    rest = _rest(case, rank_states(case, timeline.schedule.placement))
    found: Floats = moments_of(timeline, changes_of(case, timeline), rest).total
    return found


def peaks_with_more(case: Case, timeline: Timeline) -> Floats | None:
    """Return :func:`peaks_of` with all of a case's microbatches from a timeline of fewer rounds.

    Of a runtime whose tensors stay until the end of the step, and a schedule that leaves as many
    activations in flight with more rounds, see :func:`debubble.planner.memory.in_flight.is_steady`.
    None where a rank's memory is largest in the first third, which is not like all later ones.
    """
    schedule, microbatches = timeline.schedule, case.candidate.microbatches
    if microbatches % schedule.ranks:
        return None
    rest = _rest(case, rank_states(case, schedule.placement))
    peaks = moments_of(timeline, changes_of(case, timeline), rest)
    if np.any(peaks.last < 2 * peaks.groups // 3):
        return None
    grows = peaks.left / schedule.microbatches
    more = microbatches - schedule.microbatches
    most = peaks.changing + grows * (more * stage_activations(case)[0].boundary)
    found: Floats = most + (rest.fixed + rest.fragmentation * most) + rest.state
    return found


def _rest(case: Case, states: Sequence[TrainingState]) -> Rest:
    training = case.training
    held = np.array([state.total for state in states])
    return Rest(held, margin(training), fragmentation(training))


def changes_of(case: Case, timeline: Timeline) -> Changes:
    """Return what actions of every kind and stage take and free."""
    schedule, training = timeline.schedule, case.training
    plain = schedule.slices == schedule.placement.copies == 1 and not timeline.graph.has_copies
    assert plain, "plans have one copy of the model, whole microbatches, and activations on GPUs"
    own, costs = timeline.table.costs, memory_costs(case)
    if any(getattr(own, name) != costs.get(name, getattr(UNIT, name)) for name in MEMORY_COSTS):
        # Times stay; only what actions take and free is this model's.
        timeline = replace(timeline, table=Costs(**costs).table(schedule))
    return Changes(
        *_activations(case, timeline),
        *_logits(schedule.stages, logits_bytes(case), _held_logits(training)),
        *tensors_of(schedule, training.runtime),
        stage_activations(case)[0].boundary,
    )


def fragmentation(training: Training) -> float:
    """Return the share of dynamic memory that lies unused between tensors."""
    return GRAPH_FRAGMENTATION if training.graph_pools else FRAGMENTATION


def _held_logits(training: Training) -> float:
    """Return the share of a microbatch's logits that stays from its forward to its backward."""
    return HELD_FUSED if training.fused_loss else HELD_LOGITS / training.runtime.logit_bytes


def margin(training: Training) -> float:
    """Return bytes that no formula itemizes, with the buckets in which a runtime sends shards.

    Pools of CUDA graphs are part of it.

    Gradients are sent as they add up: in fp16, or, of bf16, in fp32.
    """
    gradients = 2 if training.precision == "fp16" else 4
    return MARGIN + training.runtime.bucket * (gradients + 2) + training.graph_pools


def standing(case: Case, placement: Placement) -> NDArray[np.float64]:
    """Return bytes that every rank holds all the time, margin included; shape ``(pp,)``."""
    held = np.full(case.degrees.pp, margin(case.training))
    np.add.at(held, placement.ranks_of_stages, [state.total for state in stage_states(case)])
    return held


MEMORY_COSTS = (
    "activation", "kept_for_weight", "recompute_kept", "offload_share", "kv", "static", "basis",
    "chunks", "runtime",
)  # fmt: skip
"""Costs that decide what actions take and free."""

UNIT = Costs()
"""Costs where none are given."""


def memory_costs(case: Case) -> dict[str, Any]:
    """Return the keywords of :class:`debubble.Costs` on memory, in bytes per stage.

    The part that a stage keeps for W is at most the stored part; :func:`memory_of` counts the rest.
    """
    each, whole = stage_activations(case), case.whole_backwards
    return {
        "activation": tuple(one.stored for one in each),
        "kept_for_weight": tuple(
            0.0 if whole else _share(one.kept_for_weight, one.stored) for one in each
        ),
        "recompute_kept": tuple(_share(one.recompute_kept, one.stored) for one in each),
        "runtime": case.engine,
        "memory_unit": "bytes",
    }


def rank_states(case: Case, placement: Placement) -> list[TrainingState]:
    """Return weights, gradients and optimizer states of all stages of every rank."""
    sums = np.zeros((placement.ranks, 3))
    np.add.at(sums, placement.ranks_of_stages, np.array(stage_states(case)))
    return [TrainingState(*one) for one in sums.tolist()]


def _activations(case: Case, timeline: Timeline) -> tuple[Floats, Floats]:
    """Return activations that actions take and free by the engine, and those of backwards.

    Backwards hold what B and I recompute, and what W needs beyond what is stored.
    """
    use = timeline.memory
    assert use.lengths is None, "all microbatches of a plan are alike"
    taken, freed = use.at_start.copy(), use.at_end.copy()
    each = stage_activations(case)
    again = np.array([[one.recomputed, one.recomputed_for_input] for one in each]).T
    over = np.array([max(one.kept_for_weight - one.stored, 0.0) for one in each])
    if again.any() or over.any():
        kinds, stages = np.divmod(np.arange(taken.size).reshape(taken.shape), taken.shape[1])
        split, weights, whole = backwards(
            kinds, stages, case.training.runtime.engine, case.whole_backwards
        )
        for run, back in ((whole, again[0]), (split, again[1])):
            amounts = back[stages[run]]
            taken[run] += amounts
            freed[run] -= amounts
        freed[split] += over[stages[split]]
        freed[weights] -= over[stages[weights]]
    return taken.ravel(), freed.ravel()


def _logits(stages: int, size: float, share: float) -> tuple[Floats, Floats]:
    """Return logits that the head's actions take and free: all of them run, a share stays.

    The share stays from the forward to the backward.
    """
    taken, freed = np.zeros((2, RECOMPUTED_F + 1, stages))
    held = size * share
    for kind, to in boundary_offsets().items():
        here, after = (0.0, held) if to > 0 else (held, 0.0)
        taken[kind, -1], freed[kind, -1] = size - here, after - size
    return taken.ravel(), freed.ravel()


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole else 0.0
