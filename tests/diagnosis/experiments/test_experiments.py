"""What is promised of runs comes true; ``benchmarks/experiments.py`` has many more of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs pipelines of PyTorch; install torch")

from debubble.diagnosis.changes import Change
from debubble.diagnosis.diagnose import read_trace
from debubble.diagnosis.run import work_of_ranks
from debubble.diagnosis.what_if import with_changes
from tests.diagnosis.experiments.catalog import EXPERIMENTS, Experiment
from tests.diagnosis.experiments.counted import counted
from tests.diagnosis.experiments.jobs import Fault, Job
from tests.diagnosis.experiments.outcome import outcome
from tests.diagnosis.experiments.runs import Ran, ran
from tests.torch.world import in_ranks as in_ranks  # marks the tests

pytestmark = pytest.mark.slow

COUNTED = [
    replace(one, job=replace(one.job, steps=1))
    for one in EXPERIMENTS
    if one.job.runtime == "debubble" and one.job.rows == Job.rows
]
"""Experiments of our runtime, whose time can be counted: links take the same for any message."""

EXACT = 1e-6
"""Largest error in time that is counted: factors have six digits."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[Job, Ran]:
    """All jobs with their faults and without, in time that is counted."""
    faulty = [one.job for one in COUNTED]
    jobs = list(dict.fromkeys([*faulty, *(job.without_fault() for job in faulty)]))
    return dict(zip(jobs, counted(jobs, tmp_path_factory.mktemp("counted")), strict=True))


@pytest.mark.parametrize("experiment", COUNTED, ids=lambda one: one.name)
def test_without_its_fault_a_job_takes_what_is_promised(
    runs: dict[Job, Ran], experiment: Experiment
) -> None:
    job = experiment.job
    found = outcome(experiment, runs[job.without_fault()], runs[job])
    assert found.named, found.found
    assert found.after == pytest.approx(found.healthy, rel=EXACT)
    # Of jitter the finding is what times at the median of those recorded would save.
    bound = experiment.bound if experiment.cause == "jitter" else EXACT
    assert found.told == pytest.approx(found.gain, abs=bound)


def test_a_trace_of_pytorch_holds_what_stages_sleep(tmp_path: Path) -> None:
    """Of a run in real time, what no load of the machine can change: it makes all of it longer."""
    job = Job("torch", "1F1B", forward=4e-3, backward=8e-3, steps=1, fault=Fault("stage", 0, 1.5))
    found = ran(job, tmp_path)
    replay = read_trace(found.trace).replay
    schedule, times = replay.run.schedule, replay.times
    factors = {"F": job.forward, "B": job.backward}
    least = [
        (1.5 if action.stage == 0 else 1.0) * factors[action.kind.name]
        for program in schedule
        for action in program
    ]
    assert (times >= least).all()
    work = work_of_ranks(schedule, times)[0]
    assert found.step >= work.max()
    work[0] /= 1.5
    answer = with_changes(replay, [Change.parse(f"stage0*={1 / 1.5}")])
    assert answer.after >= work.max() * (1 - 1e-9)
