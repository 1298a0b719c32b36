"""Law of truth: a closed form that calls itself exact is, and a bound is one.

Whatever the schedule, the lowering and the costs, those that differ by stage or rank included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.analysis.summary import summary
from debubble.core.cost_fields import CostField
from debubble.lowering.chain import LOWERINGS, lower
from debubble.schedules.registry import find
from tests.conftest import EXPLORES
from tests.laws.costs import FIELDS, costs_with, small, two
from tests.strategies import ENTRIES

FAST = ("gpipe", "zb-v", "seq1f1b", "pipeoffload-half")
NAMES = [
    pytest.param(entry.name, marks=() if entry.name in FAST else pytest.mark.slow)
    for entry in ENTRIES
]


EQUAL = {"F": 1.0, "I": 1.0, "W": 1.0, "R": 1.0, "p2p": 0.0}
"""Costs that some forms need."""


def lowerings() -> Iterator[dict[str, Any]]:
    """No lowering, every one alone, and every parameter of one."""
    yield {}
    rows = {row.name: row for row in LOWERINGS}
    for row in LOWERINGS:
        whole = rows.get(row.part_of, row)
        yield {each.name: each.type.read(each.flag, each.example) for each in (whole, row)}


def values(spec: CostField, schedule: db.Schedule) -> Iterator[Any]:
    """Values of a cost: one number, and numbers that differ."""
    low, high = two(spec)
    yield high
    if spec.shape in ("stage", "pair"):
        yield {"default": low, schedule.stages - 1: high}
    elif spec.shape == "rank":
        yield {"default": low, schedule.ranks - 1: high}
    elif spec.shape == "boundary":
        yield {"default": low, schedule.stages - 2: high}
    elif spec.shape == "link":
        ranks = range(schedule.ranks)
        yield [[low if a < b else high for b in ranks] for a in ranks]


def wrong(data: dict[str, Any]) -> Iterator[str]:
    """The closed forms of a summary that are not what they call themselves."""
    for form in data["closed_forms"]:
        value, found = np.asarray(form["value"]), np.asarray(form["simulated"])
        if found.ndim > value.ndim:
            found = found.max()
        near = np.abs(found - value) <= 1e-9 * np.maximum(np.abs(found), np.abs(value))
        holds = {
            "exact": near, "upper bound": near | (found <= value),
            "lower bound": near | (found >= value), "approximation": np.True_,
        }[form["accuracy"]]  # fmt: skip
        if not np.all(holds):
            yield f"{form['quantity']} {form['formula']} is {value}, {form['accuracy']}: {found}"


@pytest.mark.parametrize("equal", [False, True], ids=["different", "equal"])
@pytest.mark.parametrize("name", NAMES)
def test_forms_are_what_they_call_themselves(name: str, equal: bool) -> None:
    told = 0
    plain = small(name)
    base = EQUAL if equal else {}
    # A third of the costs for each schedule, and a third of the lowerings for each of these, so
    # that each pair meets many schedules; all to explore.
    ways = list(lowerings())
    for number, spec in enumerate(FIELDS if EXPLORES else FIELDS[len(name) % 3 :: 3]):
        some = ways if EXPLORES else [ways[0], *ways[1 + (number + len(name)) % 3 :: 3]]
        for value in values(spec, plain):
            costs = costs_with(spec, value, **base)
            made = small(name, costs)
            for lowering in some:
                try:
                    schedule = lower(made, costs=costs, **lowering)
                    data = summary(db.simulate(schedule, costs))
                except db.DebubbleError:
                    continue
                told += len(data["closed_forms"])
                case = f"{name} {lowering} {spec.name}={value}"
                assert not list(wrong(data)), f"{case}: {'; '.join(wrong(data))}"
    assert told or not equal or not find(name).forms
