"""Memory of every rank over time, in bytes, as a schedule's simulation makes it.

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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import unpack
from debubble.core.costs import Costs
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline
from debubble.planner.candidate import Training
from debubble.planner.case import Case
from debubble.planner.memory.activations import logits_bytes, stage_activations
from debubble.planner.memory.buffers import buffers, growth
from debubble.planner.memory.memory_events import Moments
from debubble.planner.memory.state import TrainingState, head_state, stage_states

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


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Memory of one rank over time, in bytes per GPU; arrays have shape ``(n,)``."""

    times: Floats
    """Starts and ends of the rank's actions in turn; amounts are from each time to the next."""
    positions: NDArray[np.int64]
    """Position in the schedule of the action that starts or ends at each time; of an overlapped
    pair that of the first."""
    activations: Floats
    buffers: Floats
    logits: Floats
    state: TrainingState
    """Bytes that are there all the time."""
    fixed: float
    """The part of the margin that is there all the time."""
    fragmentation: float
    """Share of what changes that lies unused between tensors."""

    @property
    def margin(self) -> Floats:
        """Bytes that no formula itemizes, from each time on."""
        return self.fixed + self.fragmentation * (self.activations + self.buffers + self.logits)

    @property
    def total(self) -> Floats:
        """The sum of all parts from each time on."""
        changing: Floats = self.activations + self.buffers + self.logits
        return changing + self.margin + self.state.total


def memory_of(case: Case, timeline: Timeline) -> tuple[RankMemory, ...]:
    """Return the largest memory of every rank with its parts, in bytes per GPU.

    The timeline is one step of the candidate's schedule, simulated with any costs in time.
    """
    found, schedule = [], timeline.schedule
    for rank, curve in enumerate(memory_curves(case, timeline)):
        total, state = curve.total, curve.state
        at = int(np.argmax(total))
        action = schedule.text(unpack(schedule.actions[curve.positions[at]]))
        changing = {
            name: float(getattr(curve, name)[at])
            for name in ("activations", "buffers", "logits", "margin")
        }
        found.append(
            RankMemory(
                rank=rank, peak=float(total[at]), weights=state.weights, gradients=state.gradients,
                optimizer=state.optimizer, **changing, at=Moment(action, float(curve.times[at])),
                room=case.gpu.memory - float(total[at]),
            )
        )  # fmt: skip
    return tuple(found)


def peaks_of(case: Case, timeline: Timeline) -> Floats:
    """Return the peaks of :func:`memory_of` alone, shape ``(ranks,)``."""
    _, changing = _sum_of_changing(case, timeline)
    return _with_rest(case, timeline.schedule, changing.max(axis=1))


