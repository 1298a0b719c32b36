"""Traces of debubble's own runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import debubble as db
from debubble import Kind
from debubble.core.errors import FormatError
from debubble.diagnosis.diagnose import diagnose
from debubble.diagnosis.readers.folder import read
from debubble.interchange.trace_events import Transfer, run_trace, trace_text, write_trace
from tests.diagnosis.readers import made


def save(run: made.MadeRun, path: Path, **others: object) -> None:
    """One step as `debubble run` writes it."""
    start = np.array([one.start for one in run.done])
    end = np.array([one.end for one in run.done])
    times = {"predicted": (start * 0.9, end * 0.9), "measured": (start, end)}
    write_trace(run_trace(run.schedule, times, **others), path)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe", "v-half"])
def test_the_measured_group_is_read(tmp_path: Path, name: str) -> None:
    run = made.run(name, ranks=4, microbatches=8, steps=1, first_step=0)
    save(run, tmp_path / "run.json.gz", hosts=["a", "a", "b", "b"])
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert (found.format, found.clocks) == ("debubble", "hosts")
    assert found.hosts == ("a", "a", "b", "b")
    assert found.left_out == {"predicted actions": len(run.done)}


def test_halves_of_measured_pairs_begin_a_moment_apart(tmp_path: Path) -> None:
    run = made.run("dualpipe", ranks=4, microbatches=8, steps=1, first_step=0)
    at = {one.pair for one in run.done if one.pair >= 0}
    late = tuple(
        one._replace(start=one.start + 2e-6, end=one.end + 2e-6)
        if one.pair >= 0 and place not in at else one
        for place, one in enumerate(run.done)
    )  # fmt: skip
    run = replace(run, done=late)
    save(run, tmp_path / "run.json.gz")
    made.assert_recovered(read(tmp_path), run)
    found = diagnose(read(tmp_path))
    assert found.name.text == "dualpipe"
    assert found.replay_error < 0.01
    assert 0 < found.bubble_ratio < 1


def test_slices(tmp_path: Path) -> None:
    schedule = db.make("seq1f1b", ranks=2, microbatches=4, slices=2)
    timeline = db.simulate(schedule, db.Costs(F=3, I=4, W=2))
    write_trace(
        run_trace(schedule, {"measured": (timeline.start, timeline.end)}), tmp_path / "run.json"
    )
    found = read(tmp_path / "run.json")
    assert sorted(set(found.actions.slice.tolist())) == [0, 1]
    assert (found.microbatches, len(found.actions)) == (4, len(schedule))


def test_messages(tmp_path: Path) -> None:
    run = made.run("zb-h1", steps=1)
    one = Transfer("0SEND_F1", 0, 0.010, 0.011, "1RECV_F1", 1, 0.005, 0.012, 0.013)
    two = Transfer("1SEND_B2", 1, 0.020, 0.020, "0RECV_B2", 0, 0.021, 0.022, 0.023)
    save(run, tmp_path / "run.json", transfers=[one, two], hosts=["a", "a"])
    found = read(tmp_path / "run.json")
    messages = found.messages
    assert messages.kind.tolist() == [Kind.F, Kind.I]
    assert (messages.source.tolist(), messages.target.tolist()) == ([0, 1], [1, 0])
    for name, times in {
        "sent": [0.010, 0.020], "posted": [0.005, 0.021], "waited": [0.012, 0.022],
        "arrived": [0.013, 0.023],
    }.items():  # fmt: skip
        np.testing.assert_allclose(getattr(messages, name), times, atol=1e-9)
    rows = found.actions
    fed = (rows.rank == 1) & (rows.kind == Kind.F) & (rows.microbatch == 1)
    assert rows.waited[fed].tolist() == pytest.approx([0.013])
    assert found.clocks == "one"


def test_several_files_are_several_steps(tmp_path: Path) -> None:
    run = made.run("1f1b", steps=1)
    for number in (2, 10, 1):
        save(run, tmp_path / f"step{number}.json")
    found = read(tmp_path)
    assert found.steps == (0, 1, 2)
    begins = [found.actions.start[found.actions.step == step].min() for step in range(3)]
    assert np.all(np.diff(begins) > 0.1)


def test_simulated_times_are_no_measurement(tmp_path: Path) -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=4)
    write_trace(trace_text(db.simulate(schedule)), tmp_path / "plan.json")
    with pytest.raises(FormatError, match="simulated, not measured"):
        read(tmp_path / "plan.json")
