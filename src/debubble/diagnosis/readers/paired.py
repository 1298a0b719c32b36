"""Both ends of messages, found by what they carry, with the ranks of both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS, Kind
from debubble.diagnosis.observed import Actions, Messages

Table = NDArray[np.float64]
Whole = NDArray[np.int64]

LARGEST = 1 << 62
"""Number that no packed row reaches."""

STAGE = 3
"""Column of the stage in what a message carries."""

UNIT = 6
"""Columns of what it carries: step, copy, whether it is an activation, stage, microbatch, slice."""


def packed(columns: Sequence[Whole]) -> Whole:
    """A number for every row, equal where all columns are."""
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low = int(column.min(initial=0))
        width = int(column.max(initial=0)) - low + 1
        if size * width >= LARGEST:
            values, code = np.unique(code, return_inverse=True)
            size = len(values)
        code = code * width + (column - low)
        size *= width
    return code


def paired(
    actions: Actions, steps: Sequence[int], sends: Table, receives: Table
) -> tuple[Messages, int]:
    """Messages with what is known of both ends, and how many belong to no action.

    Parameters
    ----------
    actions
        Those of whole steps, with the indices of these in place of their numbers.
    steps
        Their numbers.
    sends, receives
        Rows of step, copy, whether it is an activation, stage, microbatch and slice of what is
        sent, the rank, and when it was sent, or posted, waited for and there.
    """
    sends, receives = _of_steps(sends, steps), _of_steps(receives, steps)
    every = np.concatenate([sends[:, :UNIT], receives[:, :UNIT]]).astype(np.int64)
    _, first, row = np.unique(packed(list(every.T)), return_index=True, return_inverse=True)
    key = every[first]
    at, to = row[: len(sends)], row[len(sends) :]
    ranks, times = np.full((2, len(key)), np.nan), np.full((4, len(key)), np.nan)
    ranks[0, at], times[0, at] = sends[:, UNIT:].T
    ranks[1, to], times[1:, to] = receives[:, UNIT], receives[:, UNIT + 1 :].T

    forward = key[:, 2] == 1
    after = key.copy()
    after[:, STAGE] += np.where(forward, 1, -1)
    makes = np.flatnonzero(np.isin(actions.kind, (*FORWARD_KINDS, *GRADIENT_KINDS)))
    made = np.stack([
        actions.step[makes], actions.copy[makes], np.isin(actions.kind[makes], FORWARD_KINDS),
        actions.stage[makes], actions.microbatch[makes], actions.slice[makes],
    ], axis=1).astype(np.int64)  # fmt: skip
    codes = packed(list(np.concatenate([made, key, after]).T))
    source, needs = (
        _found(codes[: len(made)], makes, wanted)
        for wanted in np.split(codes[len(made) :], 2)
    )  # fmt: skip
    for place, action in enumerate((source, needs)):
        known = np.where(action >= 0, actions.rank[action], np.nan)
        ranks[place] = np.where(np.isnan(ranks[place]), known, ranks[place])
    kind = np.where(needs >= 0, actions.kind[needs], Kind.B)
    kind = np.where(source >= 0, actions.kind[source], np.where(forward, Kind.F, kind))
    rows = np.column_stack([key[:, :2], ranks.T, kind, key[:, STAGE:], times.T])
    sound = ~np.isnan(ranks).any(axis=0)
    rows = rows[sound]
    rows = rows[np.lexsort(rows[:, 7::-1].T)]
    names = list(Messages.types())
    messages = Messages.of(**dict(zip(names, rows.T, strict=True)))
    return messages, int(np.count_nonzero(~sound))


def _of_steps(rows: Table, steps: Sequence[int]) -> Table:
    """Rows of these steps, with the indices of those."""
    numbers = np.array(steps, dtype=np.float64)
    rows = rows[np.isin(rows[:, 0], numbers)]
    rows[:, 0] = np.searchsorted(numbers, rows[:, 0])
    return rows


def _found(codes: Whole, rows: Whole, wanted: Whole) -> Whole:
    """The last of the rows that has each wanted code, −1 where none has."""
    sort = np.argsort(codes, kind="stable")
    place = np.searchsorted(codes, wanted, side="right", sorter=sort) - 1
    if not len(codes):
        return np.full(len(wanted), -1)
    at = sort[place]
    return np.where((place >= 0) & (codes[at] == wanted), rows[at], -1)
