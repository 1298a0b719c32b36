"""Schedules of building blocks: the passes of one microbatch, repeated and squeezed.

A *block* says in which slot each of a microbatch's passes runs: forwards of stages 0 to S − 1, then
backwards for input of stages S − 1 to 0, each on the rank of its stage. Microbatch b runs T·b slots
later, where T = 3v slots are what a rank needs for one microbatch. No two passes of a rank may have
the same slot modulo T; the slots they leave free are for backwards for weights, in the order these
become due. A stage whose forward and backward for weights are l slots apart holds about l/T
activations, so the slots decide the memory.

Repeated as it is, a block idles at both ends, where neighbors are missing. So everything before
the first microbatch is back at stage 0, and everything after the last one has entered it, moves to
the earliest free slot that its inputs allow, one after the other, as long as no rank holds more
than before. At the end a backward for input may also change places with a backward for weights,
for which only its own rank waits. In between, it is simulated with equal times, which closes
the gaps that no reordering can.

All this concerns few microbatches, in proportion to the ranks. More of them repeat the steady part
in the middle, which is an array operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import (
    MICROBATCH_SHIFT,
    Kind,
    Program,
    kinds_of,
    microbatches_of,
    pack,
    stages_of,
)
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule
from debubble.core.sequence import as_kind, sequence
from debubble.engine.compile import UNIT_COSTS
from debubble.engine.jit import Array, helper, kernel
from debubble.engine.timeline import simulate

IDLE, WEIGHT, FORWARD, INPUT = range(4)
"""Contents of a slot of a rank."""

MOST_KEPT = 50_000
"""Passes of a grid up to which its programs are kept for later calls: 64 ranks on a V."""


def repeat_block(
    placement: Placement, block: NDArray[np.int64], microbatches: int
) -> list[Program]:
    """Return the programs of F, I and W of all ranks that repeat a block, for any costs.

    The placement has one copy of the model, equally many stages on every rank; the block is the
    slots of the passes of microbatch 0, shape ``(2 * stages,)``.
    """
    # Both ends are about a round trip long, and no longer than this in any block that is used.
    few = min(microbatches, 3 * placement.ranks + 4)
    small = len(block) * few <= MOST_KEPT
    lay_out = _laid_out_once if small else _laid_out
    programs = lay_out(placement, tuple(block.tolist()), few)
    return [_stretched(program, microbatches - few, 3 * placement.chunks) for program in programs]


def _laid_out(placement: Placement, block: Sequence[int], microbatches: int) -> list[Program]:
    """Return read-only programs, laid out with all passes in a grid of slots."""
    slots = np.array(block)[:, None] + 3 * placement.chunks * np.arange(microbatches)
    grid = _Grid(placement, slots)
    grid.fill(0, slots[-1, 0] - 1)
    grid = _Grid(placement, grid.squeezed())
    grid.fill(grid.slots[0, -1] + 1, grid.width, displace=True)
    programs = grid.programs()
    for program in programs:
        program.setflags(write=False)
    return programs


_laid_out_once = lru_cache(maxsize=16)(_laid_out)


def _stretched(program: Program, more: int, period: int) -> Program:
    """Return a program for more microbatches: a period of its middle is repeated."""
    if more == 0:
        return program
    middle = len(program) // 2
    steady = program[middle : middle + period]
    later = np.arange(more)[:, None] << MICROBATCH_SHIFT
    rest = program[middle:] + (more << MICROBATCH_SHIFT)
    return sequence(program[:middle], (steady + later).ravel(), rest)


class _Grid:
    """Passes in slots of their ranks, and backwards for weights in the gaps between them."""

    def __init__(self, placement: Placement, slots: NDArray[np.int64]) -> None:
        self.placement = placement
        self.slots = slots
        self.microbatches = slots.shape[1]
        homes = placement.ranks_of_stages
        self.ranks_of = np.concatenate([homes, homes[::-1]])
        self.width = int(slots.max()) + placement.chunks * self.microbatches + 2
        self.cells = np.full((placement.ranks, self.width), IDLE, dtype=np.int32)
        self.cells[self.ranks_of[:, None], slots] = np.repeat([[FORWARD], [INPUT]], len(homes), 0)
        assert np.count_nonzero(self.cells) == slots.size, "two passes in one slot"
        for row in self.cells:
            due = np.flatnonzero(row == INPUT)
            free = np.flatnonzero(row == IDLE)
            # The k-th takes the first free slot after its own pass and after the one before.
            count = np.arange(len(due))
            taken = np.maximum.accumulate(np.searchsorted(free, due) - count) + count
            row[free[taken]] = WEIGHT

    def fill(self, first: int, last: int, displace: bool = False) -> None:
        """Move what is in slots from `first` to `last` to earlier ones, see :func:`fill_gaps`."""
        weight = (self.cells == WEIGHT).astype(np.int32)
        held = np.cumsum((self.cells == FORWARD) - weight, axis=1, dtype=np.int32)
        due = np.cumsum((self.cells == INPUT) - weight, axis=1, dtype=np.int32)
        cells, slots = self.cells.ravel(), self.slots.ravel()

        ranks, at = np.nonzero(weight)
        owners = np.concatenate([np.repeat(self.ranks_of, self.microbatches), ranks])
        when = np.concatenate([slots, at])
        events = np.concatenate([np.arange(len(slots)), len(slots) + ranks * self.width + at])
        order = np.lexsort([owners, when])
        events = events[order[(when[order] >= first) & (when[order] <= last)]]
        fill_gaps.run(
            len(events) * self.placement.ranks, events, self.ranks_of, self.microbatches,
            self.width, int(held.max()), displace, slots, cells, held.ravel(), due.ravel(),
        )  # fmt: skip
        self.slots = slots.reshape(self.slots.shape)
        self.cells = cells.reshape(self.cells.shape)

    def squeezed(self) -> NDArray[np.int64]:
        """Return the slots of all passes if every action runs as soon as it can."""
        placement = self.placement
        order = Schedule.from_programs("block", placement, self.microbatches, self.programs())
        kinds, stages = kinds_of(order.actions), stages_of(order.actions)
        which = np.where(kinds == Kind.F, stages, 2 * placement.stages - 1 - stages)
        passes = kinds != Kind.W
        slots = np.empty_like(self.slots)
        starts = simulate(order, UNIT_COSTS).start.astype(np.int64)
        slots[which[passes], microbatches_of(order.actions)[passes]] = starts[passes]
        return slots

    def programs(self) -> list[Program]:
        """Return programs of all ranks, slot by slot."""
        homes = self.placement.ranks_of_stages
        numbers = np.arange(self.microbatches)
        forward, backward = np.split(self.slots, 2)
        actions = np.zeros(self.cells.shape, dtype=np.int64)
        for kind, slots in ((Kind.F, forward), (Kind.I, backward[::-1])):
            actions[homes[:, None], slots] = pack(kind, np.arange(len(homes))[:, None], numbers)
        programs = []
        for rank in range(self.placement.ranks):
            row, cells = actions[rank], self.cells[rank]
            row[cells == WEIGHT] = as_kind(row[cells == INPUT], Kind.W)
            programs.append(row[cells != IDLE])
        return programs


@kernel(writes=("slots", "cells"))
def fill_gaps(
    events: Array,
    ranks_of: Array,
    microbatches: int,
    width: int,
    most: int,
    displace: bool,
    slots: Array,
    cells: Array,
    held: Array,
    due: Array,
) -> None:
    """Move passes and backwards for weights to the earliest slot that is free.

    `events` are the pieces to move, in this order: passes as ``pass * microbatches + microbatch``,
    backwards for weights as the number of all passes plus their cell. `ranks_of` and `slots` are by
    pass; rank r has the cells from r·width. A rank may hold `most` activations; with `displace` a
    backward for input may change places with one for weights. `cells` are the contents of every
    slot, `held` and `due` the activations that its rank holds after it and the backwards for
    weights that could run.
    """
    passes = len(ranks_of) * microbatches
    for event in events:
        old = event - passes
        if event < passes:
            begin = ranks_of[event // microbatches] * width
            old = begin + slots[event]
            forward = 2 * (event // microbatches) < len(ranks_of)
            ready = begin
            if event >= microbatches:
                ready = begin + slots[event - microbatches] + 1
            if event % microbatches > 0:
                ready = max(ready, begin + slots[event - 1] + 1)
            new = pull_pass(old, ready, forward, displace, most, cells, held, due)
            slots[event] = new - begin
        # Also a backward for weights that has changed places with a pass.
        if cells[old] == WEIGHT:
            pull_weight(old, cells, held, due)


@helper
def pull_pass(
    old: int, ready: int, forward: bool, displace: bool, most: int, cells: Array, held: Array,
    due: Array,
) -> int:  # fmt: skip
    """Move a pass to the earliest slot from `ready` on; returns that slot.

    An earlier forward holds its activation longer, as does a backward for weights that is put off
    because a backward for input takes its slot.
    """
    new = old
    room = True
    at = old - 1
    while at >= ready and (room or not forward):
        room = room and held[at] < most
        cell = cells[at]
        if forward:
            if cell == IDLE and room:
                new = at
        elif cell == IDLE or (cell == WEIGHT and displace and room):
            new = at
        at -= 1
    swap = cells[new] == WEIGHT
    if new < old:
        cells[new] = FORWARD if forward else INPUT
        cells[old] = WEIGHT if swap else IDLE
    for at in range(new, old):
        if forward or swap:
            held[at] += 1
        if not forward:
            due[at] += 2 if swap else 1
    return new


@helper
def pull_weight(old: int, cells: Array, held: Array, due: Array) -> None:
    """Move a backward for weights to the earliest idle slot from which on it is due."""
    new = old
    at = old - 1
    # No rank starts with something due, so this ends within the rank.
    while at > 0 and due[at] > 0 and due[at - 1] > 0:
        if cells[at] == IDLE:
            new = at
        at -= 1
    if new < old:
        cells[new] = WEIGHT
        cells[old] = IDLE
    for at in range(new, old):
        held[at] -= 1
        due[at] -= 1
