"""Structural checks of actions: completeness, rank, and order within a microbatch.

All of it is array work: one sort over the actions, then masks. Only what is listed in the report
is ever looked at one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.problems import Findings, Problem, late_need, spot
from debubble.core.actions import COPY_KINDS, VOCABULARY_KINDS, WHOLE_STAGE_KINDS, Action, Kind
from debubble.core.embedding_and_head import first_stages
from debubble.core.kind_relations import (
    FORWARD_KIND,
    FUSED_KIND,
    INPUT_KIND,
    SPLIT_KINDS,
    WEIGHT_KIND,
    order_of,
    slice_order,
)
from debubble.core.kinds import KINDS, OFFLOAD_KINDS, STEP_KINDS, WAIT_KINDS, WORK_KINDS
from debubble.core.schedule import Schedule
from debubble.core.waits import ActionIndex
from debubble.engine.explain.action_faults import LARGE, LONE, bad_groups, misplaced_shard_text
from debubble.engine.kernels.groups import MOST_MEMBERS
from debubble.engine.validate import outside_text

MOST_UNITS = 1 << 36
"""Microbatches a packed action can name; keeps a (stage, microbatch) within 64 bits."""


CELL_KINDS = (*WORK_KINDS, *OFFLOAD_KINDS)
"""Kinds that a (stage, microbatch) has at most once, and that are no transfers."""


class ActionColumns(ActionIndex):
    """Fields of all actions of a schedule, which need not exist."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        # The microbatch of a step is an iteration; the optimizer's own check looks at it.
        counted = (self.unit < schedule.units) | np.isin(self.kind, STEP_KINDS)
        exists = (self.kind < len(Kind)) & (self.stage < schedule.stages)
        self.real: NDArray[np.bool_] = exists & (self.unit >= 0) & counted
        """Whether kind, stage and microbatch exist."""


def inspect_structure(schedule: Schedule, found: Findings) -> None:
    """Report every action that is not there exactly once, in its place and after what it needs."""
    columns = ActionColumns(schedule)
    _range(columns, found)
    _home(columns, found)
    _groups(columns, found)
    _cells(columns, found)
    _shards(columns, found)


def period_of(schedule: Schedule) -> int:
    """Return the microbatches, or slices, of one iteration, as a number that arrays can hold."""
    return min(schedule.microbatches * schedule.slices, MOST_UNITS << 4)


def _range(columns: ActionColumns, found: Findings) -> None:
    schedule = columns.schedule

    def describe(position: int) -> Problem:
        what, _, fix = outside_text(schedule, position).partition("; ")
        return spot(schedule, position).problem("out-of-range", what, fix)

    found.add("out-of-range", np.flatnonzero(~columns.real), describe)


def _home(columns: ActionColumns, found: Findings) -> None:
    schedule, placement = columns.schedule, columns.schedule.placement
    real = np.flatnonzero(columns.real)
    stage, rank = columns.stage[real], columns.rank[real]
    copy = schedule.copies_of(columns.unit[real])
    home = placement.ranks_of_stages[copy * schedule.stages + stage]
    wrong = home != rank
    kind = columns.kind[real]
    if placement.copies > 1:
        rows = placement.ranks_of_stages.reshape(placement.copies, -1)
        anywhere = (rows[:, stage] == rank).any(axis=0)
        wrong &= ~(anywhere & np.isin(kind, WHOLE_STAGE_KINDS))
    # The optimizer step of a rank without stages carries stage 0.
    lives = np.bincount(placement.ranks_of_stages, minlength=schedule.ranks) > 0
    wrong &= lives[rank] | ~np.isin(kind, STEP_KINDS) | (stage != 0)

    def describe(item: int) -> Problem:
        there = int(home[item])
        lives = f"stage {stage[item]} lives on rank {there}"
        if placement.copies > 1:
            half = "first" if copy[item] == 0 else "second"
            lives = (
                f"microbatch {columns.unit[real[item]] // schedule.slices} is in the {half} half "
                f"of its iteration and runs through copy {copy[item]}, whose {lives}"
            )
        return spot(schedule, real[item]).problem(
            "wrong-rank", f"is on the wrong rank: {lives}", f"move it to rank {there}"
        )

    found.add("wrong-rank", np.flatnonzero(wrong), describe)


