"""Microbatches of different lengths, against a simulator that has costs for each of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import CostError, Costs, Kind, Schedule
from debubble.analysis.bubbles import bubbles
from debubble.core.actions import MICROBATCH_SHIFT, TRANSFER_KINDS, kinds_of, unpack
from debubble.engine.action_times import with_times
from debubble.engine.modes import MODE, P2P_MODES, P2PMode
from debubble.schedules.registry import Entry
from tests.engine.agreement import check_drawn, check_mode, close
from tests.pairs import each_sort
from tests.strategies import TIMES, costs_for, made

LENGTHS = st.sampled_from([0.5, 1.0, 1.25, 2.0])


@st.composite
def uneven(draw: st.DrawFn, schedule: Schedule) -> Costs:
    """Costs whose microbatches differ, with messages, and attention that is a part of I."""
    costs = draw(costs_for(schedule))
    m = schedule.microbatches
    lengths = draw(st.lists(LENGTHS, min_size=m, max_size=m))
    # A quarter of I and W together is at most I.
    half = draw(st.lists(TIMES, min_size=schedule.stages, max_size=schedule.stages))
    return replace(
        costs, I=half, W=half, attention=draw(st.sampled_from([0.0, 0.25])), microbatch=lengths,
        message=draw(TIMES), bandwidth=4.0, launch=draw(st.sampled_from([0.0, 0.5])),
        FF=draw(st.none() | st.just(1.25)), overlap_factor=draw(st.sampled_from([0.75, 1.0])),
        embedding=draw(st.none() | st.just({"F": 0.5, "B": 1.0, "activation": 0.25})),
    )  # fmt: skip


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_engine_equals_the_oracle(entry: Entry, data: st.DataObject) -> None:
    check_drawn(entry, data, uneven)


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_every_mode_equals_its_oracle(entry: Entry, data: st.DataObject) -> None:
    schedule = data.draw(made(entry, ranks=6, microbatches=12))
    costs = data.draw(uneven(schedule))
    mode = data.draw(st.sampled_from(P2P_MODES))
    timeline = check_mode(schedule, costs, mode)
    if mode in ("channel", "overlapped"):
        plain = db.simulate(schedule, costs, mode)
        given_ = np.flatnonzero(~np.isin(kinds_of(timeline.schedule.actions), TRANSFER_KINDS))
        assert plain.end.tolist() == close(timeline.end[given_].tolist())
    elif MODE[mode].receives == "early":
        assert db.simulate(schedule, costs, mode).makespan == close(timeline.makespan)


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe", "seq1f1b", "vocab-2", "pipedream"])
@pytest.mark.parametrize("mode", P2P_MODES)
def test_lengths_of_one_change_nothing(name: str, mode: P2PMode) -> None:
    schedule = db.make(name, ranks=4, microbatches=8)
    costs = Costs(F=[1.0] * 4 + [1.1] * (schedule.stages - 4), p2p=0.1, message=1, bandwidth=7,
                  O=1.7, attention=0.3, launch=0.01)  # fmt: skip
    plain = db.simulate(schedule, costs, mode)
    ones = db.simulate(schedule, replace(costs, microbatch=[1] * 8), mode)
    assert ones.graph.base is None
    assert np.array_equal(ones.end, plain.end)
    own, vector = with_times(plain.graph, replace(costs, microbatch=[1] * 8).table(schedule))
    assert np.array_equal(own.evaluate(vector), plain.node_end)


def test_a_length_of_two_is_twice_the_linear_and_four_times_the_attention() -> None:
    """One rank, one microbatch of length 2: sums by hand."""
    schedule = db.make("zb-h1", ranks=1, microbatches=2)
    costs = Costs(
        F=10, I=8, W=4, attention=0.25, launch=1, head={"F": 1, "I": 1, "W": 1},
        activation=3, microbatch=[2, 1],
    )  # fmt: skip
    timeline = db.simulate(schedule, costs)
    times = {str(unpack(int(a))): float(t)
             for a, t in zip(schedule.actions, timeline.duration, strict=True)}  # fmt: skip
    assert times["0F0"] == 7.5 * 2 + 2.5 * 4 + 2 + 1
    # A quarter of I and W together, 3, is in I.
    assert times["0I0"] == 5 * 2 + 3 * 4 + 2 + 1
    assert times["0W0"] == 4 * 2 + 2 + 1
    assert (times["0F1"], times["0I1"], times["0W1"]) == (12, 10, 6)
    assert timeline.peak_activation.tolist() == [6]


def test_the_same_lengths_serve_every_iteration() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=3, iterations=2)
    timeline = db.simulate(schedule, Costs(F=1, B=2, microbatch=[1, 3, 2]))
    first = schedule.actions >= 0
    units = schedule.actions[first] >> MICROBATCH_SHIFT
    forward = kinds_of(schedule.actions) == Kind.F
    assert timeline.duration[forward].tolist() == [[1, 3, 2][u % 3] for u in units[forward]]


def test_the_number_of_lengths_is_that_of_the_microbatches() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=4)
    with pytest.raises(CostError, match="microbatch has 3 values for 4 microbatches; give one num"):
        db.simulate(schedule, Costs(microbatch=[1, 2, 1]))
    with pytest.raises(CostError, match="microbatch names microbatch 4; microbatches go to 3"):
        db.simulate(schedule, Costs(microbatch={"default": 1, 4: 2}))
    with pytest.raises(CostError, match=r"microbatch\[1\] is -1; costs are not negative"):
        Costs(microbatch=[1, -1])
    with pytest.raises(CostError, match="microbatch is 'long'; give a number, a list with one per"):
        Costs(microbatch="long")


def test_one_length_for_all_and_one_for_some() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=4)
    twice = db.simulate(schedule, Costs(F=1, B=2, microbatch=2))
    assert twice.makespan == 2 * db.simulate(schedule, Costs(F=1, B=2)).makespan
    some = db.simulate(schedule, Costs(F=1, B=2, microbatch={"default": 1, 2: 3}))
    listed = db.simulate(schedule, Costs(F=1, B=2, microbatch=[1, 1, 3, 1]))
    assert some.end.tolist() == listed.end.tolist()
    assert not Costs(microbatch=2).uniform


def test_paths_slack_and_names() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    costs = Costs(
        F=1, B=2, p2p=0.1, message=1, bandwidth=4, microbatch=[1, 2, 0.5, 1, 1, 0.5, 1, 1]
    )
    timeline = db.simulate(schedule, costs)
    path = timeline.critical_path()
    assert path[-1].end == timeline.makespan
    assert timeline.slack.min() == pytest.approx(0, abs=1e-9)
    paid = timeline.sensitivity()
    assert set(paid) <= set(timeline.graph.cost_names())
    kinds = [f"{step.action.kind.name} of stage {step.action.stage}" for step in path]
    assert {name: count for name, count in paid.items() if "p2p" not in name} == Counter(kinds)
    late = timeline.as_late_as_possible()
    assert late.makespan == timeline.makespan
    assert timeline.busy == pytest.approx([24.0] * 4)
    assert bubbles(timeline).totals.sum() + timeline.busy.sum() == pytest.approx(
        4 * timeline.makespan
    )


def test_a_timeline_of_given_durations() -> None:
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    costs = Costs(F=1, B=2, p2p=0.25)
    plain = db.simulate(schedule, costs)
    again = db.simulate(schedule, costs, durations=plain.duration)
    assert np.array_equal(again.end, plain.end)
    times = np.random.default_rng(0).uniform(0.5, 2.5, len(schedule))
    timeline = db.simulate(schedule, costs, durations=times)
    assert np.array_equal(timeline.duration, times)
    lengths = db.simulate(schedule, replace(costs, microbatch=[2] * 8, message=1, bandwidth=4),
                          durations=times.tolist())  # fmt: skip
    assert np.array_equal(lengths.duration, times)
    assert lengths.makespan > timeline.makespan


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ([1.0], r"durations has the shape \(1,\) for 8 actions; give one time for each"),
        ([1.0] * 7 + [-1.0], r"durations\[7\] is -1; give a time from 0 to 1e\+100"),
        ([1.0] * 7 + [np.nan], r"durations\[7\] is nan"),
        ("fast", "durations is 'fast'; give one number per action"),
    ],
)
def test_wrong_durations(durations: Any, message: str) -> None:
    with pytest.raises(CostError, match=message):
        db.simulate(db.make("1f1b", ranks=2, microbatches=2), durations=durations)
