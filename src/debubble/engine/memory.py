"""Activation memory: every action adds at its start and frees at its end.

Where activations leave their ranks, the times of copies count: ``OFFLOAD`` frees its share of an
activation when it ends, ``RELOAD`` takes it again when it starts. An activation on another rank is
held there from the start of the one to the end of the other.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import COPY_KINDS, Kind, Program, kinds_of, microbatches_of
from debubble.core.cost_table import CostTable, static_memory
from debubble.core.costs import Costs
from debubble.core.errors import ParameterError
from debubble.core.kind_relations import RECOMPUTE_KINDS
from debubble.core.kinds import KINDS, kind_bits
from debubble.core.schedule import Schedule
from debubble.core.units import memory_scale
from debubble.engine.kernels.memory import peak_memory
from debubble.engine.recompute import recompute_share, recomputed_forwards
from debubble.engine.validate import refuse_outside, scan

Floats = NDArray[np.float64]

Limit: TypeAlias = float | Sequence[float]
"""A memory limit of every rank, or one for each."""

RECOMPUTED_F = len(Kind)
"""Pseudo-kind of a forward whose microbatch is recomputed while others of its stage are not."""

_RECOMPUTES = kind_bits(RECOMPUTE_KINDS)


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """Memory of a schedule."""

    peak: NDArray[np.float64]
    """Largest memory of every rank, the static one included; shape ``(ranks,)``."""
    left: NDArray[np.float64]
    """Memory of activations still held when every rank is done; zero for a complete schedule."""
    static: NDArray[np.float64]
    """Memory that every rank holds all the time, shape ``(ranks,)``."""
    at_start: NDArray[np.float64]
    """Memory that the start of an action of kind k on place c adds, shape ``(kinds + 1,
    places)``."""
    at_end: NDArray[np.float64]
    """Memory that its end adds, likewise."""
    actions: Program
    """The schedule's actions, with the kinds that these tables mean."""
    lengths: NDArray[np.float64] | None = None
    """Length of every microbatch, by which what it adds is multiplied; None where all are alike."""

    def deltas(
        self, schedule: Schedule, rank: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return memory that each action of a rank adds at its start and at its end."""
        part = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
        return self.changes(schedule, self.actions[part])

    def changes(
        self, schedule: Schedule, actions: Program
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return memory that some of `actions` add at their starts and at their ends."""
        kinds, places = kinds_of(actions), schedule.places_of(actions)
        added, freed = self.at_start[kinds, places], self.at_end[kinds, places]
        if self.lengths is None:
            return added, freed
        length = self.lengths[schedule.microbatch_of(microbatches_of(actions))]
        return added * length, freed * length


_EFFECTS = tuple((spec.kind, spec.takes, spec.frees) for spec in KINDS if spec.takes or spec.frees)

AMOUNTS: dict[str, Callable[[CostTable, NDArray[np.bool_]], Floats | float]] = {
    # What a forward leaves, and what a recompute brings back of it.
    "stored": lambda table, whole: np.where(whole, table.checkpoint, table.activation),
    "recomputed": lambda table, _: table.activation - table.checkpoint,
    "activation": lambda table, _: table.activation,
    # Its parts without and with use for the weights.
    "not_kept": lambda table, _: table.activation - table.kept,
    "kept": lambda table, _: table.kept,
    "moved": lambda table, whole: table.moved(whole),
    "shard": lambda table, _: table.shard,
    # Keys and values of a slice, the gradients of all slices, and a slice's share of both.
    "kv": lambda table, _: table.kv,
    "kv_gradients": lambda table, _: _gradients_of_all_slices(table),
    "kv_with_gradients": lambda table, _: 2 * table.kv,
}
"""Quantities of memory that actions take and free, on every place, by their names in the table of
kinds; from costs, and where all microbatches of a place are recomputed."""


def _gradients_of_all_slices(table: CostTable) -> NDArray[np.float64]:
    """Return room for the gradients of all slices, which the backward of the last slice takes."""
    last = table.placement.copies * table.placement.stages
    found = np.zeros(len(table.kv))
    found[-last:] = table.kv.reshape(-1, last).sum(axis=0)
    return found


def measure_memory(schedule: Schedule, table: CostTable) -> MemoryUse:
    """Measure memory: F takes the activation, I keeps the share for W, W and B free it.

    Where a microbatch is recomputed, F takes the checkpoint and R the rest.

    F takes its slice's keys and values, too. The first backward of a microbatch, its last slice's,
    takes what the gradients of all keys and values need: later slices add to those of earlier
    ones. Each slice's I or B frees its part of both.

    S takes what a shard of the output layer needs of a microbatch, and T frees it.

    OFFLOAD frees what it moves and RELOAD takes it again, here as if copies took no time and what
    goes to another rank took none of its memory; see :func:`measure_over_time`.
    """
    refuse_outside(schedule)
    present, slicing = scan(schedule).kinds, table.costs.kv != 0
    share = recompute_share(schedule)
    whole = share >= 1
    actions = schedule.actions
    if present & _RECOMPUTES and np.any((share > 0) & ~whole):
        # The kind of a forward is 0.
        actions = actions + RECOMPUTED_F * recomputed_forwards(schedule)
    at_start, at_end = np.zeros((2, len(Kind) + 1, len(table.activation)))
    for kind, takes, frees in _EFFECTS:
        if present >> kind & 1:
            for row, names in ((at_start[kind], takes), (at_end[kind], frees)):
                for name in names:
                    if slicing or not name.startswith("kv"):
                        row += AMOUNTS[name](table, whole)
    np.negative(at_end, at_end)
    at_start[RECOMPUTED_F] = table.checkpoint + table.kv if slicing else table.checkpoint
    peak = np.zeros(schedule.ranks)
    left = np.zeros(schedule.ranks)
    peak_memory.run(
        len(schedule), actions, schedule.offsets, schedule.stages, schedule.microbatches,
        schedule.slices, schedule.placement.copies, at_start.ravel(), at_end.ravel(),
        table.lengths, peak, left,
    )  # fmt: skip
    return MemoryUse(
        peak + table.static, left, table.static, at_start, at_end, actions, table.lengths
    )


def changes(
    schedule: Schedule, use: MemoryUse, begin: Floats, end: Floats, rank: int
) -> tuple[Floats, Floats]:
    """Return sorted times at which a rank's memory changes, and the changes.

    `begin` and `end` of every action, shape ``(n,)``, are such that an action that follows another
    at once begins at the very number at which that one ends. At equal times memory is freed before
    more is taken. Actions of no duration take and free at one time, and follow the order of the
    program.
    """
    part = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    added, freed = use.deltas(schedule, rank)
    position = np.arange(part.start, part.stop)
    times = [begin[part], end[part]]
    deltas = [added, freed]
    order = [2 * position, np.where(end[part] > begin[part], -1, 2 * position + 1)]
    for other, target in enumerate(schedule.copy_targets):
        if target != rank:
            continue
        first = int(schedule.offsets[other])
        kinds = kinds_of(schedule.program(other))
        added, freed = use.deltas(schedule, other)
        for kind in COPY_KINDS:
            comes = KINDS[kind].undoes is None
            here = np.flatnonzero(kinds == kind)
            times.append((begin if comes else end)[here + first])
            deltas.append(-(freed if comes else added)[here])
            order.append(np.full(len(here), 0 if comes else -1))
    moments, amounts, turns = (np.concatenate(column) for column in (times, deltas, order))
    real = amounts != 0
    moments, amounts, turns = moments[real], amounts[real], turns[real]
    sorted_by_time = np.lexsort((turns, moments))
    return moments[sorted_by_time], amounts[sorted_by_time]


def changes_in_order(
    schedule: Schedule, use: MemoryUse, begin: Floats, end: Floats, rank: int
) -> tuple[Floats, Floats]:
    """Return changes as :func:`changes` if no activation leaves its rank and starts are rounded."""
    part = slice(int(schedule.offsets[rank]), int(schedule.offsets[rank + 1]))
    added, freed = use.deltas(schedule, rank)
    holds = (added != 0) | (freed != 0)
    start, stop, added, freed = begin[part][holds], end[part][holds], added[holds], freed[holds]
    # A sum may round to just after the start of the next action, which has to wait for it.
    later = np.append(start, np.inf)[np.searchsorted(start, start, side="right")]
    times = np.concatenate([start, np.minimum(stop, later)])
    deltas = np.concatenate([added, freed])
    real = deltas != 0
    times, deltas = times[real], deltas[real]
    # At equal times memory is freed before more is taken.
    order = np.lexsort((deltas, times))
    return times[order], deltas[order]


def measure_over_time(schedule: Schedule, use: MemoryUse, begin: Floats, end: Floats) -> MemoryUse:
    """Return the use with peaks and rests by the times of a simulation."""
    peak, left = np.zeros(schedule.ranks), np.zeros(schedule.ranks)
    for rank in range(schedule.ranks):
        held = np.cumsum(changes(schedule, use, begin, end, rank)[1])
        peak[rank] = use.static[rank] + held.max(initial=0.0)
        left[rank] = held[-1] if len(held) else 0.0
    return replace(use, peak=peak, left=left)


ROUNDING = 1e-9
"""Share of a limit by which sums of floats may exceed it."""


def excess(peak: NDArray[np.float64], limits: NDArray[np.float64] | None) -> float:
    """Return the largest peak as a share of its limit, 0 if none is above its own limit."""
    over = 0.0 if limits is None else float(np.max(peak / limits))
    return over if over > 1 + ROUNDING else 0.0


def memory_limits(memory: Limit | None, ranks: int) -> NDArray[np.float64] | None:
    """Return one memory limit per rank, shape ``(ranks,)``, or None for no limit.

    Raises ParameterError when a limit is not a positive number, or there is not one for every rank.
    """
    if memory is None:
        return None
    try:
        given = np.asarray(memory)
    except ValueError:  # lists of different lengths
        given = np.array(None)
    if given.dtype.kind not in "iuf":
        shown = reprlib.repr(memory)
        raise ParameterError(f"memory is {shown}; give a positive number, or one per rank")
    limits = np.atleast_1d(given.astype(np.float64))
    if limits.shape not in ((1,), (ranks,)):
        raise ParameterError(
            f"memory has {limits.size} limits for {ranks} ranks; give one number, or one per rank"
        )
    if not np.all(limits > 0):
        raise ParameterError(f"memory is {memory}; a limit is a positive number")
    return np.array(np.broadcast_to(limits, (ranks,)))


def beside_static(memory: Limit | None, costs: Costs, ranks: int) -> tuple[Limit | None, Costs]:
    """Return a memory limit and costs without the static memory.

    Schedules are made with these, as if there were activations only.

    Raises ParameterError when a rank has no memory left for activations.
    """
    if costs.static == 0:
        return memory, costs
    alone = replace(costs, static=0.0)
    limits = memory_limits(memory, ranks)
    if limits is None:
        return None, alone
    static = static_memory(costs, ranks)
    free = limits - static
    if (free <= 0).any():
        rank = int(np.argmin(free))
        scale = memory_scale(costs.activation_unit, float(static[rank]))
        held, limit = (
            f"{scale.text(float(value))} {scale.unit}".rstrip()
            for value in (static[rank], limits[rank])
        )
        raise ParameterError(
            f"rank {rank} holds {held} all the time (static memory); its limit is "
            f"{limit}; raise the limit, or split weights and optimizer states over more ranks"
        )
    return free.tolist(), alone
