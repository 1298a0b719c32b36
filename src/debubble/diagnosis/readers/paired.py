"""Both ends of messages, found by what they carry, with the ranks of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS, Kind
from debubble.diagnosis.observed import Actions, Messages

Table = NDArray[np.float64]
Whole = NDArray[np.integer[Any]]

LARGEST = 1 << 62
"""Number that no packed row reaches."""

SPARSE = 8
"""Numbers to a row from which on those that occur are found by sorting."""

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


def grouped(columns: Sequence[Whole]) -> tuple[Whole, Whole]:
    """A row of every group of rows that are equal, and the group of every row."""
    code = packed(columns)
    size = int(code.max(initial=-1)) + 1
    if size > SPARSE * len(code):
        _, rows, group = np.unique(code, return_index=True, return_inverse=True)
        return rows, group
    row = np.full(size, -1)
    row[code] = np.arange(len(code))
    there = row >= 0
    return row[there], (np.cumsum(there) - 1)[code]


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
    makes = np.flatnonzero(np.isin(actions.kind, (*FORWARD_KINDS, *GRADIENT_KINDS)))
    done = actions.take(makes)
    made = (
        done.step, done.copy, np.isin(done.kind, FORWARD_KINDS), done.stage, done.microbatch,
        done.slice,
    )  # fmt: skip
    every = [
        np.concatenate([mine, sends[:, at], receives[:, at]], dtype=np.int32, casting="unsafe")
        for at, mine in enumerate(made)
    ]
    # With the stage last, what a neighbouring stage makes has a neighbouring number.
    code = packed([*every[:STAGE], *every[STAGE + 1 :], every[STAGE]])
    first, row = grouped([code[len(makes) :]])
    first += len(makes)
    at, to = row[: len(sends)], row[len(sends) :]
    step, copy, forward, stage, microbatch, slice = (column[first] for column in every)
    after = stage + np.where(forward == 1, 1, -1)
    exists = (after >= every[STAGE].min(initial=0)) & (after <= every[STAGE].max(initial=0))
    wanted = code[first] + np.where(exists, after - stage, 0)
    _, group = grouped([np.concatenate([code[: len(makes)], code[first], wanted])])
    maker = np.full(int(group.max(initial=-1)) + 1, -1)
    maker[group[: len(makes)]] = makes
    source, needs = np.split(maker[group[len(makes) :]], 2)
    needs[~exists] = -1

    ranks, times = np.full((2, len(first)), -1), np.full((4, len(first)), np.nan)
    ranks[0, at], times[0, at] = sends[:, UNIT:].T
    ranks[1, to], times[1:, to] = receives[:, UNIT], receives[:, UNIT + 1 :].T
    for mine, action in zip(ranks, (source, needs), strict=True):
        mine[:] = np.where((mine < 0) & (action >= 0), actions.rank[action], mine)
    kind = np.where(needs >= 0, actions.kind[needs], Kind.B)
    kind = np.where(source >= 0, actions.kind[source], np.where(forward == 1, Kind.F, kind))
    keys = step, copy, *ranks, kind, stage, microbatch, slice
    messages = Messages.of(**dict(zip(Messages.types(), (*keys, *times), strict=True)))
    order = np.argsort(packed(keys), kind="stable")
    order = order[ranks.min(axis=0)[order] >= 0]
    return messages.take(order), len(messages) - len(order)


def _of_steps(rows: Table, steps: Sequence[int]) -> Table:
    """Rows of these steps, with the indices of those."""
    numbers = np.array(steps, dtype=np.float64)
    known = np.isin(rows[:, 0], numbers)
    rows = rows if known.all() else rows[known]
    rows[:, 0] = np.searchsorted(numbers, rows[:, 0])
    return rows
