"""Exact figures in plain text."""

from __future__ import annotations

import pytest

import debubble as db
from debubble.core.errors import ParameterError
from debubble.core.schedule import Schedule
from debubble.engine.timeline import simulate
from tests.grid import grid
from tests.view.timelines import pairs, run, zero_bubble


def test_1f1b_as_in_its_papers():
    assert grid(run("1f1b", 4, 4)).splitlines() == [
        "r0 | F0 F1 F2 F3 .  .  .  .  .  .  B0--- .  B1--- .  B2--- .  B3---",
        "r1 | .  F0 F1 F2 .  .  .  .  B0--- F3 B1--- .  B2--- .  B3--- .  .",
        "r2 | .  .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- .  B3--- .  .  .  .",
        "r3 | .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- .  .  .  .  .  .",
    ]


@pytest.mark.parametrize("microbatches", range(4, 9))
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_four_ranks_fit_in_100_columns(name, microbatches):
    lines = grid(run(name, 4, microbatches)).splitlines()
    assert max(map(len, lines)) <= 100


def test_slots_close_up_when_the_line_would_be_too_long():
    first = grid(run("1f1b", 4, 8)).splitlines()[0]
    assert first == "r0 | F0F1F2F3. . . . . . B0--F4B1--F5B2--F6B3--F7B4--. B5--. B6--. B7--"


def test_pairs_have_the_forward_above_the_backward():
    assert grid(pairs()).splitlines() == [
        "r0 | F0 F1 .  .  F2--- .  .  B1--- B2---",
        "   |             B0---",
        "r1 | .  F0 F1--- .  .  F2--- B2--- .  .",
        "   |       B0---       B1---",
    ]


def test_split_backward_and_an_optimizer_step_with_a_duration():
    assert grid(zero_bubble()) == "r0 | F0 I0 F1 I1 W0 W1 O-"


def test_an_optimizer_step_without_duration_is_a_bar():
    assert grid(run("1f1b", 2, 1, iterations=2)).splitlines() == [
        "r0 | F0 .  .  .  B0---|F1 .  .  .  B1---|",
        "r1 | .  F0 B0--- .  . |.  F1 B1--- .  . |",
    ]


def test_the_second_chunk_is_in_lower_case():
    rows = [["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]]
    timeline = simulate(Schedule.from_text(rows, db.Placement.v(2), 1), db.Costs(F=1, B=1))
    assert grid(timeline).splitlines() == [
        "r0 | F0 .  .  f0 b0 .  .  B0",
        "r1 | .  F0 f0 .  .  b0 B0 .",
    ]


def test_more_chunks_are_written_with_their_stage():
    rows = [["0F0", "1F0", "2F0", "2B0", "1B0", "0B0"]]
    timeline = simulate(Schedule.from_text(rows, db.Placement.loop(1, 3), 1), db.Costs(F=1, B=1))
    assert grid(timeline) == "r0 | 0F0 1F0 2F0 2B0 1B0 0B0"


def test_times_without_a_common_slot_are_refused():
    timeline = simulate(db.make("1f1b", ranks=2, microbatches=2), db.Costs(F=1, B=2**0.5))
    with pytest.raises(ParameterError, match="multiples of one slot"):
        grid(timeline)


def test_too_many_slots_are_refused():
    with pytest.raises(ParameterError, match=r"1,203 slots long; the limit is 1,000"):
        grid(run("1f1b", 2, 400))
