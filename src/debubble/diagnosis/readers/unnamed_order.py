"""Chunks and microbatches of forwards and backwards without names, by the number of forwards ahead.

A rank of 1F1B runs as many forwards before its first backward as stages follow it. In Megatron's
interleaved 1F1B it runs two for each rank that follows, and a round for each further chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from debubble.diagnosis.readers.chunks import kth_call

FORWARD, BACKWARD = range(2)


class UnnamedAction(NamedTuple):
    """Forward or backward without a name; times in nanoseconds."""

    start: int
    end: int
    kind: int


class AssumedOrder(NamedTuple):
    """Order that the numbers of forwards fit: microbatches of a step, and chunks of a rank."""

    microbatches: int
    chunks: int

    @property
    def name(self) -> str:
        """Name of the schedule."""
        return "1f1b" if self.chunks == 1 else "interleaved-1f1b"

    def numbered(self, kind: int, ranks: int) -> list[tuple[int, int]]:
        """Return chunk and microbatch of all forwards, or backwards, of a rank in a step.

        Examples
        --------
        >>> AssumedOrder(3, 2).numbered(FORWARD, 2)
        [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
        """
        calls = -(-self.microbatches // ranks) * ranks * self.chunks
        every = (kth_call(k, ranks, self.chunks, kind == BACKWARD) for k in range(calls))
        return [(chunk, unit) for chunk, unit in every if unit < self.microbatches]


def assumed_order(
    traces: Iterable[tuple[int, Sequence[UnnamedAction]]], ranks: int, calls: int = 0
) -> AssumedOrder | None:
    """Return the order that all traces fit, given with their rank in the pipeline; None for none.

    A trace begins at the beginning of a step; a rank may have several. `calls` is the number of
    backwards of a rank in a step; 0 if it is not known.
    """
    filled = [(rank, runs) for rank, runs in traces if runs]
    calls = calls or backwards_of_step(runs for _, runs in filled)
    if not calls or not filled:
        return None
    ahead = {(rank, forwards_ahead(runs)) for rank, runs in filled}
    for chunks in range(1, calls + 1):
        wanted = {
            rank: ranks - rank if chunks == 1 else 2 * (ranks - rank) + (chunks - 1) * ranks - 1
            for rank, _ in ahead
        }  # fmt: skip
        if calls % chunks == 0 and ahead == {(r, min(each, calls)) for r, each in wanted.items()}:
            # Where the last rank runs all of its forwards first, nothing shows the chunks.
            last = dict(ahead).get(ranks - 1, 0)
            return AssumedOrder(calls // chunks, chunks) if last < calls or calls == 1 else None
    return None


def backwards_of_step(orders: Iterable[Sequence[UnnamedAction]]) -> int:
    """Return the backwards of a step: those until nothing is in flight; 0 for none.

    On a rank with fewer in flight than others, nothing is more often within a step.
    """
    most, found = 0, 0
    for runs in orders:
        flying, highest, done, first = 0, 0, 0, 0
        for run in runs:
            flying += 1 if run.kind == FORWARD else -1
            highest = max(highest, flying)
            done += run.kind == BACKWARD
            if flying == 0 and not first:
                first = done
        if highest > most:
            most, found = highest, first
    return found


def forwards_ahead(runs: Sequence[UnnamedAction]) -> int:
    """Return the number of forwards before the first backward."""
    kinds = [run.kind for run in runs]
    return kinds.index(BACKWARD) if BACKWARD in kinds else len(kinds)
