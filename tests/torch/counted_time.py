"""Time that is counted in place of measured, in the ranks of our runtime.

Nobody sleeps, and the load of the machine does not count: every rank has a clock that a pause puts
forward. A message carries the time at which it was sent, and whoever waits for it waits until then,
and for as long as its link takes. All else is the runtime as it is, with all that it measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from debubble.torch.ranks.process_group import Ranks, Tag

TIMES: Any = 99
"""Tag of the messages with times."""


@dataclass
class Clock:
    """The clock of this rank.

    Parameters
    ----------
    flight
        Seconds of a message from another rank.
    now
        Time in nanoseconds.
    """

    flight: Callable[[int], float]
    now: int = 1_000_000_000

    def pause(self, seconds: float) -> None:
        """Put the clock forward."""
        self.now += round(1e9 * seconds)

    def meet(self, group: Any = None) -> None:
        """Wait for the last of all ranks."""
        last = torch.tensor([self.now])
        dist.all_reduce(last, dist.ReduceOp.MAX, group=group)
        self.now = int(last)


@dataclass
class Message:
    """Works of a message and of its time, as one."""

    works: Sequence[Any]
    sent: torch.Tensor
    clock: Clock
    flight: float | None
    """Seconds on the way; None of what this rank sends."""

    def wait(self, *limit: Any) -> None:
        """Wait for the message, and put the clock forward to when it comes."""
        for work in self.works:
            work.wait(*limit)
        if self.flight is not None:
            self.clock.now = max(self.clock.now, int(self.sent) + round(1e9 * self.flight))


def count_time(flight: Callable[[int], float]) -> Clock:
    """Count time in this process, which ends with its test."""
    clock, start = Clock(flight), Ranks.start

    def timed(self: Ranks, transfers: Sequence[tuple[bool, Any, int]], tag: Tag) -> list[Any]:
        works = start(self, transfers, tag)
        sent = [torch.tensor([clock.now]) for _ in transfers]
        rows = [(sends, row, peer) for (sends, _, peer), row in zip(transfers, sent, strict=True)]
        return [
            Message(both, row, clock, None if sends else clock.flight(peer))
            for *both, (sends, row, peer) in zip(works, start(self, rows, TIMES), rows, strict=True)
        ]

    time.perf_counter_ns = lambda: clock.now  # type: ignore[assignment]
    time.perf_counter = lambda: clock.now / 1e9  # type: ignore[assignment]
    Ranks.start = timed  # type: ignore[method-assign]
    return clock
