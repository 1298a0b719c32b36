"""Checks of schedules with explicit sends and receives."""

from __future__ import annotations

import pytest

import debubble as db
from debubble.lowering.transfers import add_transfers


def changed(rank: int, cells: list[str]) -> db.Schedule:
    """Lowered GPipe with other actions on one rank."""
    lowered = add_transfers(db.make("gpipe", ranks=2, microbatches=2))
    rows = lowered.rows()
    rows[rank] = cells
    return db.Schedule.from_text(rows, lowered.placement, 2)


@pytest.mark.slow
def test_lowered_schedules_are_fine() -> None:
    for entry in db.schedules():
        lowered = add_transfers(db.make(entry.name, ranks=4, microbatches=12))
        assert db.check(lowered).ok, entry.name


def test_receives_that_swap_what_they_carry_are_found() -> None:
    # Both are there before they are needed: nothing waits, and the contents are swapped.
    order = "1RECV_F1 1RECV_F0 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1"
    report = db.check(changed(1, order.split()))
    assert [problem.code for problem in report.problems] == ["transfer"]
    assert "the contents are swapped" in str(report)
    assert set(report.problems[0].actions) == {"0SEND_F0", "0SEND_F1", "1RECV_F1", "1RECV_F0"}


def test_a_send_without_its_receive_is_found() -> None:
    order = "1RECV_F0 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1"
    report = db.check(changed(1, order.split()))
    assert {problem.code for problem in report.problems} == {"transfer"}
    assert "0SEND_F1" in str(report)
