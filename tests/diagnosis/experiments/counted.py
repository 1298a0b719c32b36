"""The same jobs of our runtime in time that is counted: nobody sleeps, and no load counts.

Every rank has a clock that a pause puts forward. A message carries the time at which it was sent,
and whoever waits for it waits until then, and for as long as its link takes. All else is the
runtime as it is, with the trace that it writes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from debubble.torch.ranks.process_group import Ranks, Tag
from tests.diagnosis.experiments import runs
from tests.diagnosis.experiments.catalog import QUICK_LINK
from tests.diagnosis.experiments.jobs import Job
from tests.torch.world import in_ranks, report_progress

TIMES: Any = 99
"""Tag of the messages with times."""


@dataclass
class Clock:
    """The clock of a rank, in nanoseconds."""

    now: int = 1_000_000_000

    def pause(self, seconds: float) -> None:
        """Put the clock forward."""
        self.now += round(1e9 * seconds)

    def meet(self, group: Any) -> None:
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
    flight: float
    """Seconds on the way; 0.0 of what this rank sends."""

    def wait(self, *limit: Any) -> None:
        """Wait for the message, and put the clock forward to when it comes."""
        for work in self.works:
            work.wait(*limit)
        if self.flight:
            self.clock.now = max(self.clock.now, int(self.sent) + round(1e9 * self.flight))


def counted(jobs: Sequence[Job], folder: Path) -> list[runs.Ran]:
    """Run jobs on equally many ranks, one after the other; traces are in folders ``0`` …"""
    places = [folder / str(number) for number in range(len(jobs))]
    for place in places:
        place.mkdir()

    def work(rank: int) -> list[list[tuple[float, float]]]:
        clock = Clock()
        time.perf_counter_ns = lambda: clock.now  # type: ignore[assignment]
        time.perf_counter = lambda: clock.now / 1e9  # type: ignore[assignment]
        runs.pause, runs.meet = clock.pause, clock.meet
        start, spans = Ranks.start, []
        for job, place in zip(jobs, places, strict=True):
            Ranks.start = carrying(start, job, rank, clock)  # type: ignore[method-assign]
            spans.append(runs.of_debubble(job, rank, dist.group.WORLD, None, place))
            report_progress()
        return spans

    (ranks,) = {job.ranks for job in jobs}
    of_jobs = zip(*in_ranks(ranks, work), strict=True)
    return [
        runs.of_median_length(job, place, times)
        for job, place, times in zip(jobs, places, of_jobs, strict=True)
    ]


def carrying(start: Any, job: Job, rank: int, clock: Clock) -> Any:
    """Transfers that carry the times of their clocks."""

    def flight(peer: int) -> float:
        fault = job.fault
        slow = job.relayed is not None and tuple(sorted((rank, peer))) == job.relayed
        return 1e-3 * QUICK_LINK + (fault.size if slow and fault is not None else 0.0)

    def timed(self: Ranks, transfers: Sequence[tuple[bool, Any, int]], tag: Tag) -> list[Any]:
        works = start(self, transfers, tag)
        sent = [torch.tensor([clock.now]) for _ in transfers]
        rows = [(sends, row, peer) for (sends, _, peer), row in zip(transfers, sent, strict=True)]
        return [
            Message(both, row, clock, 0.0 if sends else flight(peer))
            for *both, row, (sends, _, peer) in zip(
                works, start(self, rows, TIMES), sent, transfers, strict=True
            )
        ]

    return timed
