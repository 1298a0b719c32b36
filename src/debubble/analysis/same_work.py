"""Work of schedules, compared: makespans rank schedules only where all do the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.embedding_and_head import PARTS
from debubble.core.kind_relations import (
    FORWARD_KIND,
    FUSED_KIND,
    GATHER_KIND,
    REDUCTION_KIND,
    SPLIT_KINDS,
)
from debubble.core.schedule import Schedule
from debubble.engine.timeline import Timeline

MODELS_DIFFER = "the models differ"

SAME = 1e-6
"""Share by which the work of two schedules may differ through rounding."""


def differences(timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """Return differences in work that make makespans incomparable; empty for the same work.

    Makespans can be compared where the same ranks do the same work in a step: forwards and
    backwards of all stages, times the microbatches of all iterations, with the same memory of all
    stages together. Overlapped pairs, recomputes and transfers are what schedules differ in, and do
    not count.

    Examples
    --------
    >>> import debubble as db
    >>> one, two = (
    ...     db.simulate(db.make(name, ranks=4, microbatches=8), db.Costs(F=1))
    ...     for name in ("1f1b", "zb-v")
    ... )
    >>> differences([one, two])
    ('the models differ (4 and 8 stages)',)
    """
    found = []
    ranks = [timeline.schedule.ranks for timeline in timelines]
    if len(set(ranks)) > 1:
        found.append(f"the clusters differ ({_all(ranks)} ranks)")
    models_differ = []
    if len({skips(timeline.schedule) for timeline in timelines}) > 1:
        models_differ.append("other skip connections")
    models = [model_work(timeline) for timeline in timelines]
    alike = _same([model_size(timeline) for timeline in timelines]) or len(set(ranks)) > 1
    batches = [t.schedule.microbatches * t.schedule.iterations for t in timelines]
    same = alike and _same([batch * model for batch, model in zip(batches, models, strict=True)])
    if not (same or (alike and _same(models))):
        places = [timeline.schedule.placement for timeline in timelines]
        stages = [placement.stages // placement.copies for placement in places]
        if len(set(stages)) > 1:
            models_differ.append(f"{_all(stages)} stages")
        else:
            works = [float(f"{model[0] + model[1]:.6g}") for model in models]
            models_differ.append(f"one microbatch takes {_all(works)} of work")
    if models_differ:
        found.append(f"{MODELS_DIFFER} ({'; '.join(models_differ)})")
    if not same and len(set(batches)) > 1:
        found.append(f"the batches differ ({_all(batches)} microbatches)")
    return tuple(found)


def skips(schedule: Schedule) -> frozenset[tuple[Fraction, Fraction]]:
    """Return the skip connections by shares of the model: where each begins and where it ends.

    Examples
    --------
    >>> import debubble as db
    >>> four = db.make("1f1b", ranks=4, microbatches=8, carry=[(0, 3)])
    >>> eight = db.make("zb-v", ranks=4, microbatches=8, carry=[(1, 6)])
    >>> skips(four) == skips(eight) == {(Fraction(1, 4), Fraction(3, 4))}
    True
    """
    stages = schedule.stages
    return frozenset((Fraction(a + 1, stages), Fraction(b, stages)) for a, b in schedule.carries)


def model_work(timeline: Timeline) -> NDArray[np.float64]:
    """Return the time of all stages together for one microbatch: F, B, I and W, shape ``(4,)``."""
    placement = timeline.schedule.placement
    # What starting an action takes, and I that a runtime does in W, is no work of the model.
    costs = replace(timeline.table.costs, runtime="any", launch=0.0)
    whole = costs.resolve(placement)
    kinds = [FORWARD_KIND, FUSED_KIND, *SPLIT_KINDS]
    work: NDArray[np.float64] = whole.duration[kinds].sum(axis=1) / placement.copies
    return work


def model_size(timeline: Timeline) -> NDArray[np.float64]:
    """Return the memory of all stages together, and what their replicas exchange; shape ``(4,)``.

    Without what only the ends of the model have, which some schedules move to other stages.
    """
    placement = timeline.schedule.placement
    without: dict[str, Any] = dict.fromkeys(PARTS)
    costs = replace(timeline.table.costs, runtime="any", frozen=0.0, **without)
    whole = costs.resolve(placement)
    exchanged = whole.duration[[GATHER_KIND, REDUCTION_KIND]].sum(axis=1)
    sizes = np.array([whole.activation.sum(), whole.kv.sum(), *exchanged])
    found: NDArray[np.float64] = sizes / placement.copies
    return found


def _same(works: Sequence[NDArray[np.float64]]) -> bool:
    return all(np.allclose(work, works[0], rtol=SAME, atol=0) for work in works)


def _all(values: Sequence[float]) -> str:
    """Return ``4, 8 and 16``: every value once, in rising order."""
    *some, last = (f"{value:,.6g}" for value in sorted(set(values)))
    return f"{', '.join(some)} and {last}" if some else last