def _groups(columns: ActionColumns, found: Findings) -> None:
    """Report overlapped groups that cannot be."""
    schedule, bad = columns.schedule, bad_groups(columns)
    fix = (
        "a group is two or more of F, I, W, B and R of different stages or microbatches: "
        "(0F1;0B0)OVERLAP_F_B"
    )

    def describe(item: int) -> Problem:
        position, partner = bad.where[item], bad.partner[item]
        here = spot(schedule, position)
        if partner == LONE:
            return here.problem("bad-pair", "is part of an overlapped group without the rest", fix)
        if partner == LARGE:
            what = f"begins an overlapped group of more than {MOST_MEMBERS} members"
            return here.problem("bad-pair", what, fix)
        other = spot(schedule, partner).text
        waits = ", which waits for it" if columns.cell[position] == columns.cell[partner] else ""
        return here.problem("bad-pair", f"overlaps {other}{waits}", fix, other)

    found.add("bad-pair", np.arange(len(bad.where)), describe)


@dataclass(frozen=True, eq=False)
class _Cells:
    """Every (stage, microbatch) of which some action is there, in ascending order."""

    schedule: Schedule
    number: NDArray[np.int64]
    """Stage times `units` plus microbatch."""
    units: int
    at: dict[Kind, NDArray[np.int64]]
    """Position of the first action of every kind, −1 for none."""

    def texts(self, number: int, *kinds: Kind) -> tuple[str, ...]:
        """Return the texts of actions of a cell."""
        stage, unit = divmod(number, self.units)
        return tuple(self.schedule.text(Action(stage, kind, unit)) for kind in kinds)


def _cells(columns: ActionColumns, found: Findings) -> None:
    """Report duplicates, missing actions, mixed backwards and wrong order in every cell."""
    here = np.flatnonzero(columns.real & np.isin(columns.kind, CELL_KINDS))
    cells, at = _first_positions(columns, here, columns.stage, CELL_KINDS, found)
    there = _Cells(columns.schedule, cells, min(columns.schedule.units, MOST_UNITS), at)
    _mixed(there, found)
    _missing(there, found)
    _lone_copies(there, found)
    _order(there, columns.rank, found)


