"""Optimizer steps and weight versions."""

from __future__ import annotations

import pytest

import debubble as db
from debubble.analysis.problems import LISTED
from debubble.core.placement import Placement
from debubble.core.schedule import Schedule


def problems(row: str, iterations: int = 2, versions: int = 1, m: int = 1) -> list[tuple[str, str]]:
    schedule = Schedule.from_text(
        [row.split()], Placement.linear(1), m, iterations=iterations, weight_versions=versions
    )
    return [(problem.code, problem.actions[0]) for problem in db.check(schedule).problems]


def test_a_step_after_every_iteration_is_ok() -> None:
    assert problems("0F0 0B0 0OPT0 0F1 0B1 0OPT1") == []


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("0F0 0B0 0F1 0B1", ["0OPT0", "0OPT1"]),
        ("0F0 0B0 0OPT0 0F1 0B1", ["0OPT1"]),
        ("0F0 0B0 0OPT0 0F1 0B1 0OPT1 0OPT1", ["0OPT1"]),
        ("0F0 0B0 0OPT1 0F1 0B1 0OPT0", ["0OPT0"]),
        ("0F0 0B0 0OPT0 0F1 0B1 0OPT1 0OPT2", ["0OPT2"]),
        ("0F0 0B0 0OPT0 0F1 0B1 0OPT9", ["0OPT1", "0OPT9"]),
    ],
)
def test_steps_that_are_missing_repeated_or_out_of_order(row: str, found: list[str]) -> None:
    assert problems(row) == [("optimizer", text) for text in found]


def test_a_step_on_one_rank_only_is_missing_on_the_other() -> None:
    rows = [["0F0", "0B0", "0OPT0"], ["1F0", "1B0"]]
    report = db.check(Schedule.from_text(rows, Placement.linear(2), 1))
    (problem,) = report.problems
    assert (problem.code, problem.rank, problem.actions) == ("optimizer", 1, ("1OPT0",))


def test_a_backward_after_the_step_loses_its_gradient() -> None:
    assert problems("0F0 0OPT0 0B0", iterations=1) == [("optimizer", "0B0")]
    assert problems("0F0 0I0 0OPT0 0W0", iterations=1) == [("optimizer", "0W0")]


def test_a_weight_gradient_before_the_step_of_the_iteration_before_is_mixed_in() -> None:
    row = "0F0 0B0 0F1 0B1 0OPT0 0OPT1"
    assert ("optimizer", "0B1") in problems(row, versions=2)


def test_with_one_version_nothing_is_in_flight_across_a_step() -> None:
    row = "0F0 0F1 0B0 0OPT0 0B1 0OPT1"
    assert problems(row) == [("weight-versions", "0F1")]
    assert problems(row, versions=2) == []


def test_with_two_versions_one_step_may_fall_between_forward_and_backward() -> None:
    row = "0F0 0F1 0F2 0B0 0OPT0 0B1 0OPT1 0B2 0OPT2"
    assert problems(row, iterations=3, versions=2) == [("weight-versions", "0F2")]
    assert problems(row, iterations=3, versions=3) == []
    assert problems(row, iterations=3) == [("weight-versions", "0F1"), ("weight-versions", "0F2")]


def test_the_message_says_how_many_versions_it_takes() -> None:
    rows = [["0F0", "0F1", "0B0", "0OPT0", "0B1", "0OPT1"]]
    report = db.check(Schedule.from_text(rows, Placement.linear(1), 1, iterations=2))
    (problem,) = report.problems
    assert (problem.rank, problem.position) == (0, 1)
    assert "1 optimizer step ahead of its backward" in problem.message
    assert "takes 2 versions of the weights; 1 version is kept" in problem.message
    assert problem.fix.endswith("weight_versions=2")


def test_a_weight_gradient_may_be_delayed_up_to_its_own_step_only() -> None:
    assert problems("0F0 0F1 0I0 0I1 0W0 0W1 0OPT0", iterations=1, m=2) == []
    late = "0F0 0F1 0I0 0I1 0W0 0OPT0 0W1"
    assert problems(late, iterations=1, m=2) == [("optimizer", "0W1")]


def test_published_schedules_without_flush_need_the_versions_they_name() -> None:
    schedule = db.make("pipedream-2bw", ranks=4, microbatches=4, iterations=3)
    assert schedule.weight_versions == 2
    assert db.check(schedule)
    one = Schedule(
        "flushless",
        schedule.placement,
        schedule.microbatches,
        schedule.actions,
        schedule.offsets,
        iterations=3,
        sync="local",
    )
    report = db.check(one)
    assert {problem.code for problem in report.problems} == {"weight-versions"}
    # Rank r has 3 − r forwards of the next iteration behind it when it steps, twice.
    assert report.count == 2 * (3 + 2 + 1)


def test_a_microbatch_that_does_not_exist_belongs_to_no_iteration() -> None:
    rows = [["0F0", "0B0", "0OPT0", "0F1", "0B7", "0OPT1"]]
    report = db.check(Schedule.from_text(rows, Placement.linear(1), 1, iterations=2))
    assert [problem.code for problem in report.problems] == ["out-of-range", "missing"]


def test_steps_of_iterations_that_a_file_only_claims_are_counted() -> None:
    many = 10**12
    report = db.check(
        Schedule.from_text([["0F0", "0B0", "0OPT1"]], Placement.linear(1), 1, iterations=many)
    )
    steps = [problem.actions[0] for problem in report.problems if problem.code == "optimizer"]
    assert steps == [f"0OPT{k}" for k in range(LISTED + 1) if k != 1]
    assert report.more == {"optimizer": many - 1 - LISTED, "missing": many - 1 - LISTED}
