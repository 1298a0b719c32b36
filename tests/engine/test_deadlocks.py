"""Orders that cannot run are refused with the chain of actions that shows why."""

from __future__ import annotations

import pytest

import debubble as db
from debubble import Placement, Schedule


def refused(rows: list[str], microbatches: int, placement: Placement | None = None) -> str:
    programs = [row.split() for row in rows]
    schedule = Schedule.from_text(programs, placement or Placement.linear(len(rows)), microbatches)
    with pytest.raises(db.ScheduleError) as caught:
        db.simulate(schedule)
    return str(caught.value)


def test_two_ranks_that_wait_for_each_other() -> None:
    text = refused(["0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1"], 2)
    assert text == (
        "a deadlock: these actions wait for each other: "
        "0B0 (rank 0) waits for 1B0 (rank 1), 1B0 (rank 1) runs after 1F1 (rank 1), "
        "1F1 (rank 1) waits for 0F1 (rank 0), 0F1 (rank 0) runs after 0B0 (rank 0); "
        "move 1B0 before 1F1 on rank 1, or move 0F1 before 0B0 on rank 0"
    )


def test_the_shortest_of_two_cycles_is_shown() -> None:
    # Ranks 0 and 1 deadlock over four actions; rank 2 alone runs a backward before its forward.
    rows = ["0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1", "2F0 2B1 2F1 2B0"]
    text = refused(rows, 2)
    assert "2B1 (rank 2) waits for 2F1 (rank 2)" in text
    assert "rank 0" not in text


def test_backward_before_forward_on_one_rank() -> None:
    text = refused(["0B0 0F0"], 1)
    assert text == (
        "a deadlock: 0B0 (rank 0) waits for 0F0 (rank 0), which comes after it; "
        "move 0F0 before 0B0 on rank 0"
    )


def test_a_missing_action_is_named() -> None:
    assert refused(["0F0 0B0", "1B0"], 1) == (
        "1B0 (rank 1) waits for 1F0, which no rank runs; add 1F0 on rank 1"
    )
    assert "0B0 (rank 0) waits for 1I0, which no rank runs" in refused(["0F0 0B0", "1F0"], 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["0F0 0B0", "1F0 7B0"], "rank 1, action 1: 7B0 is out of range; stages go to 1"),
        (["0F5 0B0", "1F0 1B0"], "rank 0, action 0: 0F5 is out of range.* microbatches to 0"),
        (["0F0 1F0", "1B0 0B0"], "1F0 is on the wrong rank; stage 1 lives on rank 1"),
        (["0F0 0F0 0B0", "1F0 1B0"], "0F0 runs twice"),
        (["0F0 0B0 0W0", "1F0 1B0"], "0W0 runs beside 0B0 of the same microbatch; remove"),
        (["(0F0;0I0)OVERLAP_F_B", "1F0"], "bad overlapped group"),
        (["(0B0;0F0)OVERLAP_F_B", "1F0"], "bad overlapped group"),
    ],
)
def test_broken_programs_are_named_by_rank_and_place(rows: list[str], message: str) -> None:
    import re

    assert re.search(message, refused(rows, 1))


def test_a_deadlock_among_many_actions_is_still_short() -> None:
    rows = db.make("1f1b", ranks=4, microbatches=600).rows()
    swap = rows[2].index("2F300"), rows[2].index("2B300")
    rows[2][swap[0]], rows[2][swap[1]] = rows[2][swap[1]], rows[2][swap[0]]
    text = refused([" ".join(row) for row in rows], 600)
    assert "2B300 (rank 2) waits for 2F300 (rank 2)" in text
    assert text.count("(rank") == 2


def test_an_optimizer_step_that_never_comes() -> None:
    rows = db.make("1f1b", ranks=2, microbatches=2, iterations=1).rows()
    schedule = Schedule.from_text([rows[0], rows[1][:-1]], Placement.linear(2), 2, iterations=1)
    with pytest.raises(db.ScheduleError, match="OPT"):
        db.simulate(schedule)
