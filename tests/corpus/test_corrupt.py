"""Corrupt schedules, each with what is wrong with it: see ``damage.py`` for where they are from."""

from __future__ import annotations

import json
from typing import Any

import pytest

import debubble as db
from tests.corpus.damage import FAMILIES, FILE, order_of
from tests.corpus.judge import causes

CASES: list[dict[str, Any]] = [
    json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()
]


def schedule(case: dict[str, Any]) -> db.Schedule:
    return db.Schedule.from_text(
        [row.split() for row in case["rows"]],
        db.Placement(tuple(map(tuple, case["stages"]))),
        case["microbatches"],
        slices=case.get("slices", 1),
        iterations=case.get("iterations", 1),
    )


def test_there_are_many_of_every_cause() -> None:
    assert len(CASES) >= 300
    assert len({json.dumps(case) for case in CASES}) == len(CASES)
    found = {cause for case in CASES for cause in case["causes"]}
    assert found == {
        "missing", "duplicate", "out-of-range", "wrong-rank", "order", "bad-pair", "deadlock",
        "mixed-backward", "optimizer", "weight-versions", "reduce-grad", "unshard", "transfer",
        "memory",
    }  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_is_wrong_before_the_damage(name: str) -> None:
    made = FAMILIES[name]()
    assert causes(order_of(made)) == set()
    assert db.check(made).ok


def said_of(case: dict[str, Any]) -> str:
    """The report of a corrupt schedule where that is not what is wrong; else nothing."""
    report = db.check(
        schedule(case), p2p_mode=case.get("mode"), memory=case.get("memory"),
    )  # fmt: skip
    said = {
        word
        for one in report.problems
        for word in (*one.actions, *one.message.split(), *one.fix.split())
    }
    named = not case["names"] or said & set(case["names"])
    right = {problem.code for problem in report.problems} == set(case["causes"])
    return "" if right and named else str(report)


@pytest.mark.slow
@pytest.mark.parametrize("cause", sorted({cause for case in CASES for cause in case["causes"]}))
def test_each_gets_its_cause(cause: str) -> None:
    cases = [case for case in CASES if cause == min(case["causes"])]
    reports = {case["name"]: said_of(case) for case in cases}
    assert {name: report for name, report in reports.items() if report} == {}
