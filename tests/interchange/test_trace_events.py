"""Trace Event JSON: what Perfetto needs to show a timeline."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.errors import FormatError
from debubble.core.kinds import KINDS, Stream
from debubble.core.waits import waits_for
from debubble.interchange.trace_events import PAIRED, trace_text, write_trace
from debubble.lowering.chain import lower

UNITS = [("s", 1e6), ("ms", 1e3), ("us", 1.0), ("µs", 1.0), ("ns", 1e-3), ("ticks", 1e3), ("", 1e3)]


def trace(timeline: db.Timeline, unit: str = "") -> dict[str, Any]:
    data: dict[str, Any] = json.loads("".join(trace_text(timeline, unit)))
    return data


def events(timeline: db.Timeline, phase: str, unit: str = "us") -> list[dict[str, Any]]:
    return [event for event in trace(timeline, unit)["traceEvents"] if event["ph"] == phase]


@pytest.fixture(scope="module")
def timeline() -> db.Timeline:
    costs = db.Costs(F=1, I=1.5, W=0.5, O=2.5, p2p=0.25)
    return db.simulate(db.make("dualpipe-v", ranks=2, microbatches=4), costs)


def test_every_rank_is_a_process_with_a_name_and_a_place(timeline: db.Timeline) -> None:
    found = events(timeline, "M")
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    places = {e["pid"]: e["args"]["sort_index"] for e in found if e["name"] == "process_sort_index"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert names == {0: "rank 0", 1: "rank 1"}
    assert places == {0: 0, 1: 1}
    assert threads == {
        (rank, thread): name
        for rank in (0, 1)
        for thread, name in ((0, "compute"), (PAIRED, "compute, second half of a pair"))
    }


def test_every_action_is_a_complete_event(timeline: db.Timeline) -> None:
    found = events(timeline, "X")
    schedule = timeline.schedule
    assert [event["name"] for event in found] == [str(a) for row in schedule for a in row]
    assert [event["ts"] for event in found] == pytest.approx(timeline.start.tolist())
    assert [event["dur"] for event in found] == pytest.approx(timeline.duration.tolist())
    assert found[0]["args"] == {"stage": 0, "kind": "F", "microbatch": 0}
    assert found[0]["cat"] == "F"


def test_sequence_slices_are_named() -> None:
    schedule = db.make("seq1f1b", ranks=2, microbatches=2, slices=2, iterations=1)
    found = events(db.simulate(schedule), "X")
    assert [event["name"] for event in found] == [text for row in schedule.rows() for text in row]
    assert found[1]["args"] == {"stage": 0, "kind": "F", "microbatch": 0, "slice": 1}
    assert found[8]["args"] == {"stage": 0, "kind": "OPT", "microbatch": 0}


def test_slices_of_a_thread_do_not_overlap(timeline: db.Timeline) -> None:
    found = sorted(events(timeline, "X"), key=lambda e: (e["pid"], e["tid"], e["ts"]))
    together = [
        (first, second)
        for first, second in itertools.pairwise(found)
        if (first["pid"], first["tid"]) == (second["pid"], second["tid"])
    ]
    assert together
    for first, second in together:
        assert first["ts"] + first["dur"] <= second["ts"] + 1e-6


@pytest.mark.parametrize("name", ["zb-h1", "dualpipe"])
def test_perfetto_keeps_every_slice(name: str) -> None:
    # It counts in whole nanoseconds, drops what then overlaps, and takes thread 0 for the one whose
    # number is the process's. These times are off its grid, and there are more ranks than threads.
    costs = db.Costs(F=0.3333333, I=1.12345678, W=0.7654321, p2p=0.0123456)
    found = events(db.simulate(db.make(name, ranks=8, microbatches=40), costs), "X")
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in found:
        begin, length = round(1000 * event["ts"]), round(1000 * event["dur"])
        assert begin == pytest.approx(1000 * event["ts"], abs=1e-6)
        track = (event["pid"], event["tid"] or event["pid"])
        tracks.setdefault(track, []).append((begin, begin + length))
    assert len(tracks) == (16 if name == "dualpipe" else 8)
    for spans in tracks.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(spans)))


def test_arrows_lead_from_slice_to_slice_on_another_rank(timeline: db.Timeline) -> None:
    slices = events(timeline, "X")

    def around(event: dict[str, Any]) -> str:
        (name,) = [
            s["name"]
            for s in slices
            if (s["pid"], s["tid"]) == (event["pid"], event["tid"])
            and s["ts"] <= event["ts"] < s["ts"] + s["dur"]
        ]
        return str(name)

    starts = {event["id"]: around(event) for event in events(timeline, "s")}
    ends = {event["id"]: around(event) for event in events(timeline, "f")}
    arrows = {(starts[key], ends[key]) for key in starts}
    assert starts.keys() == ends.keys()
    # A V of 2 ranks and 4 stages crosses between stages 0, 1 and between 2, 3: 4 microbatches,
    # forth and back.
    assert len(arrows) == 16
    assert ("0F3", "1F3") in arrows
    assert {("3I0", "2B0"), ("3B1", "2B1")} <= arrows
    assert all(event["bp"] == "e" for event in events(timeline, "f"))


@pytest.mark.parametrize("name", ["vocab-1", "seq1f1b", "zb-h1"])
@pytest.mark.parametrize("transfers", [None, "eager"])
def test_every_wait_between_ranks_has_an_arrow(name: str, transfers: Any) -> None:
    costs = db.Costs(F=1, I=1, W=1, OPT=1, p2p=0.25)
    options = {"iterations": 2, "sync": "post-validation", "costs": costs}
    schedule = lower(db.make(name, ranks=3, microbatches=3, **options), transfers=transfers)
    timeline = db.simulate(schedule, costs)
    waits = waits_for(schedule)
    ranks = [schedule.rank_of(position) for position in range(len(schedule))]
    drawn = {event["id"]: event for event in events(timeline, "s")}
    ends = {event["id"]: event for event in events(timeline, "f")}
    wanted = [
        (ranks[a], ranks[b], round(float(timeline.start[b]), 6))
        for a, b in zip(waits.producer.tolist(), waits.consumer.tolist(), strict=True)
        if ranks[a] != ranks[b]
    ]
    assert wanted
    found = [(drawn[key]["pid"], ends[key]["pid"], round(ends[key]["ts"], 6)) for key in drawn]
    assert sorted(found) == sorted(wanted)
    titles = {event["name"] for event in drawn.values()}
    assert titles <= {spec.title for spec in KINDS}
    if name == "vocab-1":
        assert "output layer, first pass" in titles


def test_the_counter_is_the_memory_curve(timeline: db.Timeline) -> None:
    counters = events(timeline, "C")
    for rank in (0, 1):
        values = [e["args"]["memory"] for e in counters if e["pid"] == rank]
        times = [e["ts"] for e in counters if e["pid"] == rank]
        assert max(values) == timeline.peak_activation[rank]
        assert values[-1] == 0
        assert np.all(np.diff(times) > 0)


@pytest.mark.parametrize(("unit", "scale"), UNITS)
def test_units_become_microseconds(timeline: db.Timeline, unit: str, scale: float) -> None:
    data = trace(timeline, unit)
    last = max(e["ts"] + e["dur"] for e in data["traceEvents"] if e["ph"] == "X")
    assert last == pytest.approx(timeline.makespan * scale)


def test_the_file_says_what_its_times_mean(timeline: db.Timeline) -> None:
    assert trace(timeline, "ms")["otherData"]["time_unit"] == "ms"
    assert trace(timeline)["otherData"]["time_unit"] == "one unit of the costs is shown as 1 ms"
    about = trace(timeline, "ticks")["otherData"]
    assert about["time_unit"] == "one ticks is shown as 1 ms"
    assert (about["makespan"], about["costs"]) == (timeline.makespan, "per action")


def test_steps_and_transfers_are_slices_too() -> None:
    from debubble.lowering.transfers import add_transfers

    stepped = db.simulate(db.make("1f1b", ranks=2, microbatches=2, iterations=2), db.Costs(OPT=3))
    assert sum(event["name"].endswith("OPT1") for event in events(stepped, "X")) == 2
    lowered = db.simulate(add_transfers(db.make("1f1b", ranks=2, microbatches=1)), db.Costs(p2p=1))
    sends = [event for event in events(lowered, "X") if event["cat"].startswith("SEND")]
    assert {event["tid"] for event in sends} == {PAIRED + Stream.TRANSFER}
    assert {event["name"] for event in sends} == {"0SEND_F0", "1SEND_B0"}


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path, timeline: db.Timeline) -> None:
    write_trace(trace_text(timeline), tmp_path / "a.json")
    write_trace(trace_text(timeline), tmp_path / "b.json.gz")
    write_trace(trace_text(timeline), tmp_path / "c.json.gz")
    plain = (tmp_path / "a.json").read_text()
    assert plain == "".join(trace_text(timeline))
    assert gzip.decompress((tmp_path / "b.json.gz").read_bytes()).decode() == plain
    assert (tmp_path / "b.json.gz").read_bytes() == (tmp_path / "c.json.gz").read_bytes()
    with pytest.raises(FormatError, match=r"cannot write '.*no/x.json': No such file"):
        write_trace(trace_text(timeline), tmp_path / "no" / "x.json")
