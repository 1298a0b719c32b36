"""Costs of a model under a schedule that cuts it into other stages or slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from debubble.core.cost_fields import DEFAULT, CostField
from debubble.core.costs import COST_FIELDS, Costs
from debubble.core.kind_relations import ACTIVATION_KINDS, FUSED_KIND
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.diagnosis.observed import Times


def shares_of_cut(old: ArrayLike, new: ArrayLike) -> Times:
    """Return the share of every old piece in each new one, shape ``(new, old)``.

    Parameters
    ----------
    old, new
        Lengths of the pieces of each cut, with any sum.

    Examples
    --------
    >>> shares_of_cut([1, 1], [1, 1, 1, 1]).tolist()
    [[0.5, 0.0], [0.5, 0.0], [0.0, 0.5], [0.0, 0.5]]
    """
    before, after = (np.concatenate([[0.0], np.cumsum(cut) / np.sum(cut)]) for cut in (old, new))
    low = np.maximum(after[:-1, None], before[None, :-1])
    high = np.minimum(after[1:, None], before[None, 1:])
    inside: Times = np.maximum(high - low, 0.0) / np.diff(before)
    return inside


def recut(costs: Costs, schedule: Schedule, other: Schedule) -> Costs:
    """Return costs per action of the same model under a schedule with another number of stages.

    The model is cut at equal distances: a stage of half the length takes half of the time and of
    the memory. A cost that is a share of a stage is the mean of the old shares, a pair takes the
    same share of its parts, and a boundary has the messages of the nearest old one. All other costs
    belong to ranks, links or microbatches, and stay.
    """
    if schedule.stages == other.stages:
        return costs
    shares = shares_of_cut(np.ones(schedule.stages), np.ones(other.stages))
    changes: dict[str, Any] = {}
    for name, spec in COST_FIELDS.items():
        value = getattr(costs, name)
        if spec.shape == "stage" and value is not None:
            changes[name] = _of_stages(spec, value, shares)
        elif spec.shape == "boundary" and not isinstance(value, float):
            nearest = np.linspace(0, schedule.stages - 2, other.stages - 1).round().astype(int)
            changes[name] = _listed(value, schedule.stages - 1)[nearest].tolist()
        elif spec.shape == "pair" and value is not None:
            changes[name] = None
            changes["overlap_factor"] = _overlap(costs, value, schedule.stages)
    return replace(costs, **changes)


def _listed(value: Any, count: int) -> Times:
    """Return one number for each of `count` stages."""
    if isinstance(value, Mapping):
        value = [value.get(place, value.get(DEFAULT, 0.0)) for place in range(count)]
    return np.broadcast_to(np.asarray(value, dtype=np.float64), count)


def _of_stages(spec: CostField, value: Any, shares: Times) -> Any:
    if isinstance(value, float) and (spec.share or not value):
        return value
    weights = shares / shares.sum(axis=1, keepdims=True) if spec.share else shares
    return (weights @ _listed(value, shares.shape[1])).tolist()


def _overlap(costs: Costs, value: Any, stages: int) -> float:
    """Return the median time of a pair as a share of the sum of its parts."""
    time = replace(costs, O=None).resolve(Placement.loop(stages, 1)).duration
    named: dict[Any, float] = {}
    if isinstance(value, Mapping):
        named = {
            key if isinstance(key, tuple) else (key, key): length
            for key, length in value.items()
            if key != DEFAULT
        }
    named = named or {(stage, stage): one for stage, one in enumerate(_listed(value, stages))}
    parts = {(a, b): time[ACTIVATION_KINDS[0], a] + time[FUSED_KIND, b] for a, b in named}
    found = [length / parts[pair] for pair, length in named.items() if parts[pair] > 0]
    return float(np.median(found)) if found else costs.overlap_factor
