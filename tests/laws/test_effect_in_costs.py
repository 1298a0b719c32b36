"""Law of effect: every cost changes an output of some schedule, under its own name."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import debubble as db
from debubble.core.actions import kinds_of
from debubble.core.cost_fields import CostField
from debubble.core.kinds import KINDS, Kind, Time
from tests.kinds import COSTS, schedule_with
from tests.laws.costs import FIELDS, costs_with, two, with_all_kinds

PAID = [spec for spec in KINDS if spec.cost]
LARGE = 1024.0
"""A time beside which all others are small."""

schedules = cache(with_all_kinds)


def changed(schedule: db.Schedule, one: db.Costs, other: db.Costs) -> bool:
    """Whether two costs differ in what a simulation measures."""
    first, second = (db.simulate(schedule, costs) for costs in (one, other))
    return first.makespan != second.makespan or not (
        np.array_equal(first.busy, second.busy)
        and np.array_equal(first.peak_activation, second.peak_activation)
    )


@pytest.mark.parametrize("spec", FIELDS, ids=lambda spec: spec.name)
def test_a_cost_changes_something_somewhere(spec: CostField) -> None:
    one, other = (costs_with(spec, value) for value in two(spec))
    assert any(changed(schedule, one, other) for schedule in schedules())


def large(cost: str) -> db.Costs:
    """Costs of which one is much larger than all others."""
    value = {"F": LARGE, "I": LARGE, "W": LARGE} if cost == "head" else LARGE
    return db.Costs(**{"F": 1, "I": 1, "W": 1, "B": 2, "R": 1} | {cost: value})


@pytest.mark.parametrize("spec", PAID, ids=lambda spec: spec.kind.name)
def test_a_kind_pays_under_its_own_name(spec: db.Kind) -> None:
    timeline = db.simulate(schedule_with(spec.kind), large(spec.cost))
    names = timeline.graph.cost_names()
    value = dict(zip(names, timeline.costs.tolist(), strict=True))
    paid = timeline.sensitivity()
    owner = "rank" if spec.per.of_rank else "stage"
    own = [name for name in paid if name.startswith(f"{spec.kind.name} of {owner} ")]
    assert own
    assert sum(value[name] * count for name, count in paid.items()) == timeline.makespan
    assert timeline.makespan - sum(value[name] * paid[name] for name in own) < LARGE or (
        spec.cost == "head"
    )


@pytest.mark.parametrize("spec", PAID, ids=lambda spec: spec.kind.name)
def test_a_kind_takes_the_time_of_its_cost(spec: db.Kind) -> None:
    schedule, costs = schedule_with(spec.kind), large(spec.cost)
    timeline = db.simulate(schedule, costs)
    took = timeline.duration[kinds_of(schedule.actions) == spec.kind]
    share = 1 / schedule.ranks if spec.cost == "head" else 1
    assert set(took.tolist()) <= {LARGE * share, 2 * LARGE * share}


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_only_kinds_that_need_no_time_take_none(kind: Kind) -> None:
    schedule = schedule_with(kind)
    took = db.simulate(schedule, COSTS).duration[kinds_of(schedule.actions) == kind]
    assert KINDS[kind].time is not Time.NONE or not took.any()
