"""Traces of runs with skip connections, as debubble's own runtime writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import kinds_of, unpack
from debubble.core.errors import FormatError, ParameterError
from debubble.core.kinds import SEND_KINDS, Kind
from debubble.diagnosis.diagnose import read_trace
from debubble.diagnosis.what_if import with_schedule
from debubble.engine.timeline import Timeline
from debubble.interchange.trace_events import Transfer, run_trace, write_trace
from tests.command import call


def messages(timeline: Timeline) -> Iterator[Transfer]:
    """The transfers of a simulated schedule that has them as actions, as a run records them."""
    schedule = timeline.schedule
    kinds, rank = kinds_of(schedule.actions), schedule.ranks_of_actions
    at = {unpack(code): place for place, code in enumerate(schedule.actions.tolist())}
    for send in np.flatnonzero(np.isin(kinds, SEND_KINDS)).tolist():
        action = unpack(int(schedule.actions[send]))
        other = Kind(action.kind + 1)
        target = action.stage + int(schedule.away[action.kind, action.stage])
        receive = at[action._replace(stage=target, kind=other)]
        begin, end = timeline.start[send], timeline.end[send]
        yield Transfer(
            f"{action.stage}{action.kind.name}{action.microbatch}", int(rank[send]), begin, begin,
            f"{target}{other.name}{action.microbatch}", int(rank[receive]), begin, begin, end,
        )  # fmt: skip


def traced(path: Path, carry_time: float, name: str = "1f1b", **sizes: Any) -> Path:
    """The trace of a run at simulated times, in seconds."""
    sizes = {"ranks": 3, "microbatches": 6, "carry": [(0, 2)]} | sizes
    schedule = db.make(name, **sizes, transfers="eager")
    costs = db.Costs(F=1, B=2, I=1.25, W=0.75, p2p=0.25, p2p_carry=carry_time, time_unit="ms")
    timeline = db.simulate(schedule, costs)
    transfers = [
        each._replace(
            send_start=each.send_start / 1e3, send_end=each.send_end / 1e3,
            posted=each.posted / 1e3, waited=each.waited / 1e3, there=each.there / 1e3,
        )
        for each in messages(timeline)
    ]  # fmt: skip
    times = {"measured": (timeline.start / 1e3, timeline.end / 1e3)}
    write_trace(run_trace(schedule, times, transfers=transfers), path)
    return path


@pytest.mark.parametrize("carry_time", [0.5, 4.0])
def test_a_run_that_waits_for_what_is_carried_is_replayed(
    carry_time: float, tmp_path: Path
) -> None:
    found = read_trace(traced(tmp_path / "x.trace.json", carry_time))
    assert found.run.schedule.carries == ((0, 2),)
    assert found.replay.error == pytest.approx(0, abs=1e-6)
    # No host is late: what a rank waits for is on its way.
    assert float(np.max(found.replay.gaps)) == pytest.approx(0, abs=1e-7)
    # A part of the message from stage 1 to stage 2, which is as late as what stage 0 carries.
    slowest = float(np.max(found.replay.transfers.in_flight)) * 1e3
    assert (slowest == pytest.approx(0.25)) == (carry_time == 0.5)


def test_other_schedules_of_a_run_have_its_carries(tmp_path: Path) -> None:
    found = read_trace(traced(tmp_path / "x.trace.json", 0.5))
    other = with_schedule(found.replay, "gpipe")
    assert other.timeline is not None
    assert other.timeline.schedule.carries == ((0, 2),)
    with pytest.raises(ParameterError, match="'zb-v' has 6 stages, and the run carries something"):
        with_schedule(found.replay, "zb-v")


def test_what_no_neighbor_sends_next_to_is_refused_with_a_command_that_draws_it(
    tmp_path: Path,
) -> None:
    # Stages 2 and 3 of the V are on one rank, and stage 0 carries to stage 3.
    path = traced(tmp_path / "x.trace.json", 0.5, "zb-v", carry=[(0, 3)])
    with pytest.raises(FormatError, match="what is carried to stage 3 is all that it gets") as why:
        read_trace(path)
    words = str(why.value).split("draw it: debubble ")[1].split()
    assert call(*words, "-o", tmp_path / "x.svg").code == 0


def test_the_report_says_where_carries_are(tmp_path: Path) -> None:
    result = call("trace", traced(tmp_path / "x.trace.json", 4.0), "--details")
    assert result.code == 0, result.err
    text = " ".join(result.out.split())
    assert "Skip connections 0:2: input counts as a late message of a neighbor" in text
    assert "skip connections: parts of the messages between neighbors" in text
