"""Predictions and calibration, without any process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import debubble as db
from debubble.core.errors import ParameterError
from debubble.diagnosis.readers.folder import read
from debubble.torch.engine.plan import ExecutionPlan
from debubble.torch.measure.recorded import RecordedSteps
from debubble.torch.run.report import RunReport
from debubble.torch.run.run import calibrate, predict_timeline, sleeping_times

# Nothing here can shard an output layer.
ENTRIES = [entry for entry in db.schedules() if "vocabulary" not in entry.fields]


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "dualpipe", "interleaved-1f1b"])
def test_a_prediction_is_the_simulation_with_the_overhead_on_every_action(name: str) -> None:
    schedule = db.make(name, ranks=4, microbatches=8, iterations=2)
    costs = db.Costs(F=1, I=1, W=1, O=2.5, OPT=3)
    seconds = sleeping_times(schedule, costs, 0.02)
    scaled = db.Costs(F=0.02, I=0.02, W=0.02, O=0.05, OPT=0.06)
    plain = db.simulate(schedule, scaled)
    assert predict_timeline(schedule, seconds, 0.0).makespan == pytest.approx(plain.makespan)
    more = db.Costs(F=0.021, I=0.021, W=0.021, B=0.041, O=0.051, OPT=0.061)
    wanted = db.simulate(schedule, more)
    got = predict_timeline(schedule, seconds, 0.001)
    np.testing.assert_allclose(got.end, wanted.end)


@pytest.mark.parametrize("overhead", [0.0, 1e-4, 1.6e-3, 0.05])
def test_calibration_finds_the_overhead(overhead: float) -> None:
    schedule = db.make("zb-h1", ranks=4, microbatches=6)
    seconds = sleeping_times(schedule, db.Costs(F=1, I=2, W=0.5), 0.01)
    makespan = predict_timeline(schedule, seconds, overhead).makespan
    assert calibrate(schedule, seconds, makespan) == pytest.approx(overhead, abs=1e-8)


def test_no_overhead_below_zero() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    seconds = sleeping_times(schedule, db.Costs(), 0.01)
    assert calibrate(schedule, seconds, 0.01) == 0.0


def test_measured_durations_of_a_kind_and_stage_count_by_their_median() -> None:
    schedule = db.make("gpipe", ranks=1, microbatches=3)
    seconds = np.array([1.0, 2.0, 9.0, 4.0, 4.0, 7.0])
    assert predict_timeline(schedule, seconds, 0.5).makespan == pytest.approx(3 * 2.5 + 3 * 4.5)


def test_times_of_ranks_become_times_of_the_schedule(tmp_path: Path) -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    plan = ExecutionPlan.of(schedule)
    begin = [np.arange(len(plan.programs[rank])) * 1_000_000 + 5_000 for rank in range(2)]
    times = [
        np.stack([[b, b + 500_000, b - 1_000], [b + 1, b + 700_001, b - 2_000]]) for b in begin
    ]  # fmt: skip
    places = [
        {"host": host, "global_rank": number, "backend": "gloo", "device": "cpu"}
        for host, number in (("a", 4), ("b", 6))
    ]
    measured = RecordedSteps.of(plan, times, places)
    assert measured.starts.shape == (2, len(schedule))
    assert measured.starts.min() == 0.0
    np.testing.assert_allclose(measured.ends - measured.starts, [[5e-4] * 8, [7e-4] * 8])
    last = max(int(plan.positions[3]), int(plan.positions[7]) - int(plan.lowered.offsets[1]))
    np.testing.assert_allclose(measured.makespans, [last * 1e-3 + 5e-4, last * 1e-3 + 7e-4])
    assert measured.typical == 0
    transfers = measured.transfers(0)
    first = transfers[0]
    assert (first.send, first.source, first.receive, first.target) == ("0SEND_F0", 0, "1RECV_F0", 1)
    assert first.send_end - first.send_start == pytest.approx(5e-4)
    assert first.waited - first.posted == pytest.approx(1e-6)
    assert len(transfers) == 4
    measured.save_trace(tmp_path / "run.json", -1)
    found = read(tmp_path)
    assert [(one.global_rank, one.host) for one in found.locations] == [(4, "a"), (6, "b")]
    assert (found.backend, found.device) == ("gloo", "cpu")


def test_what_no_run_can_sleep() -> None:
    schedule = db.make("gpipe", ranks=2, microbatches=2)
    with pytest.raises(ParameterError, match="transfers of a real run take the time they take"):
        sleeping_times(schedule, db.Costs(message=1, bandwidth=2), 0.01)


def test_places_in_programs_are_named_with_the_rank_they_need() -> None:
    plan = ExecutionPlan.of(db.make("1f1b", ranks=2, microbatches=2), policy="just-in-time")
    assert plan.text(1, 0) == "action 0: 1RECV_F0 from rank 0"
    assert plan.text(0, 5) == "action 5: 0B0"
    assert plan.text(0, 99) == "the end"


def test_a_report_without_verification() -> None:
    schedule = db.make("dualpipe", ranks=2, microbatches=4)
    plan = ExecutionPlan.of(schedule, sleeping_times(schedule, db.Costs(), 0.01))
    timeline = predict_timeline(schedule, plan.seconds, 0.0)
    times = np.zeros((1, 3, len(plan.lowered)), dtype=np.int64)
    times[0, 0, plan.positions] = np.round(timeline.start * 1e9)
    times[0, 1, plan.positions] = np.round(timeline.end * 1e9)
    measured = RecordedSteps(plan, times)
    report = RunReport(schedule, "mlp", "debubble", 0.01, None, 0.0, measured, timeline)
    data = report.to_dict()
    assert data["error"] == pytest.approx(0, abs=1e-9)
    assert data["measured"]["busy"] == pytest.approx(timeline.busy.tolist())
    assert data["measured"]["stage_time"] == pytest.approx(timeline.stage_time.tolist())
    assert report.equal
    assert "gradients" not in str(report)
