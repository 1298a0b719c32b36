"""Traces read back: every schedule's order and times, and what is refused."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import computes, kinds_of
from debubble.core.errors import DebubbleError, FormatError
from debubble.interchange.read_trace import is_trace_file, load_trace, read_trace, unpacked
from debubble.interchange.trace_events import run_trace, trace_text, write_trace
from debubble.schedules import registry

COSTS = db.Costs(F=1, I=1.25, W=0.5, p2p=0.125, OPT=0.25)


@pytest.mark.parametrize("iterations", [None, 2])
@pytest.mark.parametrize("name", [entry.name for entry in registry.schedules()])
def test_every_trace_gives_its_timeline_back(name, iterations):
    try:
        schedule = db.make(name, ranks=4, microbatches=8, iterations=iterations, costs=COSTS)
    except DebubbleError:
        pytest.skip("does not run in this size")
    wanted = db.simulate(schedule, COSTS)
    (found,) = read_trace("".join(trace_text(wanted)), "x.json")
    compute = schedule.actions[computes(kinds_of(schedule.actions))]
    # In order of time, the two halves of a pair included; copies run beside the compute.
    assert np.array_equal(found.schedule.actions, compute)
    timeline = found.timeline()
    assert timeline.makespan == pytest.approx(wanted.makespan)
    assert timeline.bubble_ratio == pytest.approx(wanted.bubble_ratio)
    assert timeline.stage_time == pytest.approx(wanted.stage_time)
    assert timeline.critical.any()


def test_the_groups_of_a_run(tmp_path):
    schedule = db.make("dualpipe", ranks=4, microbatches=8)
    predicted = db.simulate(schedule, db.Costs(F=0.001, I=0.001, W=0.001))
    late = (predicted.start * 2 + 5, predicted.start * 2 + 5 + predicted.duration)
    times = {"predicted": (predicted.start, predicted.end), "measured": late}
    path = tmp_path / "run.json.gz"
    write_trace(run_trace(schedule, times), path)
    assert is_trace_file(str(path))
    one, two = load_trace(path)
    assert (one.label, two.label) == ("dualpipe, predicted", "dualpipe, measured")
    assert one.time_unit == two.time_unit == "ms"
    assert one.timeline().makespan == pytest.approx(1e3 * predicted.makespan)
    # Both begin at 0, whatever the clock said.
    assert two.timeline().makespan == pytest.approx(1e3 * (late[1].max() - 5), rel=1e-6)
    assert two.timeline().measured


def test_slices_keep_their_numbers():
    schedule = db.make("seq1f1b", ranks=2, microbatches=3, slices=3)
    timeline = db.simulate(schedule)
    text = "".join(run_trace(schedule, {"measured": (timeline.start, timeline.end)}))
    assert '"0F1.2"' in text
    (found,) = read_trace(text, "x.json")
    assert found.schedule.slices == 3
    assert np.array_equal(found.schedule.actions, schedule.actions)


def test_waiting_is_for_data_until_the_input_is_computed_and_then_for_p2p():
    from debubble.analysis.bubbles import CAUSES, bubbles

    schedule = db.make("1f1b", ranks=2, microbatches=1)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, p2p=0.5))
    (found,) = read_trace("".join(trace_text(timeline)), "x.json")
    totals = dict(zip(CAUSES, bubbles(found.timeline()).totals.sum(axis=0).tolist(), strict=True))
    # Rank 0 waits for the other's F and B, 3, and for the way there, 0.5, and back, 0.5.
    assert (totals["data"], totals["p2p"]) == (pytest.approx(3.5), pytest.approx(0.5))


def test_times_without_a_unit_stay_without(tmp_path):
    timeline = db.simulate(db.make("1f1b", ranks=2, microbatches=2))
    path = tmp_path / "x.json"
    write_trace(trace_text(timeline), path)
    (found,) = load_trace(path)
    assert (found.time_unit, found.timeline().makespan) == ("", timeline.makespan)
    write_trace(trace_text(timeline, "s"), path)
    (found,) = load_trace(path)
    assert (found.time_unit, found.timeline().makespan) == ("ms", 1e3 * timeline.makespan)


def trace(*events, **about):
    keys = ("name", "pid", "ts", "dur")
    made = [{"ph": "X"} | dict(zip(keys, event, strict=True)) for event in events]
    return json.dumps({"traceEvents": made, "otherData": about})


WHOLE = (("0F0", 0, 0, 1), ("0B0", 0, 1, 2))
BAD = [
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    (trace(), "no event is called like an action"),
    (trace(("0F0", 0, 0, -1)), "dur = -1"),
    (trace(("0F0", 0, float("nan"), 1)), "needs numbers"),
    (trace(("0F0", 3, 0, 1)), "go from 0 to 0"),
    (trace(("1048575F0", 0, 0, 1)), "1,048,576 stages on 1 ranks"),
    (trace(("0F999999999", 0, 0, 1)), "cannot be a schedule"),
    (trace(("0F0", 0, 0, 1)), "0B0 is missing"),
    (trace(("0B0", 0, 0, 1), ("0F0", 0, 1, 1)), "0B0"),
    (trace(*WHOLE, placement={"table": [[7]]}), "ranks go from 0 to 0"),
    (trace(*WHOLE, placement={"table": [[0, 0]]}), "placement has 2 stages"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_traces_are_refused(text, message):
    with pytest.raises(FormatError, match="(?s)x.json.*" + message.replace("(", r"\(")):
        read_trace(text, "x.json")


def test_claims_that_cannot_be_are_left_out():
    claims = {"iterations": 10**9, "sync": "x", "vocabulary": 9, "weight_versions": ["x"],
              "groups": 3, "schedule": 7}  # fmt: skip
    (found,) = read_trace(trace(*WHOLE, **claims), "x.json")
    assert (found.schedule.iterations, found.label) == (1, "x.json (trace)")


def test_packed_files_are_bounded(tmp_path):
    bomb = gzip.compress(b" " * (1 << 20))
    with pytest.raises(FormatError, match="when unpacked"):
        unpacked(bomb, "x", 1 << 10)
    with pytest.raises(FormatError, match="ends early"):
        unpacked(bomb[:-9], "x")
    with pytest.raises(FormatError, match="no gzip file"):
        unpacked(b"hello", "x")
    assert not is_trace_file(str(tmp_path / "no.json"))