def peaks_with_more(case: Case, timeline: Timeline) -> Floats | None:
    """Return :func:`peaks_of` with all of a case's microbatches from a timeline of fewer rounds.

    Of a runtime whose tensors stay until the end of the step, and a schedule that leaves as many
    activations in flight with more rounds, see :func:`debubble.planner.memory.in_flight.is_steady`.
    None where a rank's memory is largest in the first third, which is not like all later ones.
    """
    schedule, microbatches = timeline.schedule, case.candidate.microbatches
    if microbatches % schedule.ranks:
        return None
    moments, changing = _sum_of_changing(case, timeline)
    most = changing.max(axis=1)
    for rank, count in enumerate((2 * moments.work.counts).tolist()):
        if changing[rank, count // 3 :].max() < most[rank]:
            return None
    grows = growth(moments.work, schedule.microbatches, case.training.runtime)
    more = microbatches - schedule.microbatches
    most += grows * (more * stage_activations(case)[0].boundary)
    return _with_rest(case, schedule, most)


def _sum_of_changing(case: Case, timeline: Timeline) -> tuple[Moments, Floats]:
    """Return activations, buffers and logits together."""
    moments, changing, buffered, logits = _changing(case, timeline)
    changing += buffered
    changing += logits
    return moments, changing


def _with_rest(case: Case, schedule: Schedule, changing: Floats) -> Floats:
    """Return the largest memory of every rank, from the most that changes."""
    spare = margin(case.training) + fragmentation(case.training) * changing
    state = [one.total for one in rank_states(case, schedule)]
    found: Floats = changing + spare + np.array(state)
    return found


def memory_curves(case: Case, timeline: Timeline) -> Iterator[MemoryCurve]:
    """Yield memory of every rank over time, see :func:`memory_of`."""
    moments, *parts = _changing(case, timeline)
    for rank, state in enumerate(rank_states(case, timeline.schedule)):
        times, heads = moments.times(rank), moments.work.heads[moments.groups(rank)]
        activations, buffered, logits = (part[rank, : len(times)] for part in parts)
        yield MemoryCurve(
            times, np.repeat(heads, 2), activations, buffered, logits, state,
            margin(case.training), fragmentation(case.training),
        )  # fmt: skip


def _changing(case: Case, timeline: Timeline) -> tuple[Moments, Floats, Floats, Floats]:
    """Return activations, buffers and logits of every rank from every moment on."""
    schedule, training = timeline.schedule, case.training
    own, costs = timeline.table.costs, memory_costs(case)
    if any(getattr(own, name) != costs.get(name, getattr(UNIT, name)) for name in MEMORY_COSTS):
        # Times stay; only what actions take and free is this model's.
        timeline = replace(timeline, table=Costs(**costs).table(schedule))
    moments = Moments(timeline)
    return (
        moments,
        _activations(moments, case),
        buffers(moments, stage_activations(case)[0].boundary, training.runtime),
        _logits(moments, logits_bytes(case) / schedule.slices, _held_logits(training)),
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


def rank_states(case: Case, schedule: Schedule) -> list[TrainingState]:
    """Return weights, gradients and optimizer states of all stages of every rank.

    Bidirectional schedules have two copies of the model, schedules without a flush several versions
    of the weights. Where the vocabulary is sharded, every rank has its part of the head.
    """
    sums = np.zeros((schedule.ranks, 3))
    parts = [(one.weights, one.gradients, one.optimizer) for one in stage_states(case)]
    for row in schedule.placement.table:
        np.add.at(sums, np.array(row), parts)
    states = [TrainingState(*one) for one in sums.tolist()]
    if schedule.vocabulary:
        last = schedule.placement.table[0][-1]
        for rank in range(schedule.ranks):
            states[rank] += head_state(case, 1 / schedule.ranks - (rank == last))
    versions = zip(states, schedule.stored_versions, strict=True)
    return [
        replace(state, weights=state.weights * count) if count > 1 else state
        for state, count in versions
    ]


def _activations(moments: Moments, case: Case) -> Floats:
    """Return activations in flight by the engine, and those of running backwards.

    Backwards hold what B and I recompute, and what W needs beyond what is stored.
    """
    timeline, schedule, work = moments.timeline, moments.schedule, moments.work
    if timeline.graph.has_copies:
        copied = [change for rank in range(schedule.ranks) for change in _copied(moments, rank)]
        held = moments.held(*copied)
        taken, freed = np.zeros((2, len(work.program)))
    else:
        use = timeline.memory
        held = np.zeros(1)
        taken, freed = use.changes(schedule, use.actions[work.positions])
    each = stage_activations(case)
    again = np.array([[one.recomputed, one.recomputed_for_input] for one in each]).T
    over = np.array([max(one.kept_for_weight - one.stored, 0.0) for one in each])
    again, over = again / schedule.slices, over / schedule.slices
    if again.any() or over.any():
        split, weights, whole = moments.backwards(
            case.training.runtime.engine, case.whole_backwards
        )
        for run, back in ((whole, again[0]), (split, again[1])):
            amounts = back[work.stages[run]]
            taken[run] += amounts
            freed[run] -= amounts
        if over.any() and split.any():
            freed[split] += over[work.stages[split]]
            freed[weights] -= over[work.stages[weights]]
    found = moments.taken(taken, freed)
    found += held
    return found


def _copied(moments: Moments, rank: int) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    """Yield changes of a rank's activations where copies take and free some."""
    times, held = moments.timeline.memory_curve(rank)
    steps = np.diff(held, prepend=0.0)
    taken = steps > 0
    yield moments.during(times[taken], rank), steps[taken]
    yield moments.before(times[~taken], rank) + 1, steps[~taken]


def _logits(moments: Moments, size: float, share: float) -> Floats:
    """Return logits where the head runs: all of them then, a share from forward to backward."""
    work, (forward, backward) = moments.work, moments.work.head
    if moments.schedule.vocabulary:
        size /= moments.schedule.ranks
    held = size * share
    return moments.held(
        (work.starts[forward], size),
        (work.stops[forward], held - size),
        (work.starts[backward], size - held),
        (work.stops[backward], -size),
    )


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole else 0.0
