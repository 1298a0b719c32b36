from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from debubble import Placement, Schedule, ScheduleError, make
from debubble.engine.explain.action_faults import matched
from debubble.engine.graph import compile_graph
from debubble.lowering.transfers import add_transfers
from tests.strategies import ENTRIES, made

Rows = list[list[str]]


def lowered_rows() -> Rows:
    """1F1B on three ranks; rank 1 runs 1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 1RECV_B0 …."""
    schedule = make("1f1b", ranks=3, microbatches=3)
    return add_transfers(schedule, policy="just-in-time").rows()


def build(rows: Rows) -> Schedule:
    return Schedule.from_text(rows, Placement.linear(len(rows)), 3)


def swap(row: list[str], a: str, b: str) -> None:
    i, j = row.index(a), row.index(b)
    row[i], row[j] = row[j], row[i]


def test_dropped_send_is_named_with_what_to_add() -> None:
    rows = lowered_rows()
    rows[0].remove("0SEND_F1")
    (problem,) = matched(build(rows))
    assert str(problem) == "rank 1, action 3: 1RECV_F1 has no other end; add 0SEND_F1 on rank 0"
    assert problem.chain == ("1RECV_F1", "0SEND_F1")
    with pytest.raises(ScheduleError, match="1RECV_F1 has no other end; add 0SEND_F1 on rank 0"):
        compile_graph(build(rows), "blocking")


def test_dropped_receive_is_named_with_what_to_add() -> None:
    rows = lowered_rows()
    rows[0].remove("0RECV_B2")
    (problem,) = matched(build(rows))
    assert problem.chain == ("1SEND_B2", "0RECV_B2")
    with pytest.raises(ScheduleError, match=r"0B2 \(rank 0\) waits for 0RECV_B2, which no rank"):
        compile_graph(build(rows), "blocking")


def test_dropped_transfer_is_found_by_its_consumer() -> None:
    rows = lowered_rows()
    rows[0].remove("0SEND_F1")
    rows[1].remove("1RECV_F1")
    assert matched(build(rows)) == []
    with pytest.raises(ScheduleError, match=r"1F1 \(rank 1\) waits for 1RECV_F1, which no rank"):
        compile_graph(build(rows), "blocking")


def test_swapped_receives_are_named_in_both_orders() -> None:
    rows = lowered_rows()
    swap(rows[2], "2RECV_F1", "2RECV_F2")
    (problem,) = matched(build(rows))
    assert problem.chain == ("1SEND_F1", "1SEND_F2", "2RECV_F2", "2RECV_F1")
    assert str(problem).startswith(
        "rank 1 sends 1SEND_F1 before 1SEND_F2, rank 2 receives 2RECV_F2 before 2RECV_F1"
    )
    with pytest.raises(ScheduleError):
        compile_graph(build(rows), "blocking")


def test_receives_swapped_within_one_group_deadlock_nothing_but_are_refused() -> None:
    rows = [["0F0", "0F1", "0SEND_F0", "0SEND_F1"], ["1RECV_F1", "1RECV_F0", "1F0", "1F1"]]
    swapped = Schedule.from_text(rows, Placement.linear(2), 2)
    (problem,) = matched(swapped)
    assert problem.chain == ("0SEND_F0", "0SEND_F1", "1RECV_F1", "1RECV_F0")
    with pytest.raises(ScheduleError, match="rank 0 sends 0SEND_F0 before 0SEND_F1, rank 1 rec"):
        compile_graph(swapped, "blocking")


def test_repeated_receive_is_named() -> None:
    rows = lowered_rows()
    rows[1].insert(3, "1RECV_F0")
    (problem,) = matched(build(rows))
    assert str(problem) == "rank 1, action 3: 1RECV_F0 runs twice; remove one"
    with pytest.raises(ScheduleError, match="rank 1, action 3: 1RECV_F0 runs twice; remove one"):
        compile_graph(build(rows), "blocking")


