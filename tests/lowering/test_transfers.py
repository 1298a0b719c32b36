from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import Costs, Kind, Placement, Schedule, ScheduleError, make, simulate
from debubble.core.actions import COMPUTE_KINDS, TRANSFER_KINDS, Action, kinds_of, unpack
from debubble.core.errors import ParameterError
from debubble.engine.compile import UNIT_COSTS
from debubble.engine.explain.action_faults import matched
from debubble.engine.graph import P2PMode, compile_graph
from debubble.engine.timeline import Timeline
from debubble.lowering.transfers import RECEIVE_POLICIES, add_transfers
from debubble.schedules.registry import Entry
from tests.kernels import run_by
from tests.oracle import copy_of
from tests.pairs import each_family_and, each_sort, each_sort_and
from tests.strategies import made

each_policy = pytest.mark.parametrize("policy", RECEIVE_POLICIES)


def unit_simulation(schedule: Schedule, mode: P2PMode = "overlapped") -> Timeline:
    """With the times that receives are placed by: a slice takes as long as a microbatch."""
    # The passes of a shard take one unit of time each.
    head = {"F": schedule.ranks, "W": schedule.ranks} if schedule.vocabulary else None
    costs = replace(UNIT_COSTS.scaled(schedule.slices), OPT=1.0, head=head)
    return simulate(replace(schedule, cut=(), exchange=False), costs, mode)


def is_compute(schedule: Schedule) -> np.ndarray:
    return ~np.isin(kinds_of(schedule.actions), TRANSFER_KINDS)


def groups(row: list[str]) -> list[tuple[str, set[str], str]]:
    """(action before, kinds of the group's members, action after) for every group of a row."""
    found = []
    before, members = "start", set()
    for cell in [*row, "end"]:
        match = re.fullmatch(r"\d+((?:SEND|RECV)_[FB])\d+", cell)
        if match:
            members.add(match[1])
            continue
        if members:
            found.append((before, members, cell))
        before, members = cell, set()
    return found


def transfers_by_hand(schedule: Schedule) -> dict[tuple[Action, int], tuple[Action, int]]:
    """Every send with its rank, and the receive and rank it belongs to."""
    table = schedule.placement.table
    expected = {}
    for program in schedule:
        for stage, kind, microbatch in program:
            row = table[copy_of(schedule, microbatch)] if kind != Kind.OPT else ()
            if kind == Kind.F and stage + 1 < len(row) and row[stage] != row[stage + 1]:
                send = Action(stage, Kind.SEND_F, microbatch)
                receive = Action(stage + 1, Kind.RECV_F, microbatch)
                expected[send, row[stage]] = (receive, row[stage + 1])
            if kind in (Kind.I, Kind.B) and stage > 0 and row[stage] != row[stage - 1]:
                send = Action(stage, Kind.SEND_B, microbatch)
                receive = Action(stage - 1, Kind.RECV_B, microbatch)
                expected[send, row[stage]] = (receive, row[stage - 1])
    return expected


def test_groups_of_1f1b_are_those_of_megatron() -> None:
    lowered = add_transfers(make("1f1b", ranks=4, microbatches=8), policy="just-in-time")
    assert [" ".join(row[:13]) for row in lowered.rows()] == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0F3 0SEND_F3 0RECV_B0 0B0 0F4 0SEND_F4 0RECV_B1",
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_F2 1F2 1SEND_F2 1RECV_B0 1B0 1SEND_B0 "
        "1RECV_F3",
        "2RECV_F0 2F0 2SEND_F0 2RECV_F1 2F1 2SEND_F1 2RECV_B0 2B0 2SEND_B0 2RECV_F2 2F2 2SEND_F2 "
        "2RECV_B1",
        "3RECV_F0 3F0 3B0 3SEND_B0 3RECV_F1 3F1 3B1 3SEND_B1 3RECV_F2 3F2 3B2 3SEND_B2 3RECV_F3",
    ]


@pytest.mark.parametrize(("policy", "ramp"), [("just-in-time", 0), ("eager", 2)])
@given(ranks=st.integers(3, 8), more=st.integers(0, 8))
@settings(max_examples=6)
def test_steady_state_of_1f1b_fuses_send_and_receive(
    policy: str, ramp: int, ranks: int, more: int
) -> None:
    schedule = make("1f1b", ranks=ranks, microbatches=2 * ranks + more)
    for rank, row in enumerate(add_transfers(schedule, policy=policy).rows()[1:-1], start=1):
        turns = [
            (before, members)
            for before, members, after in groups(row)
            if {cell.lstrip("0123456789")[0] for cell in (before, after)} == {"F", "B"}
        ]
        assert len(turns) == 2 * (schedule.microbatches - ranks + 1 + rank) - 1
        for before, members in turns[ramp * ranks :]:
            assert members == ({"SEND_F", "RECV_B"} if "F" in before else {"SEND_B", "RECV_F"})


