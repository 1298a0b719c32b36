"""Many schedules in one world of processes, which takes longer to start than most take to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from debubble import Schedule
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.ranks.world import run_local
from debubble.torch.run.job import Job, RunData
from debubble.torch.run.run import do_jobs
from debubble.torch.run.verify import Verification, verify
from tests.forkserver import forked as forked  # has the server load PyTorch
from tests.patience import patience


@dataclass(frozen=True)
class Case:
    """What is run, of which model, by which runtime."""

    schedule: Schedule
    model: str = "gpt-tiny"
    runtime: str = "debubble"

    def job(self) -> Job:
        """The job that :func:`debubble.torch.run.run.run` makes to verify."""
        data = RunData(self.model, self.schedule)
        theirs = self.runtime == "torch"
        return Job(ExecutionPlan.of(self.schedule), data, theirs, torch.float64, verifies=True)


class Together:
    """Cases of as many ranks each, one after the other on the same processes."""

    def __init__(self, cases: Mapping[str, Case]) -> None:
        self.names = list(cases)
        self.jobs = {number: case.job() for number, case in enumerate(cases.values())}
        (ranks,) = {case.schedule.ranks for case in cases.values()}

        def text(job: int, rank: int, position: int) -> str:
            return f"{self.names[job]}: {self.jobs[job].plan.text(rank, position)}"

        self.results = run_local(
            partial(do_jobs, self.jobs), ranks, text, timeout=patience(120), device="cpu"
        )

    def verified(self, name: str) -> Verification:
        """What a case computed beside the model without a pipeline; asserts that it is equal."""
        number = self.names.index(name)
        job = self.jobs[number]
        found = verify(
            job.plan.schedule,
            job.data,
            [result[number]["gradients"] for result in self.results],
            [result[number]["losses"] for result in self.results],
        )
        assert found.equal, str(found)
        assert found.loss > 0
        return found
