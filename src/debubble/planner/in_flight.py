"""The fullest moments of a schedule, counted once for all models that it can run.

What is in flight at a moment of a rank's program is the same for every model, parallel degree and
microbatch size; only its bytes differ. :func:`fullest_moments` counts it and keeps the moments that
no other exceeds in everything. The peaks of one candidate are then a product of a small matrix,
without a simulation: that is what a search asks for thousands of times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Kind
from debubble.engine.timeline import Timeline
from debubble.planner.activations import logits_bytes, stage_activations
from debubble.planner.buffers import buffers
from debubble.planner.candidate import Candidate, Training
from debubble.planner.memory import FRAGMENTATION, HELD_LOGITS, margin
from debubble.planner.model import Model
from debubble.planner.moments import Floats, Moments
from debubble.planner.state import stage_states

KINDS = (Kind.F, Kind.I, Kind.W, Kind.B, Kind.OPT)
"""Kinds of schedules whose moments can be counted without a model."""


@dataclass(frozen=True, eq=False)
class FullestMoments:
    """Moments of a schedule's ranks of which one is the fullest, whatever things take.

    Parameters
    ----------
    homes
        How many copies of each stage every rank has; shape ``(ranks, stages)``.
    versions
        Versions of the weights that every rank keeps; shape ``(ranks,)``.
    counts
        What is in flight at each moment of each rank; shape ``(ranks, moments, 3 * stages + 2)``,
        with zeros where a rank has fewer moments than others. Columns are, for all stages in turn,
        microbatches whose activations are stored; then those of which only what W needs is left;
        then those whose backward runs; then logits, and transferred tensors.
    """

    homes: Floats
    versions: NDArray[np.int64]
    counts: Floats


def fullest_moments(timeline: Timeline, runtime: str) -> FullestMoments | None:
    """Count what is in flight at the moments of a step that can be the fullest.

    Parameters
    ----------
    timeline
        One step, simulated with costs whose ratios are near those of the model; only the buffers
        of transfers depend on them.
    runtime
        Who keeps those buffers.

    Returns
    -------
    FullestMoments or None
        None for schedules with slices, recomputes or copies of their own, or a sharded vocabulary:
        there :func:`debubble.planner.memory.memory_of` has to be asked for every candidate.
    """
    schedule = timeline.schedule
    if schedule.slices > 1 or schedule.vocabulary or timeline.graph.has_copies:
        return None
    found = []
    for rank in range(schedule.ranks):
        moments = Moments.of(timeline, rank)
        if not np.isin(moments.kinds, KINDS).all():
            return None
        columns = _in_flight(moments, schedule.stages, runtime)
        columns.append(buffers(timeline, rank, moments, 1.0, runtime))
        found.append(_not_exceeded(np.stack(columns, axis=1)))
    counts: Floats = np.zeros((schedule.ranks, max(map(len, found)), found[0].shape[1]))
    homes = np.zeros((schedule.ranks, schedule.stages))
    for rank, some in enumerate(found):
        counts[rank, : len(some)] = some
    for table in schedule.placement.table:
        np.add.at(homes, (np.asarray(table), np.arange(schedule.stages)), 1)
    return FullestMoments(homes, np.asarray(schedule.versions), counts)


def peak_memory(
    model: Model, training: Training, candidate: Candidate, fullest: FullestMoments
) -> Floats:
    """Peak of every rank in bytes per GPU, as :func:`debubble.planner.memory.memory_of` has it."""
    each = stage_activations(model, training, candidate)
    head, size = logits_bytes(model, training, candidate), each[0].boundary
    amounts = np.array(
        [
            *[one.stored for one in each],
            *[one.kept_for_weight for one in each],
            *[one.recomputed for one in each],
            head,
            size,
        ]
    )
    states = stage_states(model, training, candidate)
    state: Floats = fullest.homes @ np.array([one.total for one in states])
    extra = fullest.versions - 1
    if extra.any():
        state += extra * (fullest.homes @ np.array([one.weights for one in states]))
    peaks: Floats = state + (1 + FRAGMENTATION) * (fullest.counts @ amounts).max(axis=1)
    return peaks + margin(training)


def _in_flight(moments: Moments, stages: int, runtime: str) -> list[Floats]:
    """The columns of :class:`FullestMoments` up to the logits'."""
    starts, stops = moments.starts, moments.stops
    forward = moments.kinds == Kind.F
    split, weights, whole = moments.backwards(runtime)
    either = split | whole
    nothing = np.zeros(len(moments.times))
    stored, kept, running = ([nothing] * stages for _ in range(3))
    for stage in np.unique(moments.stages):
        own = moments.stages == stage
        came, went, rest = own & forward, own & either, own & weights
        stored[stage] = moments.held((starts[came], 1.0), (stops[went], -1.0))
        kept[stage] = moments.held((stops[own & split], 1.0), (stops[rest], -1.0))
        running[stage] = moments.held((starts[went], 1.0), (stops[went], -1.0))
    last = moments.stages == stages - 1
    logits = moments.held(
        (starts[last & forward], 1.0),
        (stops[last & forward], HELD_LOGITS - 1.0),
        (starts[last & either], 1.0 - HELD_LOGITS),
        (stops[last & either], -1.0),
    )
    return [*stored, *kept, *running, logits]


def _not_exceeded(moments: Floats) -> Floats:
    """The rows that no other exceeds in some column and reaches in all others."""
    # Most columns are of stages on other ranks. Rounded, equal moments are equal.
    used = moments.any(axis=0)
    rows = np.unique(np.round(moments[:, used], 9), axis=0)
    kept: list[Floats] = []
    # A row that exceeds another has a larger sum.
    for row in rows[np.argsort(-rows.sum(axis=1), kind="stable")]:
        if not kept or not (np.array(kept) >= row).all(axis=1).any():
            kept.append(row)
    found = np.zeros((len(kept), moments.shape[1]))
    found[:, used] = np.array(kept)
    return found
