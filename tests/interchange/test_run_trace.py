"""Traces of real runs: predicted and measured side by side."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import debubble as db
from debubble.core.actions import pairs_of
from debubble.core.errors import FormatError
from debubble.interchange.read_trace import load_trace
from debubble.interchange.trace_events import GROUP, PAIRED, Transfer, run_trace, write_trace


def test_two_groups_of_processes_with_the_same_actions() -> None:
    schedule = db.make("dualpipe", ranks=2, microbatches=4)
    timeline = db.simulate(schedule, db.Costs(F=0.5, I=0.5, W=0.5))
    times = {
        "predicted": (timeline.start, timeline.end),
        "measured": (timeline.start + 0.25, timeline.end + 0.25),
    }
    data = json.loads("".join(run_trace(schedule, times)))
    assert data["otherData"] == {
        "schedule": "dualpipe", "ranks": 2, "stages": 2, "microbatches": 4, "iterations": 1,
        "placement": {"table": [[0, 1], [1, 0]]}, "groups": ["predicted", "measured"],
    }  # fmt: skip
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    first = [event for event in slices if event["pid"] < GROUP]
    second = [event for event in slices if event["pid"] >= GROUP]
    assert len(first) == len(second) == len(schedule)
    for predicted, measured in zip(first, second, strict=True):
        assert measured["pid"] == predicted["pid"] + GROUP
        assert measured["name"] == predicted["name"]
        assert measured["ts"] == predicted["ts"] + 250_000
        assert measured["dur"] == predicted["dur"]
    pairs = {event["name"] for event in slices if event["tid"] == PAIRED}
    assert pairs
    assert all("B" in name for name in pairs)


def test_transfers_are_left_out() -> None:
    from debubble.lowering.transfers import add_transfers

    schedule = db.make("1f1b", ranks=2, microbatches=2)
    lowered = add_transfers(schedule)
    timeline = db.simulate(lowered)
    text = "".join(run_trace(lowered, {"predicted": (timeline.start, timeline.end)}))
    events = json.loads(text)["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(schedule)


def test_messages_beside_the_actions(tmp_path: Path) -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    timeline = db.simulate(schedule)
    times = {
        "predicted": (timeline.start, timeline.end),
        "measured": (timeline.start, timeline.end),
    }
    one = Transfer("0SEND_F0", 0, 1.0, 1.25, "1RECV_F0", 1, 0.5, 1.5, 2.0)
    path = tmp_path / "run.json"
    write_trace(run_trace(schedule, times, transfers=[one], hosts=["a", "b"]), path)
    data = json.loads(path.read_text())
    assert data["otherData"]["hosts"] == ["a", "b"]
    about = {"transfer": 0, "from": 0, "to": 1}
    waited = about | {"waited": 1_500_000.0}
    messages = [event for event in data["traceEvents"] if event.get("cat") == "transfer"]
    assert [
        (one["ph"], one["id"], one["name"], one["pid"] - GROUP, one["ts"], one.get("args"))
        for one in messages
    ] == [
        ("b", "s0", "0SEND_F0", 0, 1e6, about), ("e", "s0", "0SEND_F0", 0, 1.25e6, None),
        ("b", "r0", "1RECV_F0", 1, 5e5, waited), ("e", "r0", "1RECV_F0", 1, 2e6, None),
    ]  # fmt: skip
    # They are no actions for who reads the order.
    assert [r.schedule.rows() for r in load_trace(path)] == [schedule.rows()] * 2


def test_slices_have_their_names_and_waits_their_arrows() -> None:
    schedule = db.make("seq1f1b", ranks=2, microbatches=2, slices=2)
    timeline = db.simulate(schedule)
    one = (timeline.start, timeline.end)
    events = json.loads("".join(run_trace(schedule, {"a": one, "b": one})))["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert names == 2 * [text for row in schedule.rows() for text in row]
    assert "0F0.1" in names
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == {"compute"}
    arrows = [event for event in events if event["ph"] == "s"]
    # Every slice goes from rank 0 to rank 1 and its gradient back, in both groups.
    assert len(arrows) == len({event["id"] for event in arrows}) == 2 * 2 * 4


def test_files(tmp_path: Path) -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    timeline = db.simulate(schedule)
    times = {"predicted": (timeline.start, timeline.end)}
    plain, packed = tmp_path / "x.json", tmp_path / "x.json.gz"
    write_trace(run_trace(schedule, times), plain)
    write_trace(run_trace(schedule, times), packed)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    with pytest.raises(FormatError, match=r"cannot write .*: No such file"):
        write_trace(run_trace(schedule, times), tmp_path / "no" / "x.json")


def test_measured_halves_of_a_pair_begin_a_moment_apart(tmp_path: Path) -> None:
    schedule = db.make("dualpipe", ranks=4, microbatches=8)
    timeline = db.simulate(schedule, db.Costs(F=10, I=10, W=10, O=25))
    second = pairs_of(schedule.actions) == 2
    start, end = timeline.start + 1e-3 * second, timeline.end + 1e-3 * second
    write_trace(
        run_trace(schedule, {"measured": (start / 1e3, end / 1e3)}), tmp_path / "run.json.gz"
    )
    [found] = load_trace(tmp_path / "run.json.gz")
    assert found.schedule.rows() == schedule.rows()
