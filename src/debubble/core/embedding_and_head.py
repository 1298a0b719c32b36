"""Costs of embedding, head and multi-token prediction, on the first and the last stage."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from debubble.core.frozen import Freeze, freeze
from debubble.core.kinds import KINDS, TIMED_KINDS, Kind
from debubble.core.placement import Placement

FIRST, LAST = 0, -1
PARTS = {"embedding": FIRST, "head": LAST, "mtp": LAST}
"""Parts of a model that live on one stage, and on which."""

TIMES = {KINDS[kind].cost: kind for kind in TIMED_KINDS}
"""Kinds by the names of their times: F, I, W, B, R."""

COMPUTE_TIMES = (*TIMES, "O", "FF")
"""Costs that are times of computing: where none of them is given, ranks have a unit of each."""

KEYS = (*TIMES, "activation")

Part = Mapping[str, float]
"""Costs of one part: a time for each of :data:`TIMES`, and the memory ``activation``; what is
missing is 0."""


def times_of(part: Part) -> NDArray[np.float64]:
    """Return the time of every kind of action, by the rules for a stage: B is I + W, R is F."""
    times = np.zeros(len(Kind))
    for name, kind in TIMES.items():
        times[kind] = part.get(name, 0.0)
    if "I" not in part and "W" not in part:
        times[[Kind.I, Kind.W]] = part.get("B", 0.0) / 2
    times[Kind.B] = part.get("B", times[Kind.I] + times[Kind.W])
    times[Kind.R] = part.get("R", times[Kind.F])
    return times


def frozen_part(part: Part, frozen: Freeze) -> Part:
    """Return the part less the time and memory that frozen weights save."""
    times = times_of(part)[:, None]
    freeze(times, frozen)
    held = part.get("activation", 0.0) * float(frozen.needed[0])
    return {name: float(times[kind, 0]) for name, kind in TIMES.items()} | {"activation": held}


def costs_of_parts(
    parts: Mapping[str, Part | None],
    placement: Placement,
    vocabulary: int = 0,
    frozen: Freeze | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the time and memory that parts add to the first and the last stage of every copy.

    Times by kind have the shape ``(kinds, copies * stages)``, memory ``(copies * stages,)``. With a
    sharded `vocabulary` (see :class:`debubble.core.schedule.Schedule`) the head is on no stage:
    each rank's first stage has the times of S and T for its shard, less what `frozen` weights of
    the last stage save. Elsewhere they are not looked at.
    """
    stages = placement.stages
    duration = np.zeros((len(Kind), placement.copies * stages))
    activation = np.zeros(placement.copies * stages)
    for name, part in parts.items():
        if part is None:
            continue
        if name == "head" and vocabulary:
            times = times_of(part)[:, None]
            if frozen is not None:
                freeze(times, frozen.at(slice(stages - 1, stages)))
            for kind, time in _passes(times[:, 0], vocabulary).items():
                duration[kind, first_stages(placement)] = time / placement.ranks
            continue
        where = slice(0 if PARTS[name] == FIRST else stages - 1, None, stages)
        duration[:, where] += times_of(part)[:, None]
        activation[where] += part.get("activation", 0.0)
    return duration, activation


def _passes(times: NDArray[np.float64], vocabulary: int) -> dict[Kind, float]:
    """Return times of S and T, summed over all shards."""
    F, I, W, B = (float(times[kind]) for kind in (Kind.F, Kind.I, Kind.W, Kind.B))
    return {Kind.S: F, Kind.T: B} if vocabulary == 1 else {Kind.S: F + I, Kind.T: W}


def first_stages(placement: Placement) -> NDArray[np.int64]:
    """Return the first stage of every rank, shape ``(ranks,)``; −1 where a rank has none."""
    first = np.full(placement.ranks, -1)
    row = np.asarray(placement.table[0])
    first[row[::-1]] = np.arange(len(row))[::-1]
    return first
