"""Idle time by cause: by hand for small cases, by brute force and by sums for all schedules."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import debubble as db
from debubble.analysis.bubbles import CAUSES, bubbles, inputs_of, memory_limit
from debubble.core.actions import Kind, unpack
from debubble.core.schedule import Schedule
from debubble.schedules import registry


def totals(timeline):
    """Idle time of all ranks together, by cause."""
    return dict(zip(CAUSES, bubbles(timeline).totals.sum(axis=0).tolist(), strict=True))


def segments(timeline, rank):
    found = bubbles(timeline)
    return [
        (CAUSES[cause], float(start), float(end))
        for owner, cause, start, end in zip(
            found.rank, found.cause, found.start, found.end, strict=True
        )
        if owner == rank
    ]


@pytest.mark.parametrize("mode", ["overlapped", "channel", "blocking"])
@pytest.mark.parametrize("name", [entry.name for entry in registry.schedules()])
def test_idle_time_is_all_time_that_is_not_busy(name, mode):
    costs = db.Costs(F=1, I=1.3, W=0.7, OPT=2, p2p=0.2)
    for iterations in (None, 2):
        try:
            schedule = db.make(name, ranks=4, microbatches=8, iterations=iterations, costs=costs)
        except db.ParameterError:
            pytest.skip("does not take these sizes")
        timeline = db.simulate(schedule, costs, mode)
        found = bubbles(timeline)
        np.testing.assert_allclose(
            found.totals.sum(axis=1), timeline.makespan - timeline.busy, atol=1e-9
        )
        assert (found.end > found.start).all()
        same = found.rank[1:] == found.rank[:-1]
        assert (found.start[1:][same] >= found.end[:-1][same] - 1e-9).all()


def test_gpipe_waits_once_for_everything():
    timeline = db.simulate(db.make("gpipe", ranks=3, microbatches=4), db.Costs(F=1, B=2, p2p=0.25))
    assert segments(timeline, 0) == [("data", 4.0, 10.75), ("p2p", 10.75, 11.0)]
    assert segments(timeline, 2) == [("fill", 0.0, 2.5), ("drain", 14.5, 19.0)]


def test_a_wait_is_for_data_until_it_is_computed_and_for_p2p_until_it_is_there():
    rows = [["0F0", "0B0"], ["1F0", "1B0"]]
    schedule = Schedule.from_text(rows, db.Placement.linear(2), 1)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, p2p=3))
    assert segments(timeline, 0) == [("data", 1.0, 7.0), ("p2p", 7.0, 10.0)]
    assert segments(timeline, 1) == [("fill", 0.0, 4.0), ("drain", 7.0, 12.0)]


def test_blocking_transfers_are_p2p():
    schedule = db.make("1f1b", ranks=2, microbatches=3)
    free = totals(db.simulate(schedule, db.Costs(F=1, B=2)))
    paid = totals(db.simulate(schedule, db.Costs(F=1, B=2, p2p=0.5), "blocking"))
    assert free["p2p"] == 0
    assert paid["p2p"] > 1


def test_an_optimizer_step_waits_for_the_data_of_other_ranks():
    schedule = db.make("1f1b", ranks=2, microbatches=2, iterations=1)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2, OPT=1))
    assert segments(timeline, 1) == [("fill", 0.0, 1.0), ("data", 7.0, 9.0)]


def test_a_fixed_order_never_waits_for_memory():
    # However little there is: the order is the same, and so is the timeline.
    for name in ("1f1b", "gpipe", "interleaved-1f1b", "zb-h1"):
        for memory in (None, 4, 1):
            schedule = db.make(name, ranks=4, microbatches=8, memory=memory)
            assert totals(db.simulate(schedule, db.Costs(F=1, B=2, p2p=0.05)))["memory"] == 0


def test_an_order_made_under_a_limit_waits_for_memory_where_more_would_help():
    costs = db.Costs(F=1, I=1, W=1)

    def made(memory):
        schedule = db.make("zb-auto", ranks=4, microbatches=8, costs=costs, memory=memory)
        return db.simulate(schedule, costs)

    tight, wide = made(2), made(16)
    assert totals(tight)["memory"] > 0
    assert wide.makespan < tight.makespan
    assert totals(wide)["memory"] == 0
    idle = tight.makespan * 4 - float(tight.busy.sum())
    assert sum(totals(tight).values()) == pytest.approx(idle)


def test_an_option_that_is_no_limit_is_none():
    schedule = Schedule.from_text([["0F0", "0B0"]], db.Placement.linear(1), 1)
    assert memory_limit(schedule) is None
    named = dataclasses.replace(schedule, options={"memory": "host"})
    assert memory_limit(named) is None
    assert memory_limit(dataclasses.replace(schedule, options={"memory": 3})).tolist() == [3]


def needed(action, stages):
    """The action whose result an action needs, as text."""
    stage, kind, unit = action
    if kind == Kind.W:
        return {f"{stage}I{unit}", f"{stage}B{unit}"}
    if kind == Kind.F:
        return {f"{stage - 1}F{unit}"}
    if stage == stages - 1:
        return {f"{stage}F{unit}"}
    return {f"{stage + 1}I{unit}", f"{stage + 1}B{unit}"}


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe", "gis"])
def test_inputs_are_those_the_rules_name(name):
    schedule = db.make(name, ranks=4, microbatches=8)
    actions = [unpack(code) for code in schedule.actions.tolist()]
    names = {str(action) for action in actions}
    for action, position in zip(actions, inputs_of(schedule).tolist(), strict=True):
        wanted = needed(action, schedule.stages) & names
        assert wanted == ({str(actions[position])} if position >= 0 else set()), str(action)


def test_a_rank_without_work_drains_all_the_time():
    schedule = Schedule.from_text([["0F0", "0B0"], []], db.Placement(((0,),), ranks=2), 1)
    assert segments(db.simulate(schedule, db.Costs(F=1, B=2)), 1) == [("drain", 0.0, 3.0)]
