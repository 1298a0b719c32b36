"""Law of what changes nothing: how a cost is spelled, and a cost that is what it is anyway."""

from __future__ import annotations

from typing import Any

import pytest

import debubble as db
from debubble.core.cost_fields import CostField
from tests.laws.costs import costs_with, fields_for, outputs, same_everywhere, small, two
from tests.strategies import ENTRIES

FAST = ("1f1b", "zb-v", "interleaved-1f1b", "dualpipe", "seq1f1b", "vocab-1")
NAMES = [
    pytest.param(entry.name, marks=() if entry.name in FAST else pytest.mark.slow)
    for entry in ENTRIES
]
each_name = pytest.mark.parametrize("name", NAMES)


def answer(name: str, costs: db.Costs) -> dict[str, Any]:
    return outputs(small(name, costs), costs)


@each_name
def test_a_list_of_one_number_is_that_number(name: str) -> None:
    tried = 0
    for spec in fields_for(name):
        value = two(spec)[0]
        if spec.shape == "part":
            continue
        whole = costs_with(spec, value)
        schedule = small(name, whole)
        wanted = outputs(schedule, whole)
        for spelled in same_everywhere(spec, value, schedule):
            assert answer(name, costs_with(spec, spelled)) == wanted, f"{spec.name}={spelled}"
            tried += 1
    assert tried


def nothing(spec: CostField, schedule: db.Schedule) -> Any:
    """The value of a cost that says what is so without it."""
    if spec.shape == "part":
        return {"F": 0.0, "B": 0.0, "activation": 0.0}
    usual = {"microbatch": 1.0, "B": 1.0 + 0.5, "R": 1.0, "activation": 1 / schedule.chunks}
    default = getattr(db.Costs(), spec.name)
    return usual.get(spec.name, default)


@each_name
def test_a_cost_of_nothing_is_no_cost(name: str) -> None:
    plain = db.Costs(F=1.0, I=1.0, W=0.5)
    schedule = small(name, plain)
    wanted = outputs(schedule, plain)
    for spec in fields_for(name):
        value = nothing(spec, schedule)
        given = db.Costs(**{"F": 1.0, "I": 1.0, "W": 0.5} | {spec.name: value})
        assert value is None or answer(name, given) == wanted, f"{spec.name}={value}"


@each_name
def test_times_one_is_the_same(name: str) -> None:
    for spec in fields_for(name):
        costs = costs_with(spec, two(spec)[1])
        assert answer(name, costs.scaled(1.0)) == answer(name, costs), spec.name
