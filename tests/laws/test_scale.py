"""Law of units: twice the times take twice as long, and a unit spelled otherwise is the same."""

from __future__ import annotations

import pytest

import debubble as db
from debubble.schedules.registry import schedules
from tests.laws.surfaces import Case, answered
from tests.small import smallest

COSTS = db.Costs(
    F=1.0, I=1.5, W=0.5, O=2.25, R=0.75, p2p=0.25, OPT=3, launch=0.125, unshard=0.5,
    reduce_grad=0.5, message=2, bandwidth=8, activation=1, kept_for_weight=0.5, host_bandwidth=4,
)  # fmt: skip


@pytest.mark.parametrize("entry", schedules(), ids=lambda entry: entry.name)
@pytest.mark.parametrize("mode", ["overlapped", "group"])
def test_twice_the_times_take_twice_as_long(entry: object, mode: str) -> None:
    made = smallest(entry, costs=COSTS)
    once, twice = (db.simulate(made, costs, mode) for costs in (COSTS, COSTS.scaled(2)))
    assert twice.makespan == 2 * once.makespan
    assert twice.bubble_ratio == once.bubble_ratio
    assert twice.peak_activation.tolist() == once.peak_activation.tolist()


@pytest.mark.parametrize("entry", schedules(), ids=lambda entry: entry.name)
def test_an_order_made_for_twice_the_times_is_the_same(entry: object) -> None:
    assert smallest(entry, costs=COSTS) == smallest(entry, costs=COSTS.scaled(2))


def costs_in(unit: str, activation: float, folder: object) -> str:
    path = folder / f"{unit}.yaml"
    path.write_text(
        "basis: rank\ntimes: {F: 1, I: 1, W: 1}\n"
        f"memory: {{activation: {activation}, unit: {unit}}}\n"
    )
    return str(path)


@pytest.mark.parametrize("limit", ["12GB", "12000MB", "12e9bytes"])
def test_a_limit_spelled_otherwise_is_the_same(limit: str, tmp_path: object) -> None:
    names = ["gpipe", "1f1b", "zb-v", "zb-h2"]
    rows = []
    for unit, activation in (("GB", 2.5), ("MB", 2500.0), ("bytes", 2.5e9)):
        words = ["--costs", costs_in(unit, activation, tmp_path), "--memory", limit]
        data = answered("compare", *names, "-p", "4", "-m", "8", *words, "--json").data
        rows.append([(row["schedule"], row["makespan"], row["fits"]) for row in data["rows"]])
    assert rows[0] == rows[1] == rows[2]
    assert {fits for _, _, fits in rows[0]} == {True, False}


def test_spellings_of_a_number_are_the_same() -> None:
    texts = ("F=1,B=2,p2p=0.5", "F=1.0,B=2e0,p2p=.5", "F=1/1/1/1,B=2/2/2/2,p2p=5e-1")
    answers = {
        answered("simulate", "1f1b", *Case("1f1b", {"times": text}).words(), "--json").data[
            "makespan"
        ]
        for text in texts
    }
    assert len(answers) == 1
