"""Layers that the ranks of a pipeline have room for, by schedule and before any cut is looked at.

A rank holds the weights, gradients and optimizer states of its layers, and their activations as
often as its schedule has microbatches in flight. So memory limits the layers of every rank. Where
all ranks together have room for fewer layers than the model has, no layer split fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.planner.candidate import Candidate, Degrees
from debubble.planner.case import Case
from debubble.planner.frameworks.habits import Habits
from debubble.planner.memory.activations import stage_activations
from debubble.planner.memory.buffers import least_held, least_tensors
from debubble.planner.memory.in_flight import in_flight
from debubble.planner.memory.peaks import fragmentation, margin
from debubble.planner.memory.state import layer_parameters, stage_states
from debubble.planner.model.transformer import Model
from debubble.planner.plannable import placement_of
from debubble.planner.request import PlanRequest
from debubble.planner.search.choices import FEWEST, CutOrders, Setting, Split, first_setting
from debubble.planner.search.groups import Batch, Ordered
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
    boundary: float
    """A tensor between stages."""


class Room(NamedTuple):
    """Fit of a batch's orders, in their sequence."""

    fewest: list[int | None]
    """Least number of recomputed layers per stage with which some layer split may fit; 0 if the
    batch's setting says how to recompute, None if no layer split fits."""
    peaks: list[float]
    """Bytes of the fullest rank with an even layer split, about; of orders that do not fit with one
    microbatch in flight with that one."""


Large: TypeAlias = tuple[float, tuple[str, Split]]
"""Bytes of the fullest rank with an even layer split, about, and a schedule with its cut."""


def with_room(
    request: PlanRequest, batches: Sequence[Batch]
) -> list[tuple[list[Ordered], list[Large]]]:
    """Return orders of batches that may fit or nearly fit, and the others.

    The batches are of one group and one way to recompute. Candidates that recompute as few layers
    as they can have the fewest with which they may fit.
    """
    group, recompute = batches[0].group, batches[0].setting[0]
    alike: dict[int, list[Batch]] = {}
    for batch in batches:
        alike.setdefault(id(batch.orders), []).append(batch)
    rooms: dict[Setting, Room] = {}
    share = 1.0 if recompute == FEWEST else NEAR
    for some in alike.values():
        if group.degrees.pp > 1:
            found = rooms_of(request, some, share * request.limit)
            rooms |= {one.setting: room for one, room in zip(some, found, strict=True)}
    return [_with_room(batch, rooms.get(batch.setting)) for batch in batches]


def _with_room(batch: Batch, room: Room | None) -> tuple[list[Ordered], list[Large]]:
    recompute = first_setting(batch.setting)[0]
    if room is None:
        return [(*order, recompute) for order in batch.orders], []
    found: list[Ordered] = []
    large: list[Large] = []
    for order, number, peak in zip(batch.orders, room.fewest, room.peaks, strict=True):
        if number is None:
            large.append((peak, order))
        else:
            found.append((*order, f"full:{number}" if number else recompute))
    return found, large


