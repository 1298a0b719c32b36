"""What is promised of real runs comes true; ``benchmarks/experiments.py`` has many more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs pipelines of PyTorch; install torch")

from tests.diagnosis.experiments.catalog import EXPERIMENTS
from tests.diagnosis.experiments.jobs import Job
from tests.diagnosis.experiments.outcome import outcome
from tests.diagnosis.experiments.runs import Ran, ran
from tests.torch.world import in_ranks as in_ranks  # marks the tests

BY_NAME = {one.name: one for one in EXPERIMENTS}

LIVE = (
    "torch GPipe: link 1–2 +15 ms",
    "torch 1F1B: stage 0 ×1.5, large messages",
    "debubble interleaved-1f1b: rank 1 ×1.5",
)

TRIES, STEADY = 3, 0.03
"""Runs of a job until its steps are equal, and the largest difference of equal ones."""


def quiet(job: Job, folder: Path) -> Ran:
    """Run a job until the machine leaves it alone."""
    for number in range(TRIES):
        found = ran(job, folder / str(number))
        if max(found.steps) < (1 + STEADY) * min(found.steps):
            return found
    pytest.skip(f"the machine is busy: steps of one job take {found.steps} seconds")


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVE)
def test_without_its_fault_a_job_takes_what_is_promised(tmp_path: Path, name: str) -> None:
    experiment = BY_NAME[name]
    healthy = quiet(experiment.job.without_fault(), tmp_path / "healthy")
    faulty = quiet(experiment.job, tmp_path / "faulty")
    found = outcome(experiment, healthy, faulty)
    assert found.named, found.found
    assert found.after == pytest.approx(found.healthy, rel=experiment.bound)
    assert found.told == pytest.approx(found.gain, abs=experiment.bound)
