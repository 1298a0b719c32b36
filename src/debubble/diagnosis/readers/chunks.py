"""Stages of the chunks of ranks, for formats with chunk numbers instead of stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from debubble.core.kinds import FORWARD_KINDS, Kind
from debubble.diagnosis.observed import Columns, Whole
from debubble.diagnosis.readers.messages import packed

CHUNK_TWO_IS_NEXT = 0.5
"""Maximum time from chunk to chunk on the last rank of a V, as a share of rank 0's."""

T = TypeVar("T", int, NDArray[np.integer[Any]])


@dataclass(frozen=True, eq=False)
class Calls(Columns):
    """Actions of a format with chunk numbers; times in seconds."""

    step: Whole
    rank: Whole
    kind: Whole
    chunk: Whole
    microbatch: Whole
    start: NDArray[np.float64]
    end: NDArray[np.float64]


def is_v_shaped(calls: Calls, ranks: int) -> bool:
    """Return True if second chunks are placed in reverse, judged by first forwards at both ends.

    In a V, the last rank's second chunk comes right after its first, and rank 0's after the way to
    the last rank and back. Else the time from one chunk to the next is equal on every rank.
    """
    shows = (calls.microbatch == 0) & (calls.chunk < 2) & np.isin(calls.kind, FORWARD_KINDS)
    shows &= (calls.rank == 0) | (calls.rank == ranks - 1)
    times: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
    columns = (column.tolist() for column in vars(calls.take(shows)).values())
    for step, rank, _, chunk, _, start, end in zip(*columns, strict=True):
        times.setdefault((step, rank), {})[chunk] = (start, end)
    waits = {
        rank: [
            two[1][0] - two[0][1]
            for (_, at), two in times.items() if at == rank and len(two) == 2
        ]
        for rank in (0, ranks - 1)
    }  # fmt: skip
    if ranks < 2 or not all(waits.values()):
        return False
    return bool(np.median(waits[ranks - 1]) < CHUNK_TWO_IS_NEXT * np.median(waits[0]))


def with_split_backwards(calls: Calls, *more: Whole) -> Whole:
    """Return the kinds of calls: a backward is one for the input if one for weights exists.

    `more` are columns that identify an action in addition to its chunk and microbatch.
    """
    weights = calls.kind == Kind.W
    if not weights.any():
        return calls.kind
    action = packed([calls.step, calls.rank, calls.chunk, calls.microbatch, *more])
    split = np.isin(action, action[weights])
    return np.where(split & (calls.kind == Kind.B), Kind.I, calls.kind)


def stage_of(rank: Whole, chunk: Whole, ranks: int, v_shaped: bool) -> Whole:
    """Return the stage of a chunk: rounds over the ranks, there and back if V-shaped."""
    return chunk * ranks + _placed_at(rank, chunk, ranks, v_shaped)


def rank_of(stage: Whole, ranks: int, v_shaped: bool) -> Whole:
    """Return the rank of a stage."""
    return _placed_at(stage % ranks, stage // ranks, ranks, v_shaped)


def _placed_at(place: Whole, chunk: Whole, ranks: int, v_shaped: bool) -> Whole:
    return np.where(chunk % 2 == 1, ranks - 1 - place, place) if v_shaped else place


def placed(v_shaped: bool) -> str:
    """Return the placement of chunks in words."""
    return "placed in a V" if v_shaped else "placed round by round"


def kth_call(k: T, ranks: int, chunks: int, backward: bool) -> tuple[T, T]:
    """Return chunk and microbatch of a rank's k-th call in Megatron's interleaved schedule.

    `k` may be an array of many.

    Examples
    --------
    >>> [kth_call(k, 2, 2, backward=False) for k in range(5)]
    [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2)]
    """
    group, place = divmod(k, ranks * chunks)
    chunk, microbatch = divmod(place, ranks)
    return chunks - 1 - chunk if backward else chunk, group * ranks + microbatch