def test_eager_receives_come_before_what_starts_after_the_producer() -> None:
    lowered = add_transfers(make("gpipe", ranks=2, microbatches=3))
    assert [" ".join(row) for row in lowered.rows()] == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0RECV_B0 0B0 0RECV_B1 0B1 0RECV_B2 0B2",
        "1RECV_F0 1F0 1RECV_F1 1F1 1RECV_F2 1F2 1B0 1SEND_B0 1B1 1SEND_B1 1B2 1SEND_B2",
    ]


def test_pairs_send_after_both_halves_and_receive_before_both() -> None:
    lowered = add_transfers(make("1f1b-overlap", ranks=3, microbatches=8), policy="just-in-time")
    middle = lowered.rows()[1]
    pair = middle.index("(1F5;1B2)OVERLAP_F_B")
    assert set(middle[pair - 2 : pair]) == {"1RECV_F5", "1RECV_B2"}
    assert middle[pair + 1 : pair + 3] == ["1SEND_F5", "1SEND_B2"]


def late_rows(rows: list[str], placement: Placement, microbatches: int) -> list[str]:
    schedule = Schedule.from_text([row.split() for row in rows], placement, microbatches)
    lowered = add_transfers(schedule, policy="just-in-time")
    assert matched(lowered) == []
    compile_graph(lowered, "blocking")
    return [" ".join(row) for row in lowered.rows()]


def test_both_sends_of_a_pair_are_received_in_their_order() -> None:
    # Rank 1 needs 3B0 before 0F1, and there is time for it to receive 0F1 after 2B0.
    rows = ["0F0 3F0 (0F1;3B0)OVERLAP_F_B 0B0", "1F0 2F0 2B0 1F1 1B0"]
    assert late_rows(rows, Placement.explicit([0, 1, 1, 0]), 2) == [
        "0F0 0SEND_F0 3RECV_F0 3F0 (0F1;3B0)OVERLAP_F_B 0SEND_F1 3SEND_B0 0RECV_B0 0B0",
        "1RECV_F0 1F0 2F0 2SEND_F0 1RECV_F1 2RECV_B0 2B0 1F1 1B0 1SEND_B0",
    ]


def test_a_receive_is_late_only_while_the_sender_waits_anyway() -> None:
    # Rank 0 has nothing to do between its pair and 0B1, which comes after 1B1.
    rows = [
        "0F0 0F1 0F2 (0F3;0B0)OVERLAP_F_B 0B1",
        "1F0 1F1 1F2 1B0 1B1 1F3",
        "2F0 2B0 2F1 2F2 2R1 2R2 2B1",
    ]
    assert late_rows(rows, Placement.linear(3), 4)[1].endswith(
        "1B0 1SEND_B0 1RECV_B1 1B1 1SEND_B1 1RECV_F3 1F3"
    )
    # With one more forward there it would have to wait for rank 1.
    rows[0] = rows[0].replace(" 0B1", " 0R1 0B1")
    assert late_rows(rows, Placement.linear(3), 4)[1].endswith(
        "1B0 1SEND_B0 1RECV_F3 1RECV_B1 1B1 1SEND_B1 1F3"
    )


def test_a_receive_never_stands_inside_a_pair() -> None:
    rows = ["0F0 (0F1;0B0)OVERLAP_F_B", "1F0 1B0"]
    assert late_rows(rows, Placement.linear(2), 2)[0] == (
        "0F0 0SEND_F0 0RECV_B0 (0F1;0B0)OVERLAP_F_B"
    )


def test_stages_that_share_a_rank_need_no_transfer() -> None:
    lowered = add_transfers(make("dualpipe-v", ranks=2, microbatches=4))
    texts = {cell for row in lowered.rows() for cell in row}
    assert "0SEND_F0" in texts
    assert not texts & {"1SEND_F0", "2RECV_F0", "2SEND_B0", "1RECV_B0"}
    single = make("1f1b", ranks=1, microbatches=4)
    assert add_transfers(single) == single


def test_both_copies_send_in_their_own_direction() -> None:
    lowered = add_transfers(make("dualpipe", ranks=4, microbatches=8))
    rows = [set(row) for row in lowered.rows()]
    assert "0SEND_F0" in rows[0]
    assert "1RECV_F0" in rows[1]
    assert "0SEND_F4" in rows[3]
    assert "1RECV_F4" in rows[2]


@each_sort_and("policy", RECEIVE_POLICIES)
@settings(max_examples=4)
@given(data=st.data())
def test_every_dependency_between_ranks_has_one_transfer_and_nothing_else_changes(
    entry: Entry, policy: str, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry, ranks=8, microbatches=16))
    lowered = add_transfers(schedule, policy=policy)
    compute = is_compute(lowered)
    assert lowered.actions[compute].tolist() == schedule.actions.tolist()
    expected = transfers_by_hand(schedule)
    found = [
        (unpack(int(code)), lowered.rank_of(position))
        for position, code in enumerate(lowered.actions)
        if not compute[position]
    ]
    assert sorted(found) == sorted([*expected, *expected.values()])
    assert (lowered.name, lowered.iterations) == (schedule.name, schedule.iterations)


