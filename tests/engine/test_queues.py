"""Queued transfers against a simulator that runs queue heads one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import debubble as db
from debubble import Costs, Schedule, ScheduleError, make, simulate
from debubble.lowering.transfers import add_transfers
from debubble.schedules.registry import Entry
from tests.pairs import each_family_and
from tests.strategies import made

MODES = ["pair", "group", "directed"]
each_mode = pytest.mark.parametrize("mode", MODES)


@each_family_and("mode", MODES)
@settings(max_examples=4)
@given(data=st.data(), policy=st.sampled_from(["eager", "queued"]))
def test_transfers_in_one_order_never_deadlock(
    entry: Entry, mode: str, data: st.DataObject, policy: str
) -> None:
    schedule = data.draw(made(entry, ranks=8, microbatches=16))
    queued = simulate(add_transfers(schedule, policy=policy), Costs(p2p=0.5), mode)
    assert queued.makespan >= simulate(schedule, Costs(p2p=0.5)).makespan


def test_deadlocks_of_thousands_of_transfers_are_explained() -> None:
    lowered = add_transfers(make("1f1b", ranks=4, microbatches=300), policy="queued")
    rows = lowered.rows()
    here = rows[2].index("2RECV_F57")
    rows[2][here : here + 2] = "2SEND_B55", "2RECV_F57"
    stuck = Schedule.from_text(rows, lowered.placement, 300)
    for mode in ("pair", "group"):
        with pytest.raises(ScheduleError) as caught:
            simulate(stuck, p2p_mode=mode)
        assert caught.value.chain == (
            "1SEND_F57 (rank 1)", "2RECV_F57 (rank 2)", "2SEND_B55 (rank 2)", "1RECV_B55 (rank 1)",
        )  # fmt: skip


def test_a_schedule_without_transfers_is_given_some() -> None:
    schedule = make("1f1b", ranks=4, microbatches=8)
    for mode in ("pair", "group"):
        lowered = add_transfers(schedule, policy="queued")
        costs = Costs(F=1, B=2, p2p=0.5)
        assert simulate(schedule, costs, mode).makespan == simulate(lowered, costs, mode).makespan
        assert len(simulate(schedule, costs, mode).end) == len(schedule)


def test_the_cycle_of_a_deadlock_names_both_ends_of_transfers() -> None:
    # Megatron's groups are posted at once; one by one each rank waits for the other to receive.
    groups = add_transfers(make("1f1b", ranks=2, microbatches=2), policy="just-in-time")
    assert db.check(groups, p2p_mode="blocking")
    (problem,) = db.check(groups).problems
    assert problem.code == "deadlock"
    assert "queued between each two ranks, as by NCCL (pair)" in problem.message
    assert set(problem.actions) == {"0SEND_F1", "1RECV_F1", "1SEND_B0", "0RECV_B0"}
    assert "1RECV_F1 (rank 1) is queued behind 1SEND_B0 (rank 1)" in problem.message
    assert "move 1RECV_F1 before 1SEND_B0 on rank 1" in problem.fix
    assert "move 0RECV_B0 before 0SEND_F1 on rank 0" in problem.fix


def test_what_only_one_queue_for_all_peers_stops_is_said() -> None:
    # Three ranks in a ring: each sends to the next before it receives from the one before.
    placement = db.Placement.explicit([0, 1, 2, 0, 1, 2])
    rows = [
        "0F0 0SEND_F0 3RECV_F0 3F0 3SEND_F0",
        "1RECV_F0 1F0 1SEND_F0 4RECV_F0 4F0 4SEND_F0",
        "2RECV_F0 2F0 2SEND_F0 5RECV_F0 5F0",
    ]
    good = Schedule.from_text([row.split() for row in rows], placement, 1)
    for mode in ("pair", "group"):
        assert simulate(good, Costs(F=1), mode).makespan == 6
    rows[0] = "0F0 3RECV_F0 0SEND_F0 3F0 3SEND_F0"
    crossed = Schedule.from_text([row.split() for row in rows], placement, 1)
    assert simulate(crossed, Costs(F=1), "pair").makespan == 6
    with pytest.raises(ScheduleError, match=r"0SEND_F0 \(rank 0\) is queued behind 3RECV_F0"):
        simulate(crossed, p2p_mode="group")


def test_a_wait_behind_another_transfer_is_a_warning_with_its_cost() -> None:
    # Rank 1 asks for a gradient that rank 2 has at 5 before it asks for what rank 0 has at 2.
    rows = [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1RECV_F1 1F1 1SEND_F1 1B0 1SEND_B0 1RECV_B1 1B1 1SEND_B1",
        "2RECV_F0 2F0 2B0 2SEND_B0 2RECV_F1 2F1 2B1 2SEND_B1",
    ]
    schedule = Schedule.from_text([row.split() for row in rows], db.Placement.linear(3), 2)
    assert [simulate(schedule, p2p_mode=mode).makespan for mode in ("overlapped", "group")] == [
        12, 13,
    ]  # fmt: skip
    report = db.check(schedule)
    assert report
    (warning,) = report.warnings
    assert (warning.code, warning.rank, warning.position) == ("head-of-line", 1, 4)
    assert warning.actions == ("1RECV_F1", "1RECV_B0")
    assert warning.message == (
        "rank 1, action 4: 1RECV_F1 could start at 2 but is queued behind 1RECV_B0 (action 3), "
        "whose data is sent at 5; with one queue per rank such waits make the schedule 1 (8.33 %) "
        "longer"
    )
    assert str(report).endswith(f"\nwarning: {warning}")
    assert report.to_dict()["warnings"] == [warning.to_dict()]
    assert not db.check(schedule, p2p_mode="pair").warnings
    assert not db.check(schedule, p2p_mode="overlapped").warnings
