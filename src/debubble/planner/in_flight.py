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
from debubble.planner.activations import logits_bytes, stage_activation
from debubble.planner.buffers import buffers
from debubble.planner.candidate import Candidate, Training
from debubble.planner.memory import BUCKETS, FRAGMENTATION, HELD_LOGITS, MARGIN, rank_state
from debubble.planner.model import Model
from debubble.planner.moments import Floats, Moments

KINDS = (Kind.F, Kind.I, Kind.W, Kind.B, Kind.OPT)
"""Kinds of schedules whose moments can be counted without a model."""


@dataclass(frozen=True, eq=False)
class FullestMoments:
    """Moments of a schedule's ranks of which one is the fullest, whatever things take.

    Parameters
    ----------
    timeline
        The step that was counted; its schedule says which stages a rank has.
    counts
        One matrix for every rank, a row for every moment. Columns are, for all stages in turn,
        microbatches whose activations are stored; then those of which only what W needs is left;
        then those whose backward runs; then logits, and transferred tensors.
    """

    timeline: Timeline
    counts: tuple[Floats, ...]


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
        # Sums of exact parts, so that equal moments are equal.
        rows = np.round(np.stack(columns, axis=1), 9)
        found.append(_not_exceeded(np.unique(rows, axis=0)))
    return FullestMoments(timeline, tuple(found))


def peak_memory(
    model: Model, training: Training, candidate: Candidate, fullest: FullestMoments
) -> Floats:
    """Peak of every rank in bytes per GPU, as :func:`debubble.planner.memory.memory_of` has it."""
    schedule = fullest.timeline.schedule
    each = [stage_activation(model, training, candidate, at) for at in range(schedule.stages)]
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
    fixed = MARGIN + BUCKETS.get(training.runtime, 0.0)
    peaks = np.empty(schedule.ranks)
    for rank, counts in enumerate(fullest.counts):
        state = rank_state(model, training, candidate, schedule, rank).total
        changing = (counts @ amounts).max(initial=0.0)
        peaks[rank] = fixed + state + (1 + FRAGMENTATION) * changing
    return peaks


def _in_flight(moments: Moments, stages: int, runtime: str) -> list[Floats]:
    """The columns of :class:`FullestMoments` up to the logits'."""
    starts, stops = moments.starts, moments.stops
    forward = moments.kinds == Kind.F
    split, weights, whole = moments.backwards(runtime)
    either = split | whole
    stored, kept, running = [], [], []
    for stage in range(stages):
        own = moments.stages == stage
        stored.append(moments.held((starts[own & forward], 1.0), (stops[own & either], -1.0)))
        kept.append(moments.held((stops[own & split], 1.0), (stops[own & weights], -1.0)))
        running.append(moments.held((starts[own & either], 1.0), (stops[own & either], -1.0)))
    last = moments.stages == stages - 1
    logits = moments.held(
        (starts[last & forward], 1.0),
        (stops[last & forward], HELD_LOGITS - 1.0),
        (starts[last & either], 1.0 - HELD_LOGITS),
        (stops[last & either], -1.0),
    )
    return [*stored, *kept, *running, logits]


def _not_exceeded(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows that no other exceeds in some column and reaches in all others."""
    kept: list[NDArray[np.float64]] = []
    # A row that exceeds another has a larger sum.
    for row in rows[np.argsort(-rows.sum(axis=1), kind="stable")]:
        if not any(np.all(other >= row) for other in kept):
            kept.append(row)
    return np.array(kept).reshape(-1, rows.shape[1])
