"""The same jobs of our runtime in time that is counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import distributed as dist

from tests.diagnosis.experiments import runs
from tests.diagnosis.experiments.catalog import QUICK_LINK
from tests.diagnosis.experiments.jobs import Job
from tests.torch.counted_time import count_time
from tests.torch.world import in_ranks, report_progress


def flight(job: Job, ends: tuple[int, int]) -> float:
    """Seconds of a message between two ranks."""
    seconds = 1e-3 * QUICK_LINK
    if job.fault is not None and job.relayed == tuple(sorted(ends)):
        seconds += job.fault.size
    return seconds


def counted(jobs: Sequence[Job], folder: Path) -> list[runs.Ran]:
    """Run jobs on equally many ranks, one after the other; traces are in folders ``0`` …"""
    places = [folder / str(number) for number in range(len(jobs))]
    for place in places:
        place.mkdir()

    def work(rank: int) -> list[list[tuple[float, float]]]:
        spans = []
        clock = count_time(lambda peer: flight(job, (rank, peer)))
        runs.pause, runs.meet = clock.pause, clock.meet
        for job, place in zip(jobs, places, strict=True):
            spans.append(runs.of_debubble(job, rank, dist.group.WORLD, None, place))
            report_progress()
        return spans

    (ranks,) = {job.ranks for job in jobs}
    of_jobs = zip(*in_ranks(ranks, work), strict=True)
    return [
        runs.of_median_length(job, place, times)
        for job, place, times in zip(jobs, places, of_jobs, strict=True)
    ]
