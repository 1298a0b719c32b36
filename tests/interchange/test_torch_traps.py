"""Files that PyTorch takes and that then hang, fail or compute something else."""

from __future__ import annotations

from pathlib import Path

import pytest

import debubble as db
from debubble.core.errors import FormatError

TRAPS = Path(__file__).parent / "traps"

FOUND = {
    # name: (microbatches, code, rank, position, actions, part of the message)
    "pytorch-1f1b-listing": (
        4, "out-of-range", 3, 6, ("3F4",), "rank 3, action 6: 3F4 is out of range",
    ),
    "out-of-range": (2, "out-of-range", 1, 2, ("1F2",), "1F2 is out of range"),
    "duplicate": (None, "duplicate", 0, 4, ("0B1",), "0B1 runs again"),
    "full-backward-and-halves": (
        None, "mixed-backward", 1, 1, ("1B0", "1I0", "1W0"), "runs the full backward, and 1I0",
    ),
    "missing-send": (None, "transfer", 1, 2, ("1RECV_F1", "0SEND_F1"), "1RECV_F1 has no other end"),
    "swapped-recv-f": (
        None, "transfer", 1, 0, ("0SEND_F0", "0SEND_F1", "1RECV_F1", "1RECV_F0"),
        "the contents are swapped",
    ),
    "swapped-recv-b": (
        None, "transfer", 0, 4, ("1SEND_B0", "1SEND_B1", "0RECV_B1", "0RECV_B0"),
        "the contents are swapped",
    ),
    "moved-receive": (
        None, "deadlock", 0, None, ("0SEND_F1", "1RECV_F1", "1SEND_B0", "0RECV_B0"),
        "0RECV_B0 (rank 0) is queued behind 0SEND_F1 (rank 0)",
    ),
    "missing-reduce-grad": (
        None, "reduce-grad", 1, None, ("1REDUCE_GRAD0", "1B0"),
        "neither divided by the number of microbatches nor reduced",
    ),
    "no-reduce-grad": (
        None, "reduce-grad", 0, None, ("0REDUCE_GRAD0", "0B0"), "0REDUCE_GRAD0 is missing",
    ),
}  # fmt: skip

REFUSED = {
    "trailing-letters": "row 1, column 1: '0F0xyz' is not an action",
    "blank-line": "row 2 is blank; remove it, or write a comma",
    "input-without-microbatch": "row 1, column 2: '0I' is not an action",
    "weight-without-microbatch": "row 1, column 3: '0W' is not an action",
    "stage-on-two-ranks": "stage 0 has actions on rank 0 and on rank 1",
}


@pytest.mark.parametrize("name", FOUND)
def test_the_trap_is_found_and_explained(name: str) -> None:
    microbatches, code, rank, position, actions, message = FOUND[name]
    report = db.check(db.load(TRAPS / f"{name}.csv", microbatches=microbatches))
    (problem, *_) = (problem for problem in report.problems if problem.code == code)
    assert (problem.rank, problem.position, problem.actions) == (rank, position, actions)
    assert message in problem.message
    assert problem.fix
    if microbatches is None:
        assert {problem.code for problem in report.problems} == {code}


@pytest.mark.parametrize("name", REFUSED)
def test_the_trap_is_refused_with_its_place(name: str) -> None:
    path = TRAPS / f"{name}.csv"
    with pytest.raises(FormatError) as caught:
        db.load(path)
    assert str(caught.value).startswith(f"{path}: {REFUSED[name]}")


def test_receives_that_come_early_cost_time() -> None:
    report = db.check(db.load(TRAPS / "early-receives.csv"))
    assert report
    (warning,) = report.warnings
    assert (warning.code, warning.actions) == ("head-of-line", ("1RECV_F1", "1RECV_B0"))
    assert "make the schedule 1 (8.33 %) longer" in warning.message


def test_losses_out_of_order_are_a_warning() -> None:
    report = db.check(db.load(TRAPS / "losses-out-of-order.csv"))
    assert report
    (warning,) = report.warnings
    assert (warning.code, warning.rank, warning.position) == ("loss-order", 1, 1)
    assert "1F0 comes after 1F1" in warning.message


def test_every_file_has_its_test() -> None:
    names = {path.stem for path in TRAPS.glob("*.csv")}
    assert names == {*FOUND, *REFUSED, "early-receives", "losses-out-of-order"}