@pytest.mark.parametrize(
    ("rank", "cell", "reason"),
    [
        (1, "2SEND_B0", "is on the wrong rank; stage 2 lives on rank 2"),
        (2, "2SEND_F0", "has no other end: stage 2 is the last; remove it"),
        (0, "0RECV_F0", "has no other end: stage 0 is the first; remove it"),
        (0, "0SEND_F9", "is out of range; stages go to 2, microbatches to 2"),
        (0, "7SEND_F0", "is out of range; stages go to 2, microbatches to 2"),
    ],
)
def test_transfers_that_belong_elsewhere_are_named(rank: int, cell: str, reason: str) -> None:
    rows = lowered_rows()
    rows[rank].insert(1, cell)
    (problem,) = matched(build(rows))
    assert str(problem) == f"rank {rank}, action 1: {cell} {reason}"
    assert problem.chain == (cell,)
    with pytest.raises(ScheduleError, match=f"rank {rank}, action 1: {cell}"):
        compile_graph(build(rows), "blocking")


def test_transfers_within_a_rank_are_named() -> None:
    schedule = Schedule.from_text([["0F0", "0SEND_F0", "1RECV_F0", "1F0"]], Placement.v(1), 1)
    assert [problem.chain for problem in matched(schedule)] == [("0SEND_F0",), ("1RECV_F0",)]
    assert "stages 0 and 1 both live on rank 0; remove it" in str(matched(schedule)[0])
    with pytest.raises(ScheduleError, match="stages 0 and 1 both live on rank 0; remove it"):
        compile_graph(schedule, "blocking")


def test_early_receive_deadlocks_with_the_shortest_chain() -> None:
    rows = lowered_rows()
    rows[0].remove("0RECV_B0")
    rows[0].insert(0, "0RECV_B0")
    assert matched(build(rows)) == []
    with pytest.raises(ScheduleError) as caught:
        compile_graph(build(rows), "blocking")
    assert caught.value.chain == (
        "0RECV_B0 (rank 0)",
        "1SEND_B0 (rank 1)",
        "1RECV_F0 (rank 1)",
        "0SEND_F0 (rank 0)",
    )
    assert str(caught.value) == (
        "a deadlock: these actions wait for each other: 0RECV_B0 (rank 0) waits for 1SEND_B0 "
        "(rank 1), 1SEND_B0 (rank 1) runs after 1RECV_F0 (rank 1), 1RECV_F0 (rank 1) waits for "
        "0SEND_F0 (rank 0), 0SEND_F0 (rank 0) runs after 0RECV_B0 (rank 0); move 1SEND_B0 before "
        "1RECV_F0 on rank 1, or move 0SEND_F0 before 0RECV_B0 on rank 0"
    )


def test_sends_that_cross_deadlock_unless_they_are_fused_with_the_receives() -> None:
    placement = Placement.explicit([0, 1, 0, 1])
    apart = [
        "0F0 0SEND_F0 0F1 0SEND_F1 0F2 2RECV_F0 2F0",
        "1RECV_F0 1F0 1SEND_F0 1R0 1RECV_F1 1F1",
    ]
    fused = [
        "0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 0F2 2F0",
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1R0 1F1",
    ]
    compile_graph(Schedule.from_text([row.split() for row in fused], placement, 3), "blocking")
    with pytest.raises(ScheduleError) as caught:
        compile_graph(Schedule.from_text([row.split() for row in apart], placement, 3), "blocking")
    assert caught.value.chain == (
        "0SEND_F1 (rank 0)",
        "1RECV_F1 (rank 1)",
        "1SEND_F0 (rank 1)",
        "2RECV_F0 (rank 0)",
    )


