"""Many schedules in one world of processes, which takes longer to start than most take to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

import debubble.torch.pytorch.engine  # noqa: F401 - before ranks are forked
from debubble import Schedule
from debubble.torch.engine.plan import Plan
from debubble.torch.models.build import build
from debubble.torch.ranks.world import World, run_local
from debubble.torch.run.job import Job
from debubble.torch.run.run_data import Batches
from debubble.torch.run.verify import Verification, verify


@dataclass(frozen=True)
class Case:
    """What is run, of which model, by which runtime."""

    schedule: Schedule
    model: str = "gpt-tiny"
    runtime: str = "debubble"

    def job(self) -> Job:
        """The job that :func:`debubble.torch.run.run.run` makes to verify."""
        batches = Batches(build(self.model, self.schedule.stages), self.schedule)
        theirs = self.runtime == "torch"
        return Job(Plan.of(self.schedule), batches, theirs, torch.float64, verifies=True)


class Together:
    """Cases of as many ranks each, one after the other on the same processes."""

    def __init__(self, cases: Mapping[str, Case]) -> None:
        self.jobs = {name: case.job() for name, case in cases.items()}
        names = list(self.jobs)
        (ranks,) = {case.schedule.ranks for case in cases.values()}
        # Made before ranks are forked, once for all of them.
        assert all(len(job.plan.programs) == ranks for job in self.jobs.values())

        def work(world: World) -> dict[str, Any]:
            return {name: job.work(world, names.index(name)) for name, job in self.jobs.items()}

        def text(job: int, rank: int, position: int) -> str:
            return f"{names[job]}: {self.jobs[names[job]].plan.text(rank, position)}"

        self.results = run_local(work, ranks, text, timeout=120, device="cpu")

    def verified(self, name: str) -> Verification:
        """What a case computed beside the model without a pipeline; asserts that it is equal."""
        job = self.jobs[name]
        found = verify(
            job.plan.schedule,
            job.batches,
            [result[name]["gradients"] for result in self.results],
            [result[name]["losses"] for result in self.results],
        )
        assert found.equal, str(found)
        assert found.loss > 0
        return found
