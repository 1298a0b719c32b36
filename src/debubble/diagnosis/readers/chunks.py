"""Which stage a chunk of a rank is, where a format counts chunks and not stages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from debubble.core.kinds import FORWARD_KINDS

CHUNK_TWO_IS_NEXT = 0.5
"""Share of rank 0's time from chunk to chunk below which it is short on the last rank."""

Row = tuple[int, int, int, int, int, float, float]
"""Step, rank, kind, chunk, microbatch, start and end of an action."""


def is_v_shaped(rows: Iterable[Row], ranks: int) -> bool:
    """Whether the second chunks lie on the ranks in reverse order.

    Then the last rank's second chunk comes right after its first, and rank 0's after the way to
    the last rank and back. Else the way from one chunk to the next is as long on every rank.
    """
    times: dict[tuple[int, int, int], dict[int, tuple[float, float]]] = {}
    for step, rank, kind, chunk, microbatch, start, end in rows:
        if kind in FORWARD_KINDS and microbatch == 0 and chunk < 2 and rank in (0, ranks - 1):
            times.setdefault((step, rank, microbatch), {})[chunk] = (start, end)
    waits = {
        rank: [
            two[1][0] - two[0][1]
            for (_, at, _), two in times.items() if at == rank and len(two) == 2
        ]
        for rank in (0, ranks - 1)
    }  # fmt: skip
    if ranks < 2 or not all(waits.values()):
        return False
    return bool(np.median(waits[ranks - 1]) < CHUNK_TWO_IS_NEXT * np.median(waits[0]))


def stage_of(rank: int, chunk: int, ranks: int, v_shaped: bool) -> int:
    """The stage of a chunk: rounds over the ranks, there and back where they are V-shaped."""
    return chunk * ranks + (ranks - 1 - rank if v_shaped and chunk % 2 else rank)


def rank_of(stage: int, ranks: int, v_shaped: bool) -> int:
    """The rank of a stage."""
    chunk, place = divmod(stage, ranks)
    return ranks - 1 - place if v_shaped and chunk % 2 else place


def placed(v_shaped: bool) -> str:
    """What was taken for the stage, in words."""
    return "placed in a V" if v_shaped else "placed round by round"


def kth_call(k: int, ranks: int, chunks: int, backward: bool) -> tuple[int, int]:
    """Chunk and microbatch of a rank's k-th call as Megatron's interleaved schedule numbers them.

    Examples
    --------
    >>> [kth_call(k, 2, 2, backward=False) for k in range(5)]
    [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2)]
    """
    group, place = divmod(k, ranks * chunks)
    chunk, microbatch = divmod(place, ranks)
    return chunks - 1 - chunk if backward else chunk, group * ranks + microbatch
