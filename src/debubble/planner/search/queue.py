"""The queue of a search: candidates that are not decided, the most promising first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from debubble.planner.candidate import Candidate
from debubble.planner.search.within_memory import BaseVariants


class Turn(IntEnum):
    """Kinds of items, in the order in which they take turns."""

    SEVERAL = 0
    """Many candidates at a time. Where no limit is known they come before single ones, so that
    plans that fit are looked for among all; then what has the lower bound comes first."""
    SINGLE = 1
    MADE = 2
    """Candidates whose schedules are made for costs, which takes long: few of them are looked at
    once the others are decided."""

    @staticmethod
    def of(candidate: Candidate) -> Turn:
        """Return the kind of a single candidate."""
        return Turn.MADE if candidate.uses_costs else Turn.SINGLE


class Undecided(NamedTuple):
    """Candidates that are not decided, with what is known of them so far."""

    bound: float
    """Seconds that none of them is below."""
    number: int
    """Number of the item: of equal bounds the first comes first."""
    size: int
    """Number of candidates."""
    reason: str
    """Reason to leave them out where the bound is too high."""
    open: Callable[[], None]
    """Function that looks closer, and decides or adds items with higher bounds."""
    variants: Sequence[BaseVariants]
    """Variants of a candidate that was simulated."""


class Queue:
    """A heap of items for each :class:`Turn`, the lowest bound first."""

    def __init__(self) -> None:
        self._heaps: tuple[list[Undecided], ...] = tuple([] for _ in Turn)
        self._number = 0

    def __bool__(self) -> bool:
        return any(self._heaps)

    def add(
        self, bound: float, size: int, reason: str, then: Callable[[], None],
        variants: Sequence[BaseVariants] = (), *, turn: Turn = Turn.SEVERAL,
    ) -> None:  # fmt: skip
        """Add an item that `then` opens."""
        self._number += 1
        item = Undecided(bound, self._number, size, reason, then, variants)
        heappush(self._heaps[turn], item)

    def pop(self, limit: float) -> Undecided:
        """Take the next item, one with a bound within `limit` if there is any."""
        several, single, made = heaps = self._heaps
        if math.isfinite(limit) and several and single and single[0] < several[0]:
            heaps = single, several, made
        left = [heap for heap in heaps if heap]
        return heappop(next((heap for heap in left if heap[0].bound <= limit), left[0]))

    def drain(self) -> Iterator[Undecided]:
        """Yield all items, none of which is left then."""
        for heap in self._heaps:
            yield from heap
            heap.clear()
