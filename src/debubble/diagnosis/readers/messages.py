"""Messages with both ends, matched by their content."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from debubble.core.kind_relations import FORWARD_KIND, FUSED_KIND
from debubble.core.kinds import FORWARD_KINDS, GRADIENT_KINDS
from debubble.diagnosis.observed import Columns, Messages, ObservedActions, Whole

LARGEST = 1 << 62
"""Exclusive limit of the numbers of packed rows."""

BLOCK = 1 << 16
"""Number of rows processed at a time."""

SPARSE = 8
"""Minimum ratio of possible numbers to rows for which distinct numbers are found by sorting."""

CARRIED = ("step", "copy", "forward", "slice", "microbatch", "stage")
"""Columns of a message's content.

The stage is last, so that results of adjacent stages have adjacent numbers.
"""


@dataclass(frozen=True, eq=False)
class MessageEnds(Columns):
    """Ends of messages: their content, and the rank that sends or receives it.

    The content is the result of a stage's action; `forward` is true for a forward.
    """

    step: NDArray[np.int32]
    copy: NDArray[np.int32]
    forward: NDArray[np.int32]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    slice: NDArray[np.int32]
    rank: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Sends(MessageEnds):
    """Sent messages, with times in seconds."""

    sent: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Receives(MessageEnds):
    """Received messages: times in seconds at which the receive is posted, waited for and done."""

    posted: NDArray[np.float64]
    waited: NDArray[np.float64]
    arrived: NDArray[np.float64]


T = TypeVar("T", Sends, Receives)
R = TypeVar("R", ObservedActions, Sends, Receives)


def packed(columns: Sequence[Whole]) -> Whole:
    """Return a number for every row, equal for rows with equal columns."""
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    lows = [int(column.min()) for column in columns]
    widths = [int(each.max()) - low + 1 for each, low in zip(columns, lows, strict=True)]
    small = math.prod(widths) < 1 << 31
    code: Whole = np.zeros(len(columns[0]), np.int32 if small else np.int64)
    size = 1
    for column, low, width in zip(columns, lows, widths, strict=True):
        if width == 1:
            continue
        if size * width >= LARGEST:
            values, code = np.unique(code, return_inverse=True)
            size = len(values)
        code *= width
        np.add(code, column - low, out=code, casting="unsafe")
        size *= width
    return code


def some_of_each(code: Whole) -> Whole:
    """Return one row of each group of rows with equal numbers."""
    size = int(code.max(initial=-1)) + 1
    if size > SPARSE * len(code):
        return np.unique(code, return_index=True)[1]
    row = np.full(size, -1)
    row[code] = np.arange(len(code))
    return row[row >= 0]


def grouped(columns: Sequence[Whole]) -> tuple[Whole, Whole]:
    """Return one row of every group of equal rows, and the group of every row."""
    code = packed(columns)
    size = int(code.max(initial=-1)) + 1
    if size > SPARSE * len(code):
        _, first, group = np.unique(code, return_index=True, return_inverse=True)
        return first, group
    rows = some_of_each(code)
    number = np.zeros(size, np.int64)
    number[code[rows]] = np.arange(len(rows))
    return rows, number[code]


def paired(
    actions: ObservedActions, steps: Sequence[int], sends: Sends, receives: Receives
) -> tuple[Messages, int]:
    """Return messages with the known times of both ends, and the number without an action.

    `actions` are those of whole `steps`, with indices of steps in place of their numbers.
    """
    if not len(sends) and not len(receives):
        return Messages.of(), 0
    sends, receives = _of_steps(sends, steps), _of_steps(receives, steps)
    # A message lies in one step. The data of a few steps fits the processor's cache.
    found: list[Messages] = []
    stray = 0
    for first, behind in _some_steps(actions.step):
        messages, more = _paired(
            _between(actions, first, behind), _between(sends, first, behind),
            _between(receives, first, behind),
        )  # fmt: skip
        found.append(messages)
        stray += more
    return Messages.joined(found), stray


def _some_steps(step: Whole) -> Iterator[tuple[int, int]]:
    """Yield ranges of steps with at least :data:`BLOCK` sorted rows each."""
    at = 0
    while at < len(step):
        behind = int(step[min(at + BLOCK, len(step)) - 1]) + 1
        yield int(step[at]), behind
        at = _first_of(step, behind)


def _first_of(steps: Whole, step: int) -> int:
    """Return the first row of a step, or of a later one."""
    # A number of another type would convert all rows to it.
    return int(np.searchsorted(steps, steps.dtype.type(step)))


def _between(rows: R, first: int, behind: int) -> R:
    """Return the rows of a range of sorted steps."""
    part = slice(_first_of(rows.step, first), _first_of(rows.step, behind))
    return type(rows)(**{name: column[part] for name, column in vars(rows).items()})


def _paired(actions: ObservedActions, sends: Sends, receives: Receives) -> tuple[Messages, int]:
    is_made = np.isin(actions.kind, (*FORWARD_KINDS, *GRADIENT_KINDS))
    makes, done = np.flatnonzero(is_made), actions.take(is_made)
    made = {**vars(done), "forward": np.isin(done.kind, FORWARD_KINDS)}
    every = {
        name: np.concatenate([made[name], getattr(sends, name), getattr(receives, name)])
        for name in CARRIED
    }
    code = packed(list(every.values()))
    first, row = grouped([code[len(makes) :]])
    first += len(makes)
    at, to = row[: len(sends)], row[len(sends) :]
    step, copy, forward, slice, microbatch, stage = (column[first] for column in every.values())
    after = stage + np.where(forward == 1, 1, -1)
    exists = (after >= every["stage"].min(initial=0)) & (after <= every["stage"].max(initial=0))
    wanted = code[first] + np.where(exists, after - stage, 0)
    _, group = grouped([np.concatenate([code[: len(makes)], code[first], wanted])])
    maker = np.full(int(group.max(initial=-1)) + 1, -1)
    maker[group[: len(makes)]] = makes
    source, needs = np.split(maker[group[len(makes) :]], 2)
    needs[~exists] = -1

    ranks, times = np.full((2, len(first)), -1), np.full((4, len(first)), np.nan)
    ranks[0, at], times[0, at] = sends.rank, sends.sent
    ranks[1, to] = receives.rank
    times[1:, to] = receives.posted, receives.waited, receives.arrived
    for mine, action in zip(ranks, (source, needs), strict=True):
        mine[:] = np.where((mine < 0) & (action >= 0), actions.rank[action], mine)
    kind = np.where(needs >= 0, actions.kind[needs], FUSED_KIND)
    kind = np.where(forward == 1, FORWARD_KIND, kind)
    kind = np.where(source >= 0, actions.kind[source], kind)
    keys = step, copy, *ranks, kind, stage, microbatch, slice
    messages = Messages.of(**dict(zip(Messages.types(), (*keys, *times), strict=True)))
    order = np.argsort(packed(keys), kind="stable")
    order = order[ranks.min(axis=0)[order] >= 0]
    return messages.take(order), len(messages) - len(order)


def _of_steps(rows: T, steps: Sequence[int]) -> T:
    """Return the sorted rows of some steps, with indices of steps in place of their numbers."""
    numbers = np.array(steps, dtype=np.int32)
    rows = rows.take(np.isin(rows.step, numbers))
    index = np.searchsorted(numbers, rows.step).astype(np.int32)
    rows = type(rows)(**{**vars(rows), "step": index})
    if (index[1:] >= index[:-1]).all():
        return rows
    return rows.take(np.argsort(index, kind="stable"))
