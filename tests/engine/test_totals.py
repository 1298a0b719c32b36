"""Totals against the timeline, the memory and the independent simulator."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import COPY_KINDS, ends_group, kinds_of, unpack
from debubble.core.errors import CostError, ParameterError, ScheduleError
from debubble.engine.event_graph import EventGraph
from debubble.engine.memory import measure_memory
from debubble.engine.modes import P2P_MODES, P2PMode
from debubble.engine.totals import totals
from debubble.schedules.registry import Entry, made_once
from tests import oracle
from tests.pairs import each_family_and
from tests.small import smallest


def _costs(schedule: db.Schedule, seed: int) -> db.Costs:
    """Costs of which no two stages have the same."""
    rng = np.random.default_rng(seed)
    times = {key: rng.uniform(1, 3, schedule.stages).tolist() for key in "FIW"}
    return db.Costs(
        **times,
        p2p=rng.uniform(0, 0.5, (schedule.ranks, schedule.ranks)).tolist(),
        overlap_factor=0.9,
        activation=rng.uniform(1, 2, schedule.stages).tolist(),
        kept_for_weight=0.5,
        host_bandwidth=2.0,
    )


@each_family_and("mode", P2P_MODES)
def test_totals_are_those_of_the_timeline(entry: Entry, mode: P2PMode) -> None:
    schedule = smallest(entry)
    for seed in range(3):
        costs = _costs(schedule, seed)
        timeline = db.simulate(schedule, costs, mode)
        found = totals(schedule, costs, mode)
        assert found.makespan == timeline.makespan
        assert found.busy.tolist() == timeline.busy.tolist()
        assert found.peak.tolist() == timeline.peak_activation.tolist()
        if not timeline.graph.has_copies:
            use = measure_memory(schedule, timeline.table)
            assert found.peak.tolist() == use.peak.tolist()


@each_family_and("seed", range(2))
def test_totals_are_those_of_the_oracle(entry: Entry, seed: int) -> None:
    schedule = smallest(entry)
    costs = _costs(schedule, seed)
    found, wanted = totals(schedule, costs), oracle.simulate(schedule, costs)
    assert found.makespan == pytest.approx(wanted.makespan)
    for rank in range(schedule.ranks):
        codes = schedule.program(rank).tolist()
        ends = np.flatnonzero(ends_group(schedule.program(rank)))
        time = sum(
            wanted.end[rank, index] - wanted.start[rank, index]
            for index in ends.tolist()
            if unpack(codes[index]).kind not in COPY_KINDS
        )
        assert found.busy[rank] == pytest.approx(time)


@each_family_and("seed", range(2))
def test_ranks_first_hold_their_peak_where_it_says(entry: Entry, seed: int) -> None:
    schedule = smallest(entry)
    costs = _costs(schedule, seed)
    found, use = totals(schedule, costs), measure_memory(schedule, costs.table(schedule))
    if np.isin(kinds_of(schedule.actions), COPY_KINDS).any():
        assert (found.fullest == -1).all()
        return
    for rank in range(schedule.ranks):
        ends = ends_group(schedule.program(rank)).tolist()
        held = freed = most = 0.0
        at = -1
        for index, (start, end) in enumerate(zip(*use.deltas(schedule, rank), strict=True)):
            held += start
            freed += end
            if ends[index]:
                if held > most:
                    most, at = held, index + int(schedule.offsets[rank])
                held, freed = held + freed, 0.0
        assert (found.peak[rank], found.fullest[rank]) == (most, at)


def test_a_graph_is_compiled_once_for_all_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = db.make("dualpipe", ranks=4, microbatches=8)
    first = totals(schedule, db.Costs(F=2))
    with monkeypatch.context() as patch:
        patch.setattr("debubble.engine.compile._compile", None)
        patch.setattr(EventGraph, "work", None)
        second = totals(schedule, db.Costs(F=3))
    assert second.makespan > first.makespan
    assert (second.busy > first.busy).all()


def test_modes_and_shared_links_have_totals_of_their_own() -> None:
    costs = db.Costs(F=1, B=2, p2p=0.5, host_bandwidth=1)
    schedule = db.make("1f1b", ranks=4, microbatches=8, offload="full", costs=costs)
    shared = db.Costs(F=1, B=2, p2p=0.5, host_bandwidth=1, host_link_shared_by=2)
    for given in (costs, shared, costs):
        timeline = db.simulate(schedule, given)
        assert totals(schedule, given).makespan == timeline.makespan
        assert totals(schedule, given).peak.tolist() == timeline.peak_activation.tolist()
    assert totals(schedule, shared).makespan > totals(schedule, costs).makespan
    assert totals(schedule, costs, "blocking").makespan > totals(schedule, costs).makespan


def test_wrong_arguments_are_refused_as_by_simulate() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    with pytest.raises(ParameterError, match="schedule is '1f1b'; give a Schedule"):
        totals("1f1b")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="costs is 3; give"):
        totals(schedule, 3)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="p2p mode 'fast'"):
        totals(schedule, None, "fast")  # type: ignore[arg-type]
    with pytest.raises(CostError, match="F has 3 values for 2 stages"):
        totals(schedule, db.Costs(F=[1, 2, 3]))
    stuck = db.Schedule.from_text([["0B0", "0F0"]], db.Placement.linear(1), 1)
    with pytest.raises(ScheduleError):
        totals(stuck)


def test_schedules_are_made_once() -> None:
    one = made_once("1f1b", ranks=4, microbatches=8)
    assert made_once("1f1b", ranks=4, microbatches=8) is one
    assert made_once("1f1b", ranks=4, microbatches=9) is not one
    assert one == db.make("1f1b", ranks=4, microbatches=8)
    with pytest.raises(ParameterError, match="unknown schedule"):
        made_once("2f2b", ranks=4, microbatches=8)
