"""The experiments cover what is asked for, and their faults are what they are called."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.diagnosis.experiments.catalog import EXPERIMENTS
from tests.diagnosis.experiments.jobs import Fault, Job


def test_enough_experiments_with_all_faults_and_schedules() -> None:
    assert len({one.name for one in EXPERIMENTS}) >= 20
    assert len({(one.job, one.name) for one in EXPERIMENTS}) == len(EXPERIMENTS)
    jobs = [one.job for one in EXPERIMENTS]
    faults = {job.fault.kind for job in jobs if job.fault is not None}
    assert faults == {"stage", "rank", "copy", "link", "jitter"}
    assert {job.runtime for job in jobs} == {"torch", "debubble"}
    families = {job.schedule.lower().replace("-", "") for job in jobs}
    assert {"gpipe", "1f1b", "interleaved1f1b", "zbvzerobubble", "dualpipev"} <= families
    assert {job.copies for job in jobs} == {1, 2}


@pytest.mark.parametrize(
    ("fault", "slow"),
    [
        (Fault("stage", 5, 1.5), ["0 1 5", "1 1 5"]),
        (Fault("rank", 1, 1.5), ["0 1 1", "0 1 5", "1 1 1", "1 1 5"]),
        (Fault("rank", 1, 1.5, copy=1), ["1 1 1", "1 1 5"]),
        (Fault("copy", 0, 1.5), ["0 0 0", "0 0 4", "0 1 1", "0 1 5"]),
        (Fault("link", 1, 15e-3), []),
    ],
)
def test_a_fault_is_where_it_is_planted(fault: Fault, slow: list[str]) -> None:
    job = Job("torch", "Interleaved1F1B", fault=fault)
    places = [(copy, stage % 4, stage) for copy in range(2) for stage in (0, 1, 4, 5)]
    found = []
    for place in places:
        factors = {next(one) for one in job.factors(*place).values()}
        assert factors in ({1.0}, {1.5})
        found += [" ".join(map(str, place))] if 1.5 in factors else []
    assert sorted(found) == slow


def test_jitter_takes_what_it_should_in_the_mean_of_a_step() -> None:
    job = Job("torch", "GPipe", fault=Fault("jitter", 1, 0.6))
    for times in job.factors(0, 1, 1).values():
        steps = [list(islice(times, job.microbatches)) for _ in range(3)]
        assert [sum(step) for step in steps] == pytest.approx([job.microbatches] * 3)
        assert (min(steps[0]), max(steps[0])) == pytest.approx((0.4, 1.6))
        assert steps[0] != steps[1]
