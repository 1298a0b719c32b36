"""Copies of activations out of their ranks and back: both there, once, and in order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.analysis.problems import Findings, Problem, late_need, spot
from debubble.analysis.structure import MOST_UNITS, Columns
from debubble.core.actions import COPY_KINDS, Action, Kind
from debubble.core.kind_relations import order_of
from debubble.core.kinds import KINDS, OFFLOAD_KINDS, WAIT_KINDS, WORK_KINDS
from debubble.core.schedule import Schedule

_KINDS = (*WORK_KINDS, *OFFLOAD_KINDS)

ORDER = tuple(pair for pair in order_of(_KINDS) if not set(pair) <= set(WORK_KINDS))
"""Pairs (earlier, later) of kinds within a (stage, microbatch) that is offloaded."""


def inspect_copies(schedule: Schedule, found: Findings) -> None:
    """Report copies that are repeated, come without their other half, or at the wrong time.

    An activation is offloaded once, after its forward, and reloaded once, before what reads it. In
    between a rank may wait for the offload, once.
    """
    columns = Columns.of(schedule)
    copies = columns.real & np.isin(columns.kind, OFFLOAD_KINDS)
    if not copies.any():
        return
    units = min(schedule.units, MOST_UNITS)
    cell = np.where(columns.real, columns.stage * units + columns.unit, -1)
    cells = np.unique(cell[copies])
    at = {kind: _positions(columns, cell, cells, kind, found) for kind in _KINDS}
    for present, absent in (COPY_KINDS, COPY_KINDS[::-1]):
        _alone(schedule, cells, at[present], at[absent], absent, found)
    for kind in WAIT_KINDS:
        (copy,) = KINDS[kind].needs[0].kinds
        _alone(schedule, cells, at[kind], at[copy], copy, found)
    for kind, needed in ORDER:
        _early(schedule, columns.rank, at[kind], at[needed], found)


def _positions(
    columns: Columns, cell: NDArray[np.int64], cells: NDArray[np.int64], kind: Kind, found: Findings
) -> NDArray[np.int64]:
    """Position of the first action of a kind in each of `cells`, −1 for none."""
    here = np.flatnonzero((columns.kind == kind) & np.isin(cell, cells))
    first = np.full(len(cells), -1, dtype=np.int64)
    index = np.searchsorted(cells, cell[here])
    first[index[::-1]] = here[::-1]
    again = here[first[index] != here]
    if kind not in WORK_KINDS:
        found.say("duplicate", columns.schedule, again, "runs twice", "remove one")
    return first


def _alone(
    schedule: Schedule,
    cells: NDArray[np.int64],
    present: NDArray[np.int64],
    absent: NDArray[np.int64],
    kind: Kind,
    found: Findings,
) -> None:
    units = min(schedule.units, MOST_UNITS)

    def describe(item: int) -> Problem:
        there = spot(schedule, present[item])
        stage, unit = divmod(int(cells[item]), units)
        wanted = str(Action(stage, kind, unit))
        return Problem(
            "missing", f"{wanted} is missing beside {there.text}", there.rank, None,
            (wanted, there.text), f"add it on rank {there.rank}, or remove {there.text}",
        )  # fmt: skip

    found.add("missing", np.flatnonzero((present >= 0) & (absent < 0)), describe)


def _early(
    schedule: Schedule,
    rank: NDArray[np.int64],
    one: NDArray[np.int64],
    other: NDArray[np.int64],
    found: Findings,
) -> None:
    swapped = np.flatnonzero((one >= 0) & (one < other) & (rank[one] == rank[other]))

    def describe(item: int) -> Problem:
        return late_need(spot(schedule, one[item]), spot(schedule, other[item]))

    found.add("order", swapped, describe)
