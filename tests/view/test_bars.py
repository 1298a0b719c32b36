"""Bars are the timeline's actions, and from afar they fill as much as they take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import debubble as db
from debubble.core.actions import Kind
from debubble.core.schedule import Schedule
from debubble.engine.timeline import simulate
from debubble.view.bars import LOWER, UPPER, WHOLE, bars_of
from tests.view.timelines import pairs, run, two_copies, zero_bubble


def test_bars_are_the_actions_in_order():
    timeline = run("1f1b", 2, 2)
    bars = bars_of(timeline)
    assert bars.rank.tolist() == [0] * 4 + [1] * 4
    assert bars.start.tolist() == timeline.start.tolist()
    assert bars.end.tolist() == timeline.end.tolist()
    assert [bars.label(bar) for bar in range(4)] == ["0", "1", "0", "1"]
    assert bars.styles == ((Kind.F, 0), (Kind.B, 0))
    assert not bars.paired


def test_halves_of_pairs_have_the_forward_above():
    bars = bars_of(pairs())
    halves = [
        (int(rank), Kind(int(kind)).name, int(unit))
        for rank, kind, unit, half in zip(bars.rank, bars.kind, bars.unit, bars.half, strict=True)
        if half == UPPER
    ]
    assert halves == [(0, "F", 2), (1, "F", 1), (1, "F", 2)]
    assert bars.half.tolist().count(LOWER) == 3
    assert set(bars.kind[bars.half == LOWER].tolist()) == {Kind.B}


def test_chunks_are_shades_counted_on_each_rank():
    rows = [["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]]
    timeline = simulate(Schedule.from_text(rows, db.Placement.v(2), 1))
    bars = bars_of(timeline)
    assert bars.shade.tolist() == [0, 1, 1, 0] * 2
    assert bars.shades == 2


def test_copies_are_shades():
    bars = bars_of(two_copies())
    assert bars.unit.tolist() == [0, 1, 1, 0, 1, 0, 0, 1]
    assert bars.shade.tolist() == bars.unit.tolist()


def test_microbatches_are_counted_on_through_iterations():
    bars = bars_of(run("1f1b", 1, 2, iterations=2))
    labels = [bars.label(bar) for bar in range(len(bars.start))]
    assert labels == ["0", "0", "1", "1", "", "2", "2", "3", "3", ""]
    assert bars.iteration.tolist() == [0] * 5 + [1] * 5
    assert bars.text(3, first=1) == "4"


def test_slices_are_written_behind_their_microbatch():
    rows = [["0F0.0", "0F0.1", "0B0.1", "0B0.0"]]
    schedule = Schedule.from_text(rows, db.Placement.linear(1), 1, slices=2)
    bars = bars_of(simulate(schedule))
    assert [bars.label(bar) for bar in range(4)] == ["0.0", "0.1", "0.1", "0.0"]


def test_kinds_are_in_the_order_of_a_legend():
    assert [kind.name for kind in bars_of(zero_bubble()).kinds] == ["F", "I", "W", "OPT"]


@given(
    st.integers(1, 4), st.integers(1, 9), st.integers(1, 40), st.floats(0.01, 9), st.floats(0, 9)
)
def test_shares_add_up_to_the_time_of_each_kind(ranks, microbatches, columns, forward, backward):
    schedule = db.make("1f1b", ranks=ranks, microbatches=microbatches)
    timeline = simulate(schedule, db.Costs(F=forward, B=backward, p2p=0.1))
    bars = bars_of(timeline)
    for rank in range(ranks):
        shares = bars.shares(rank, columns, timeline.makespan)
        assert shares.shape == (columns, len(bars.styles))
        assert shares.sum(axis=1).max() <= 1 + 1e-9
        times = shares.sum(axis=0) * timeline.makespan / columns
        part = bars.of(rank)
        expected = np.bincount(
            bars.style[part], (bars.end - bars.start)[part], minlength=len(bars.styles)
        )
        assert times == pytest.approx(expected, abs=1e-6 * timeline.makespan)


def test_shares_of_a_lane_hold_its_half_and_whole_bars():
    timeline = pairs()
    bars = bars_of(timeline)
    columns = round(timeline.makespan)
    upper = bars.shares(1, columns, timeline.makespan, UPPER)
    lower = bars.shares(1, columns, timeline.makespan, LOWER)
    both = bars.shares(1, columns, timeline.makespan, WHOLE)
    assert both == pytest.approx((upper + lower) / 2)
    # Rank 1: forward 0 alone for one slot, then two pairs of two slots.
    forward = bars.styles.index((Kind.F, 0))
    assert upper[:, forward].sum() == 5
    assert lower[:, forward].sum() == 1


@pytest.mark.parametrize(
    ("costs", "slot"),
    [
        ({"F": 1, "B": 2}, 1),
        ({"F": 10, "B": 18}, 2),
        ({"F": 2, "B": 3}, 1),
        ({"F": 0.1, "B": 0.3}, 0.1),
        ({"F": 1, "B": 2**0.5}, 0),
        ({"F": 0, "B": 0}, 0),
    ],
)
def test_slot_is_the_common_measure_of_all_times(costs, slot):
    timeline = simulate(db.make("1f1b", ranks=2, microbatches=4), db.Costs(**costs))
    assert bars_of(timeline).slot() == pytest.approx(slot)
