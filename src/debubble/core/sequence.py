"""The algebra of schedules: a program is an array, built from a few parts.

>>> ramp = forward(0, range(2))
>>> show(sequence(ramp, alternate(forward(0, [2, 3]), backward(0, [0, 1])), backward(0, [2, 3])))
'0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3'
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from debubble.core.actions import PAIR_SHIFT, STAGE_SHIFT, Kind, Program, cells, kinds_of, pack

EMPTY: Program = np.empty(0, dtype=np.int64)


def forward(stage: ArrayLike, microbatch: ArrayLike) -> Program:
    """Return forward actions; `stage` and `microbatch` broadcast."""
    return pack(Kind.F, stage, microbatch)


def backward(stage: ArrayLike, microbatch: ArrayLike) -> Program:
    """Return full backward actions."""
    return pack(Kind.B, stage, microbatch)


def backward_input(stage: ArrayLike, microbatch: ArrayLike) -> Program:
    """Return backward-for-input actions."""
    return pack(Kind.I, stage, microbatch)


def backward_weight(stage: ArrayLike, microbatch: ArrayLike) -> Program:
    """Return backward-for-weight actions."""
    return pack(Kind.W, stage, microbatch)


def as_kind(program: Program, kind: Kind) -> Program:
    """Return the actions with another kind, at their stages and microbatches."""
    return program ^ (kinds_of(program) ^ int(kind))


def moved(program: Program, stages: int) -> Program:
    """Return the actions `stages` stages further on."""
    return program + (stages << STAGE_SHIFT)


def sequence(*parts: Program) -> Program:
    """Join parts one after the other."""
    return np.concatenate(parts) if parts else EMPTY


def alternate(*parts: Program) -> Program:
    """Weave parts of the same length: the first of each, then the second of each, …."""
    lengths = {len(part) for part in parts}
    assert len(lengths) == 1, f"parts of different lengths {[len(part) for part in parts]}"
    woven = np.empty(len(parts) * lengths.pop(), dtype=np.int64)
    for index, part in enumerate(parts):
        woven[index :: len(parts)] = part
    return woven


def overlap(first: Program, second: Program) -> Program:
    """Return pairs of actions that are executed together, one of each part at a time."""
    return alternate(*paired(first, second))


def paired(first: Program, second: Program) -> tuple[Program, Program]:
    """Return first and second members of overlapped pairs, to be put next to each other."""
    return first | (1 << PAIR_SHIFT), second | (2 << PAIR_SHIFT)


def by_slot(program: Program, slots: NDArray[np.int64]) -> Program:
    """Return the actions in the order of their slots; no two of them share a slot.

    Examples
    --------
    >>> show(by_slot(forward(0, [0, 1, 2]), np.array([4, 0, 7])))
    '0F1 0F0 0F2'
    """
    first = slots.min()
    row = np.full(slots.max() - first + 1, -1, dtype=np.int64)
    row[slots - first] = program
    placed: Program = row[row >= 0]
    assert len(placed) == program.size, "two actions in one slot"
    return placed


def merge(*parts: tuple[NDArray[np.int64] | NDArray[np.float64], Program]) -> Program:
    """Return actions in the order of their slots; in one slot those of earlier parts come first.

    Each part is the slots of its actions, or their times, and the actions.

    Examples
    --------
    >>> F, B = forward(0, range(3)), backward(0, range(3))
    >>> show(merge((np.arange(3), F), (np.arange(1, 4), B)))
    '0F0 0F1 0B0 0F2 0B1 0B2'
    """
    slots, actions = (np.concatenate(column) for column in zip(*parts, strict=True))
    return np.asarray(actions[np.argsort(slots, kind="stable")])


def interleaved_table(
    microbatches: int, chunks: int, group_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return chunk and microbatch at every position of an interleaved schedule.

    Groups of `group_size` microbatches; within a group every chunk in turn handles all of them.
    A last group that would be smaller than `group_size` is a group of its own.

    Returns
    -------
    chunk, microbatch
        Arrays of length ``microbatches * chunks``.

    Examples
    --------
    Megatron-LM's own example, groups of 3, 5 microbatches, 2 chunks:

    >>> chunk, microbatch = interleaved_table(5, 2, 3)
    >>> microbatch.tolist(), chunk.tolist()
    ([0, 1, 2, 0, 1, 2, 3, 4, 3, 4], [0, 0, 0, 1, 1, 1, 0, 0, 1, 1])
    """
    full = microbatches // group_size
    grid = np.broadcast_to(
        np.arange(full * group_size).reshape(full, 1, group_size), (full, chunks, group_size)
    )
    rest = np.arange(full * group_size, microbatches)
    numbers = np.concatenate([grid.ravel(), np.tile(rest, chunks)])
    order = np.concatenate(
        [
            np.tile(np.repeat(np.arange(chunks), group_size), full),
            np.repeat(np.arange(chunks), len(rest)),
        ]
    )
    return order, numbers


def show(program: Program, slices: int = 1) -> str:
    """Return a program as text, for documentation and error messages."""
    return " ".join(cells(program, slices))