@each_family_and("policy", RECEIVE_POLICIES)
@settings(max_examples=4)
@given(data=st.data())
def test_every_lowered_schedule_is_matched_and_cannot_deadlock(
    entry: Entry, policy: str, data: st.DataObject
) -> None:
    lowered = add_transfers(data.draw(made(entry, ranks=8, microbatches=24)), policy=policy)
    assert matched(lowered) == []
    compile_graph(lowered, "blocking")


@pytest.mark.slow
@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_receives_stand_as_early_and_as_late_as_the_policy_says(
    entry: Entry, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry, ranks=6, microbatches=12))
    unit = unit_simulation(schedule)
    when = {
        (action, rank): (begin, end)
        for (rank, action), begin, end in zip(
            [(rank, action) for rank, row in enumerate(schedule) for action in row],
            unit.start.tolist(),
            unit.end.tolist(),
            strict=True,
        )
    }

    def times(lowered: Schedule) -> dict[Action, tuple[float, float, float, float]]:
        """For each end of a transfer: start and end of the action before, of the one after."""
        result = {}
        for rank, row in enumerate(lowered):
            for index, action in enumerate(row):
                if action.kind not in TRANSFER_KINDS:
                    continue
                before = [a for a in row[:index] if a.kind in COMPUTE_KINDS]
                after = [a for a in row[index:] if a.kind in COMPUTE_KINDS]
                result[action] = (
                    *(when[before[-1], rank] if before else (-1.0, -1.0)),
                    *(when[after[0], rank] if after else (np.inf, np.inf)),
                )
        return result

    eager = times(add_transfers(schedule))
    late = times(add_transfers(schedule, policy="just-in-time"))
    for (send, _), (receive, _) in transfers_by_hand(schedule).items():
        _, produced, next_start, _ = eager[send]
        assert eager[receive][0] < produced <= eager[receive][2]
        assert late[send] == eager[send]
        assert late[receive][2] >= eager[receive][2]
        if late[receive] != eager[receive]:
            assert late[receive][1] <= next_start


@each_sort
@settings(max_examples=4)
@given(data=st.data())
def test_late_receives_cost_nothing_in_the_simulation_they_are_made_for(
    entry: Entry, data: st.DataObject
) -> None:
    schedule = data.draw(made(entry, ranks=8, microbatches=16))
    eager, late = (
        unit_simulation(add_transfers(schedule, policy=policy), "blocking").makespan
        for policy in ("eager", "just-in-time")
    )
    assert late <= eager


def test_lowering_follows_the_steps_of_several_iterations() -> None:
    lowered = add_transfers(make("1f1b", ranks=2, microbatches=1, iterations=2))
    assert [" ".join(row) for row in lowered.rows()] == [
        "0F0 0SEND_F0 0RECV_B0 0B0 0OPT0 0F1 0SEND_F1 0RECV_B1 0B1 0OPT1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1OPT0 1RECV_F1 1F1 1B1 1SEND_B1 1OPT1",
    ]


def test_results_that_nobody_needs_are_not_sent() -> None:
    schedule = Schedule.from_text([["0F0", "0F1"], ["1F1"]], Placement.linear(2), 2)
    assert add_transfers(schedule).rows() == [["0F0", "0F1", "0SEND_F1"], ["1RECV_F1", "1F1"]]


def test_lowering_twice_is_refused() -> None:
    lowered = add_transfers(make("1f1b", ranks=2, microbatches=2))
    with pytest.raises(ScheduleError, match="'1f1b' has transfers already: 0SEND_F0 on rank 0"):
        add_transfers(lowered)


def test_unknown_policy_is_refused_with_the_nearest() -> None:
    with pytest.raises(ParameterError, match="policy 'eagre' for receives; did you mean 'eager'"):
        add_transfers(make("1f1b", ranks=2, microbatches=2), policy="eagre")


def test_orders_that_cannot_run_are_refused_with_their_chain() -> None:
    stuck = Schedule.from_text([["0B0", "0F0"], ["1F0", "1B0"]], Placement.linear(2), 1)
    with pytest.raises(ScheduleError, match="deadlock") as caught:
        add_transfers(stuck)
    assert caught.value.chain


@each_policy
def test_compiled_kernels_equal_their_python_source(policy: str) -> None:
    results = []
    for compiled in (True, False):
        with run_by(compiled=compiled):
            results.append(
                [
                    add_transfers(make(name, ranks=4, microbatches=12), policy=policy)
                    for name in ("interleaved-1f1b", "zb-h1", "dualpipe", "1f1b-overlap")
                ]
            )
    assert results[0] == results[1]


def test_lowered_schedules_simulate_like_plain_ones() -> None:
    plain = make("interleaved-1f1b", ranks=4, microbatches=8, chunks=2)
    costs = Costs(F=1.1, B=2.3, p2p=0.7)
    assert db.simulate(add_transfers(plain), costs).makespan == simulate(plain, costs).makespan