def _first_positions(
    columns: ActionColumns,
    here: NDArray[np.int64],
    group: NDArray[np.int64],
    kinds: tuple[Kind, ...],
    found: Findings,
) -> tuple[NDArray[np.int64], dict[Kind, NDArray[np.int64]]]:
    """Return the cells of the actions `here`, and where each kind first runs; report duplicates.

    A cell is a group and a microbatch, in ascending order: ``group * units + microbatch``. A kind
    that a cell lacks has the position −1.
    """
    schedule, count = columns.schedule, len(kinds)
    slot = np.zeros(len(Kind), dtype=np.int64)
    slot[list(kinds)] = np.arange(count)
    cell = group[here] * min(schedule.units, MOST_UNITS) + columns.unit[here]
    key = cell * count + slot[columns.kind[here]]
    keys, first = np.unique(key, return_index=True)

    def describe(item: int) -> Problem:
        original = spot(schedule, here[first[np.searchsorted(keys, key[item])]])
        what = f"runs again; it runs on rank {original.rank} as action {original.place}"
        return spot(schedule, here[item]).problem("duplicate", what, "remove one of them")

    found.add("duplicate", np.delete(np.arange(len(here)), first), describe)
    cells, index = np.unique(keys // count, return_inverse=True)
    table = np.full((count, len(cells)), -1, dtype=np.int64)
    table[keys % count, index] = here[first]
    return cells, dict(zip(kinds, table, strict=True))


def _lone_copies(cells: _Cells, found: Findings) -> None:
    """Report copies without their other half, and waits without the copy that they wait for."""
    halves = [
        COPY_KINDS,
        COPY_KINDS[::-1],
        *((kind, KINDS[kind].needs[0].kinds[0]) for kind in WAIT_KINDS),
    ]
    for present, absent in halves:
        lone = np.flatnonzero((cells.at[present] >= 0) & (cells.at[absent] < 0))

        def describe(cell: int, present: Kind = present, absent: Kind = absent) -> Problem:
            there = spot(cells.schedule, cells.at[present][cell])
            (wanted,) = cells.texts(int(cells.number[cell]), absent)
            return Problem(
                "missing", f"{wanted} is missing, the other half of {there.text}", there.rank, None,
                (wanted, there.text), f"add it on rank {there.rank}, or remove {there.text}",
            )  # fmt: skip

        found.add("missing", lone, describe)


def _mixed(cells: _Cells, found: Findings) -> None:
    at, parts = cells.at, SPLIT_KINDS
    both = (at[FUSED_KIND] >= 0) & ((at[INPUT_KIND] >= 0) | (at[WEIGHT_KIND] >= 0))

    def describe(cell: int) -> Problem:
        halves = cells.texts(int(cells.number[cell]), *parts)
        there = [t for kind, t in zip(parts, halves, strict=True) if at[kind][cell] >= 0]
        here = spot(cells.schedule, at[FUSED_KIND][cell])
        what = f"runs the full backward, and {' and '.join(there)} a part of it again"
        if at[INPUT_KIND][cell] < 0:
            what += " (older PyTorch writes B for I, the input half)"
        fix = f"keep {here.text}, or {' and '.join(halves)}"
        return here.problem("mixed-backward", what, fix, *there)

    found.add("mixed-backward", np.flatnonzero(both), describe)


def _missing(cells: _Cells, found: Findings) -> None:
    schedule = cells.schedule
    forward, grad_input, grad_weight, full = (
        cells.at[kind] >= 0 for kind in (FORWARD_KIND, INPUT_KIND, WEIGHT_KIND, FUSED_KIND)
    )
    split = bool(grad_input.any() or grad_weight.any())
    backward = SPLIT_KINDS if split else (FUSED_KIND,)

    def describe(cell: int, kinds: tuple[Kind, ...]) -> Problem:
        stage, unit = divmod(cell, cells.units)
        copy = int(schedule.copies_of(np.array([unit]))[0])
        return _absent(schedule.placement.table[copy][stage], *cells.texts(cell, *kinds))

    for gap, kinds in (
        (~forward & (full | grad_input | grad_weight), (FORWARD_KIND,)),
        (forward & ~(full | grad_input | grad_weight), backward),
        (~full & grad_input & ~grad_weight, (WEIGHT_KIND,)),
        (~full & ~grad_input & grad_weight, (INPUT_KIND,)),
        (~(forward | full | grad_input | grad_weight), (FORWARD_KIND, *backward)),
    ):
        found.add("missing", cells.number[gap], partial(describe, kinds=kinds))

    # Cells of which nothing is there.
    every = partial(describe, kinds=(FORWARD_KIND, *backward))
    found.add_gaps("missing", cells.number, schedule.stages * schedule.units, every)


def _absent(rank: int, *texts: str) -> Problem:
    """Return the problem that actions of a rank are not there."""
    one = len(texts) == 1
    message = f"{' and '.join(texts)} {'is' if one else 'are'} missing"
    return Problem(
        "missing", message, rank, None, texts, f"add {'it' if one else 'them'} on rank {rank}"
    )


def _order(cells: _Cells, rank: NDArray[np.int64], found: Findings) -> None:
    """Report actions that stand before one of their stage and microbatch that they need."""
    schedule, at = cells.schedule, cells.at

    def early(one: NDArray[np.int64], other: NDArray[np.int64]) -> None:
        swapped = np.flatnonzero((one >= 0) & (one < other) & (rank[one] == rank[other]))

        def describe(cell: int) -> Problem:
            return late_need(spot(schedule, one[cell]), spot(schedule, other[cell]))

        found.add("order", swapped[np.argsort(one[swapped])], describe)

    for kind, needed in order_of(CELL_KINDS):
        early(at[kind], at[needed])
    if schedule.slices > 1:
        # Cells next to each other that are slices of one microbatch on one stage.
        number = cells.number
        next_slice = (np.diff(number) == 1) & (number[1:] % cells.units % schedule.slices > 0)
        for kinds, offset in slice_order():
            # A backward is either I or B.
            one = np.max([at[kind] for kind in kinds], axis=0)
            before, after = (one[1:], one[:-1]) if offset < 0 else (one[:-1], one[1:])
            early(before[next_slice], after[next_slice])


def _shards(columns: ActionColumns, found: Findings) -> None:
    """Report passes of a sharded output layer that are not S, then T, once on every rank."""
    schedule, rank = columns.schedule, columns.rank
    here = np.flatnonzero(columns.real & np.isin(columns.kind, VOCABULARY_KINDS))

    def misplaced(position: int) -> Problem:
        what, fix = misplaced_shard_text(schedule, position)
        return spot(schedule, position).problem("vocabulary", what, fix)

    def missing(cell: int, kind: Kind) -> Problem:
        number, unit = divmod(cell, units)
        return _absent(number, schedule.text(Action(int(first[number]), kind, unit)))

    if not schedule.vocabulary:
        found.add("vocabulary", here, misplaced)
        return
    first = first_stages(schedule.placement)
    units = min(schedule.units, MOST_UNITS)
    placed = columns.stage[here] == first[rank[here]]
    found.add("vocabulary", here[~placed], misplaced)
    cells, at = _first_positions(columns, here[placed], rank, VOCABULARY_KINDS, found)
    for kind in VOCABULARY_KINDS:
        there = cells[at[kind] >= 0]
        found.add_gaps("missing", there, schedule.ranks * units, partial(missing, kind=kind))
    S, T = at.values()
    wrong = np.flatnonzero((T >= 0) & (S > T))

    def early(cell: int) -> Problem:
        return late_need(spot(schedule, T[cell]), spot(schedule, S[cell]))

    found.add("order", wrong[np.argsort(T[wrong])], early)