def test_missing_optimizer_step_is_named() -> None:
    rows = [["0F0", "0SEND_F0", "0RECV_B0", "0B0", "0OPT0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]
    with pytest.raises(ScheduleError, match=r"0OPT0 \(rank 0\) waits for 1OPT0, which no rank"):
        compile_graph(Schedule.from_text(rows, Placement.linear(2), 1), "blocking")


def test_optimizer_step_after_another_rank_is_done_is_named() -> None:
    rows = add_transfers(make("1f1b", ranks=2, microbatches=1)).rows()
    schedule = Schedule.from_text(
        [[*rows[0], "0OPT0", "0OPT1"], [*rows[1], "1OPT0"]], Placement.linear(2), 1, iterations=2
    )
    with pytest.raises(ScheduleError, match=r"0OPT1 \(rank 0\) waits for 1OPT1, which no rank"):
        compile_graph(schedule, "blocking")


def test_transfer_across_an_optimizer_step_deadlocks() -> None:
    rows = [
        ["0F0", "0SEND_F0", "0OPT0", "0RECV_B0", "0B0"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1OPT0"],
    ]
    with pytest.raises(ScheduleError) as caught:
        compile_graph(Schedule.from_text(rows, Placement.linear(2), 1), "blocking")
    assert caught.value.chain == (
        "0OPT0 (rank 0)",
        "1OPT0 (rank 1)",
        "1SEND_B0 (rank 1)",
        "0RECV_B0 (rank 0)",
    )


def test_problems_are_listed_up_to_the_limit() -> None:
    rows = add_transfers(make("1f1b", ranks=2, microbatches=9)).rows()
    rows[0] = [cell for cell in rows[0] if "SEND" not in cell]
    schedule = Schedule.from_text(rows, Placement.linear(2), 9)
    assert len(matched(schedule)) == 9
    assert len(matched(schedule, limit=4)) == 4


def test_schedules_without_transfers_have_no_problems() -> None:
    schedule = make("zb-h1", ranks=4, microbatches=8)
    assert matched(schedule) == []
    compile_graph(schedule, "blocking")


@settings(max_examples=40)
@given(data=st.data())
def test_every_dropped_or_repeated_transfer_is_found_and_named(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(ENTRIES))
    schedule = data.draw(made(entry, ranks=6, microbatches=8))
    policy = data.draw(st.sampled_from(["eager", "just-in-time"]))
    lowered = add_transfers(schedule, policy=policy)
    rows = lowered.rows()
    spots = [
        (rank, index)
        for rank, row in enumerate(rows)
        for index, cell in enumerate(row)
        if re.search("SEND|RECV", cell)
    ]
    assume(spots)
    rank, index = data.draw(st.sampled_from(spots))
    cell = rows[rank][index]
    dropped = data.draw(st.booleans())
    if dropped:
        del rows[rank][index]
    else:
        rows[rank].insert(data.draw(st.integers(0, len(rows[rank]))), cell)
    mutant = Schedule.from_text(
        rows,
        schedule.placement,
        schedule.microbatches,
        iterations=schedule.iterations,
        slices=schedule.slices,
        sync=schedule.sync,
    )
    problems = matched(mutant)
    assert cell in problems[0].chain
    assert ("has no other end" if dropped else "runs twice") in str(problems[0])
    with pytest.raises(ScheduleError):
        compile_graph(mutant, "blocking")


@settings(max_examples=40)
@given(data=st.data())
def test_every_pair_of_swapped_receives_is_found_and_named(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(ENTRIES))
    schedule = data.draw(made(entry, ranks=6, microbatches=8))
    rows = add_transfers(schedule).rows()
    rank = data.draw(st.integers(0, len(rows) - 1))
    receives = [index for index, cell in enumerate(rows[rank]) if re.match(r"\d+RECV_F", cell)]
    same = [
        (i, j)
        for i, j in pairwise(receives)
        if rows[rank][i].split("RECV")[0] == rows[rank][j].split("RECV")[0]
    ]
    assume(same and schedule.placement.copies == 1)
    i, j = data.draw(st.sampled_from(same))
    rows[rank][i], rows[rank][j] = rows[rank][j], rows[rank][i]
    mutant = Schedule.from_text(
        rows,
        schedule.placement,
        schedule.microbatches,
        iterations=schedule.iterations,
        slices=schedule.slices,
        sync=schedule.sync,
    )
    problems = matched(mutant)
    assert problems
    named = {name for problem in problems for name in problem.chain}
    assert {rows[rank][i], rows[rank][j]} & named
    with pytest.raises(ScheduleError):
        compile_graph(mutant, "blocking")
