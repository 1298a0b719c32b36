"""Layers that the ranks of a pipeline have room for, by schedule and before any cut is looked at.

A rank holds the weights, gradients and optimizer states of its layers, and their activations as
often as its schedule has microbatches in flight. So memory limits the layers of every rank. Where
all ranks together have room for fewer layers than the model has, no layer split fits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.planner.candidate import Candidate
from debubble.planner.memory.activations import stage_activations
from debubble.planner.memory.in_flight import in_flight
from debubble.planner.memory.peaks import fragmentation, margin
from debubble.planner.memory.state import layer_parameters, stage_states
from debubble.planner.model.transformer import Model
from debubble.planner.plannable import placement_of
from debubble.planner.request import PlanRequest
from debubble.planner.search.groups import FEWEST, Batch, Split
from debubble.planner.search.search_result import NEAR, ROUNDING

Floats = NDArray[np.float64]


FEW = 64
"""Most schedules, with their cuts, whose microbatches in flight are counted ahead of their times.
To count more takes longer than it saves."""


class _PartBytes(NamedTuple):
    """Bytes of a model's parts on one GPU."""

    first: float
    """States of the embedding."""
    last: float
    """States of head and multi-token prediction."""
    state: float
    """States of a layer of the kind that takes most in all."""
    stored: float
    """Activations of one microbatch in such a layer."""


class Room(NamedTuple):
    """Fit of a batch's orders, in their sequence."""

    fewest: list[int | None]
    """Least number of recomputed layers per stage with which some layer split may fit; 0 if the
    batch's setting says how to recompute, None if no layer split fits."""
    peaks: list[float]
    """Bytes of the fullest rank with an even layer split, about."""


def with_room(
    request: PlanRequest, batch: Batch
) -> tuple[list[Candidate], list[tuple[float, tuple[str, Split]]]]:
    """Return candidates of a batch that may fit or nearly fit, and the others' peaks and orders.

    Candidates that recompute as few layers as they can have the fewest with which they may fit.
    """
    group, setting = batch.group, batch.setting
    if group.degrees.pp == 1 or batch.count > FEW:
        return [group.candidate(*order, setting) for order in batch.orders], []
    share = 1.0 if setting[0] == FEWEST else NEAR
    fewest, peaks = room_of(request, batch, share * request.limit)
    found, large = [], []
    for order, number, peak in zip(batch.orders, fewest, peaks, strict=True):
        if number is None:
            large.append((peak, order))
            continue
        candidate = group.candidate(*order, setting)
        found.append(candidate.recomputing(f"full:{number}") if number else candidate)
    return found, large


def room_of(request: PlanRequest, batch: Batch, limit: float) -> Room:
    """Return which orders of a pipeline have a layer split that may fit within `limit` bytes."""
    degrees, (recompute, _), orders = batch.group.degrees, batch.setting, batch.orders
    kind, count = _largest_kind(request.model, degrees.tp, degrees.ep)
    one = _parts(request, batch, "none" if recompute == FEWEST else recompute, kind)
    engine = request.case(batch.group.alone(batch.setting)).engine
    held, homes = _of_orders(orders, degrees.pp, batch.group.microbatches, engine)
    held = held * (1 + fragmentation(request.training))
    room = np.full(held.shape, limit * (1 + ROUNDING) - margin(request.training))
    room[:, 0] -= one.first
    room[np.arange(len(room)), homes] -= one.last
    each = one.state + held * one.stored
    peaks = (limit - room + each * count / degrees.pp).max(axis=1).tolist()
    room = np.maximum(room, 0.0)
    if recompute != FEWEST:
        enough = np.floor(room / each).sum(axis=1) >= count
        return Room([0 if some else None for some in enough.tolist()], peaks)
    again = _parts(request, batch, "full", kind)
    small = again.state + held * again.stored
    numbers = np.arange(1, max(2, *(max(layers) for _, (_, layers) in orders)))
    some = numbers[:, None, None] * np.array([chunks for _, (chunks, _) in orders])[:, None]
    layers = np.minimum(room / small, some) + np.maximum(room - some * small, 0.0) / each
    enough = np.floor(layers).sum(axis=2) >= count
    return Room([int(numbers[one.argmax()]) if one.any() else None for one in enough.T], peaks)


@lru_cache(maxsize=4096)
def _of_orders(
    orders: tuple[tuple[str, Split], ...], ranks: int, microbatches: int, runtime: str
) -> tuple[Floats, NDArray[np.int64]]:
    """Return microbatches in flight by order and rank, and the rank of every last stage.

    They are averages of a rank's layers, of which each stage has as many as in the order's cut.
    """
    held, homes = np.ones((len(orders), ranks)), []
    for row, (name, (chunks, layers)) in zip(held, orders, strict=True):
        ranks_of_stages = placement_of(name, ranks, chunks).ranks_of_stages
        homes.append(int(ranks_of_stages[-1]))
        counts = in_flight(name, ranks, microbatches, chunks, runtime)
        own = np.bincount(ranks_of_stages, layers)
        if counts is not None and own.all():
            row[:] = counts.peaks(np.array(layers, dtype=float), np.zeros(len(layers))) / own
    return held, np.array(homes)


@lru_cache(maxsize=1024)
def _largest_kind(model: Model, tp: int, ep: int) -> tuple[int, int]:
    """Return the first layer of the kind with the most parameters in all, and their number."""
    kinds, numbers = model.kinds
    counts = np.bincount(numbers).tolist()
    sizes = [sum(layer_parameters(model, layer, tp, ep)) for layer in kinds]
    kind = max(range(len(kinds)), key=lambda one: sizes[one] * counts[one])
    return int(np.flatnonzero(numbers == kind)[0]), counts[kind]


def _parts(request: PlanRequest, batch: Batch, recompute: str, kind: int) -> _PartBytes:
    """Return the bytes of parts, each on a stage of its own; `kind` is a layer's number."""
    alone = batch.group.alone(batch.setting)
    count = sum(alone.layers)
    # The rules for stages of a pipeline are others than those for a model on one rank.
    apart = replace(
        alone, degrees=replace(alone.degrees, pp=5), layers=(0, kind, 1, count - kind - 1, 0),
        recompute=recompute,
    )  # fmt: skip
    case = request.case(apart)
    # Layers that are gathered or scattered are there for a moment, one after the other.
    states, activations = stage_states(case, lasting=True), stage_activations(case)
    return _PartBytes(states[0].total, states[-1].total, states[2].total, activations[2].stored)
