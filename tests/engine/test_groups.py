"""Overlapped groups: any members that do not wait for each other, against the plain simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import Costs, Kind, Placement, Schedule, ScheduleError, simulate
from debubble.core.actions import (
    MICROBATCH_SHIFT,
    PAIR_SHIFT,
    cells,
    kinds_of,
    parse_cell,
    unpack,
)
from debubble.engine.modes import P2P_MODES
from debubble.lowering.transfers import add_transfers
from tests import oracle
from tests.strategies import ENTRIES, costs_for, made

LINEAR = [entry for entry in ENTRIES if entry.name in ("1f1b", "zb-h1", "zb-v", "interleaved-1f1b")]


def from_rows(*rows: str, microbatches: int = 2) -> Schedule:
    placement = Placement.linear(len(rows))
    return Schedule.from_text([row.split() for row in rows], placement, microbatches)


@st.composite
def grouped(draw: st.DrawFn) -> Schedule:
    """A schedule with some neighbours of its programs made groups of two to four."""
    schedule = draw(made(draw(st.sampled_from(LINEAR)), ranks=4, microbatches=8, chunks=2))
    actions = schedule.actions.copy()
    for rank in range(schedule.ranks):
        position, stop = schedule.offsets[rank : rank + 2].tolist()
        while position < stop:
            size = draw(st.integers(1, 4))
            group = [unpack(code) for code in actions[position : min(position + size, stop)]]
            cell = {(stage, unit) for stage, _, unit in group}
            if 1 < len(group) == len(cell) and all(kind != Kind.OPT for _, kind, _ in group):
                places = [1, *[3] * (len(group) - 2), 2]
                actions[position : position + len(group)] |= np.array(places) << PAIR_SHIFT
                position += len(group)
            else:
                position += 1
    return replace(schedule, actions=actions)


@pytest.mark.slow
@settings(max_examples=80)
@given(data=st.data(), schedule=grouped())
def test_times_and_memory_are_those_of_the_plain_simulator(
    data: st.DataObject, schedule: Schedule
) -> None:
    costs = data.draw(costs_for(schedule))
    try:
        outcome = oracle.simulate(schedule, costs)
    except oracle.CannotRunError:
        with pytest.raises(ScheduleError):
            simulate(schedule, costs)
        return
    timeline = simulate(schedule, costs)
    spots = [(r, i) for r in range(schedule.ranks) for i in range(len(schedule.program(r)))]
    assert timeline.end.tolist() == [outcome.end[spot] for spot in spots]
    assert timeline.start.tolist() == [outcome.start[spot] for spot in spots]
    assert timeline.peak_activation.tolist() == oracle.peaks(schedule, costs)
    busy = [0.0] * schedule.ranks
    for rank, index in {(r, round(outcome.start[r, i], 9)): (r, i) for r, i in spots}.values():
        busy[rank] += outcome.end[rank, index] - outcome.start[rank, index]
    if (
        not any(kind == Kind.OPT for kind in kinds_of(schedule.actions))
        and min(np.asarray(timeline.duration)) > 0
    ):
        assert timeline.busy.tolist() == busy


@settings(max_examples=40)
@given(schedule=grouped(), mode=st.sampled_from(P2P_MODES))
def test_groups_go_through_every_mode_and_lowering(schedule: Schedule, mode: str) -> None:
    costs = Costs(F=1, I=2, W=0.5, p2p=0.25)
    try:
        plain = simulate(schedule, costs)
    except ScheduleError:
        assume(False)
        raise
    assert Schedule.from_text(
        schedule.rows(), schedule.placement, schedule.microbatches, iterations=schedule.iterations,
        sync=schedule.sync, recompute_after=schedule.recompute_after,
    ) == schedule  # fmt: skip
    there = simulate(schedule, costs, mode)
    assert there.makespan >= plain.makespan
    lowered = add_transfers(schedule, policy="queued")
    assert simulate(lowered, costs, mode).makespan >= plain.makespan
    assert db.check(schedule).problems == ()


def test_members_start_and_end_together() -> None:
    schedule = from_rows("0F0 (0F1;0I0)OVERLAP_F_B (0I1;0W0)OVERLAP_F_B 0W1")
    timeline = simulate(schedule, Costs(F=1, I=2, W=4, O=2.5))
    # A forward and a backward take what is given, all others the sum of their parts.
    assert timeline.start.tolist() == [0, 1, 1, 3.5, 3.5, 9.5]
    assert timeline.end.tolist() == [1, 3.5, 3.5, 9.5, 9.5, 13.5]
    assert timeline.busy.tolist() == [13.5]


def test_three_at_a_time_are_the_sum_of_their_parts() -> None:
    schedule = from_rows("0F0 0I0 0F1 (0F2;0I1;0W0)OVERLAP_F_B 0W1 0I2 0W2", microbatches=3)
    timeline = simulate(schedule, Costs(F=1, I=2, W=4, O=2.5))
    assert timeline.end[3:6].tolist() == [11, 11, 11]
    assert timeline.sensitivity()[
        "F of stage 0 and I of stage 0 together and W of stage 0 together"
    ]


def test_a_backward_may_stand_before_its_forward() -> None:
    one = from_rows("0F0 (0F1;0B0)OVERLAP_F_B 0B1")
    other = from_rows("0F0 (0B0;0F1)OVERLAP_F_B 0B1")
    costs = Costs(F=1, B=2, O=2.5)
    assert simulate(one, costs).makespan == simulate(other, costs).makespan == 5.5


@pytest.mark.parametrize(
    ("costs", "time"),
    [
        (Costs(F=2, B=2, O=3), 4),
        (Costs(F=2, B=2, O=3, overlap_factor=0.75), 3),
        (Costs(F=2, B=2, FF=3.5, overlap_factor=0.75), 3.5),
        (Costs.per_rank(F=2, B=2, FF=[3.5, 9], chunks=1), 3.5),
        (Costs(F=2, B=2, overlap_factor=0.5, launch=0.25), 2.5),
        (Costs(F=2, B=2, FF=3, overlap_factor=0.5, embedding={"F": 1}), 4),
        (Costs(F=2, B=2, FF=3, microbatch=[1, 3, 0.5, 2]), 6),
        (Costs(F=2, B=2, overlap_factor=0.5, microbatch=[1, 3, 0.5, 2]), 4),
    ],
    ids=str,
)
def test_two_forwards_take_a_time_of_their_own(costs: Costs, time: float) -> None:
    rows = "(0F0;0F1)OVERLAP_F_B 0B0 0B1 0F2 0B2 0F3 0B3", "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"
    schedule = from_rows(*rows, microbatches=4)
    timeline = simulate(schedule, costs)
    assert timeline.end[:2].tolist() == [time, time]
    expected = oracle.simulate(schedule, costs).end
    assert timeline.end == pytest.approx([expected[r, i] for r in range(2) for i in range(8)])


def test_the_time_of_two_forwards_is_known_where_schedules_are_drawn_and_compared(
    tmp_path: Path,
) -> None:
    schedule = db.make("stp", ranks=2, microbatches=6)
    costs = Costs(F=1, FF=1.5)
    gain = simulate(schedule, costs)
    # Rank 1 has one such pair in its warm-up, rank 0 none.
    assert (simulate(schedule, Costs(F=1)).busy - gain.busy).tolist() == [0, 0.5]
    assert "pair F of stage 1 and F of stage 1" in gain.graph.cost_names()
    rows = db.compare([schedule, "zb-v"], ranks=2, microbatches=6, costs=costs).rows
    assert gain.bubble_ratio in {row.bubble_ratio for row in rows}
    gain.save(tmp_path / "stp.txt")
    assert "makespan 37" in (tmp_path / "stp.txt").read_text(encoding="utf-8")


def test_text_reads_back() -> None:
    text = "(0F3;3B1;3W0;2R5)OVERLAP_F_B"
    codes = np.array(parse_cell(text))
    assert cells(codes) == [text]
    assert [(code >> PAIR_SHIFT) & 3 for code in codes.tolist()] == [1, 3, 3, 2]
    assert (codes >> MICROBATCH_SHIFT).tolist() == [3, 1, 0, 5]


@pytest.mark.parametrize(
    "row",
    [
        "0F0 (0F1;0B0;0W0)OVERLAP_F_B 0B1",
        "0F0 (0I0;0W0)OVERLAP_F_B 0F1 0B1",
        "(0F0;0F1;0F0)OVERLAP_F_B 0B0 0B1",
        "0F0 0B0 (0F1;0OPT0)OVERLAP_F_B 0B1",
    ],
)
def test_members_that_wait_for_each_other_are_refused(row: str) -> None:
    with pytest.raises(ScheduleError, match="bad overlapped group"):
        simulate(from_rows(row))
    assert not db.check(from_rows(row)).ok


def test_a_group_has_at_most_sixteen_members() -> None:
    for members in (16, 17):
        group = ";".join(f"0F{unit}" for unit in range(members))
        rest = " ".join(f"0B{unit}" for unit in range(members))
        schedule = from_rows(f"({group})OVERLAP_F_B {rest}", microbatches=members)
        if members == 16:
            assert simulate(schedule).end[0] == 16
        else:
            with pytest.raises(ScheduleError, match="two to 16"):
                simulate(schedule)