def rooms_of(request: PlanRequest, batches: Sequence[Batch], limit: float) -> list[Room]:
    """Return which orders of a pipeline have a layer split that may fit within `limit` bytes.

    The batches are of one group and one way to recompute, and have the same orders. Microbatches in
    flight are only counted for orders that may fit with one, where these are few.
    """
    group, orders, recompute = batches[0].group, batches[0].orders, batches[0].setting[0]
    degrees, again = group.degrees, recompute == FEWEST
    kind, count = _largest_kind(request.model, degrees.tp, degrees.ep)
    parts = [_parts(request, one, "none" if again else recompute, kind) for one in batches]
    first, last, state, stored, boundary = np.array(parts).T[..., None]
    full = [_parts(request, one, "full", kind).stored for one in batches] if again else None
    share = 1 + fragmentation(request.training)
    homes, tensors = _placed(orders, degrees.pp, request.training.runtime)
    # By batch, order and rank.
    free = limit * (1 + ROUNDING) - margin(request.training)
    room = free - share * least_held(group.microbatches) * boundary[..., None] * tensors
    room[..., 0] -= first
    room[:, np.arange(len(orders)), homes] -= last

    def rooms(held: Floats) -> list[Room]:
        each = state[..., None] + held * stored[..., None]
        peaks = (limit - room + each * count / degrees.pp).max(axis=2).tolist()
        left = np.maximum(room, 0.0)
        if full is None:
            fits = (np.floor(left / each).sum(axis=2) >= count).tolist()
            fewest = [[0 if one else None for one in row] for row in fits]
        else:
            small = state[..., None] + held * np.array(full)[:, None, None]
            numbers = np.arange(1, max(2, *(max(layers) for _, (_, layers) in orders)))
            chunks = np.array([chunks for _, (chunks, _) in orders])
            some = (numbers[:, None] * chunks)[:, None, :, None]
            layers = np.minimum(left / small, some) + np.maximum(left - some * small, 0.0) / each
            enough = np.floor(layers).sum(axis=3) >= count
            best = np.where(enough.any(axis=0), numbers[enough.argmax(axis=0)], 0).tolist()
            fewest = [[one or None for one in row] for row in best]
        return [Room(*one) for one in zip(fewest, peaks, strict=True)]

    held = np.full((len(orders), degrees.pp), share)
    rough = rooms(held)
    some = [at for at in range(len(orders)) if any(one.fewest[at] is not None for one in rough)]
    if not some or len(orders) > FEW:
        return rough
    engine = request.case(group.alone(batches[0].setting)).engine
    for at in some:
        held[at] *= _in_flight(orders[at], degrees.pp, group.microbatches, engine)
    return [
        Room(
            one.fewest,
            [
                less if number is None else peak
                for number, less, peak in zip(known.fewest, known.peaks, one.peaks, strict=True)
            ],
        )
        for known, one in zip(rough, rooms(held), strict=True)
    ]


@lru_cache(maxsize=4096)
def _placed(
    orders: CutOrders, ranks: int, runtime: Habits
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rank of every order's last stage, and tensors of ranks, see `least_tensors`."""
    homes = [placement_of(name, ranks, chunks).ranks_of_stages for name, (chunks, _) in orders]
    tensors = [np.bincount(one, least_tensors(tuple(one.tolist()), runtime)) for one in homes]
    return np.array([one[-1] for one in homes]), np.array(tensors)


@lru_cache(maxsize=1 << 14)
def _in_flight(order: tuple[str, Split], ranks: int, microbatches: int, runtime: str) -> Floats:
    """Return microbatches in flight on every rank of an order, one where they are not counted.

    They are averages of a rank's layers, of which each stage has as many as in the order's cut.
    """
    name, (chunks, layers) = order
    counts = in_flight(name, ranks, microbatches, chunks, runtime)
    own = np.bincount(placement_of(name, ranks, chunks).ranks_of_stages, layers)
    if counts is None or not own.all():
        return np.ones(ranks)
    held: Floats = counts.peaks(np.array(layers, dtype=float), np.zeros(len(layers))) / own
    return held


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
    d, (_, zero) = batch.group.degrees, batch.setting
    states = _part_states(request, d.tp, d.cp, d.ep, d.dp, zero, kind)
    size = batch.group.microbatch_size
    return _PartBytes(*states, *_part_stored(request, d.tp, d.cp, d.ep, size, recompute, kind))


@lru_cache(maxsize=1 << 14)
def _part_states(
    request: PlanRequest, tp: int, cp: int, ep: int, dp: int, zero: int, kind: int
) -> tuple[float, float, float]:
    """Return states of the first, the last and the middle one of :func:`_parts`."""
    case = _apart(request, Candidate(Degrees(tp, cp, ep, dp), 1, 1, "1f1b", (0,), zero=zero), kind)
    # Layers that are gathered or scattered are there for a moment, one after the other.
    states = stage_states(case, lasting=True)
    return states[0].total, states[-1].total, states[2].total


@lru_cache(maxsize=1 << 14)
def _part_stored(
    request: PlanRequest, tp: int, cp: int, ep: int, size: int, recompute: str, kind: int
) -> tuple[float, float]:
    """Return activations of the middle one of :func:`_parts`, and a tensor between stages."""
    alone = Candidate(Degrees(tp, cp, ep), size, 1, "1f1b", (0,), recompute)
    held = stage_activations(_apart(request, alone, kind))[2]
    return held.stored, held.boundary


def _apart(request: PlanRequest, alone: Candidate, kind: int) -> Case:
    """Return a case with one layer on a stage of its own, away from the model's ends.

    The rules for stages of a pipeline are others than those for a model on one rank.
    """
    layers = (0, kind, 1, len(request.model.layers) - kind - 1, 0)
    return request.case(replace(alone, degrees=replace(alone.degrees, pp=5), layers=layers))
