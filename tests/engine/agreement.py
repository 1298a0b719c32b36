"""The engine against the oracles: the same starts, ends and memory for a schedule and its costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

import debubble as db
from debubble import Costs, Schedule, Timeline
from debubble.engine.modes import P2PMode
from debubble.lowering.transfers import add_transfers
from debubble.schedules.registry import Entry
from tests import oracle, oracle_modes
from tests.engine.test_laws import by_position
from tests.strategies import carrying, made, recomputing


def close(values: Any) -> Any:
    return pytest.approx(values, rel=1e-9, abs=1e-9)


def check_timeline(schedule: Schedule, costs: Costs) -> None:
    """The timeline is the oracle's, with transfers that overlap."""
    expected = oracle.simulate(schedule, costs)
    timeline = db.simulate(schedule, costs)
    assert timeline.end.tolist() == close(by_position(schedule, expected.end))
    assert timeline.start.tolist() == close(by_position(schedule, expected.start))
    if not timeline.graph.has_copies:
        assert timeline.peak_activation.tolist() == close(oracle.peaks(schedule, costs))


def check_drawn(entry: Entry, data: st.DataObject, costs: Callable[[Schedule], Any]) -> None:
    """A schedule of a family, which may recompute, agrees for any of these costs."""
    schedule = data.draw(carrying(data.draw(made(entry))))
    if data.draw(st.booleans()):
        schedule = data.draw(recomputing(schedule))
    check_timeline(schedule, data.draw(costs(schedule)))


def check_mode(schedule: Schedule, costs: Costs, mode: P2PMode) -> Timeline:
    """The timeline of the schedule with its transfers, which is the oracle's in this mode."""
    lowered = add_transfers(schedule)
    run = oracle_modes.simulate(lowered, costs, mode)
    assume(run is not None)
    assert run is not None
    timeline = db.simulate(lowered, costs, mode)
    assert timeline.start.tolist() == close(by_position(lowered, run.start))
    assert timeline.end.tolist() == close(by_position(lowered, run.end))
    return timeline
