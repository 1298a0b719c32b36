"""Effect: what a schedule takes from costs is remembered, and said where other costs come."""

from __future__ import annotations

import math
import warnings
from itertools import permutations
from random import Random
from typing import Any

import pytest

import debubble as db
from debubble.schedules.registry import Entry
from tests.conftest import EXPLORES
from tests.small import RANKS, smallest

OWN = {"default": 1.0, 1: 1.7}
SETS: dict[str, db.Costs] = {
    "default": db.Costs(),
    "split": db.Costs(F=1, I=1.6, W=0.3, p2p=0.2),
    "long backward": db.Costs(F=1, B=2.5, launch=0.4),
    "stages": db.Costs(F=OWN, I=OWN, W=OWN),
    "attention": db.Costs(F=1, B=2, attention=0.6),
    "attention of stages": db.Costs(F=1, B=2, attention={"default": 0.2, 0: 0.9}),
    "links": db.Costs(message={"default": 2.0, 1: 3.0}, bandwidth=2),
    "memory": db.Costs(activation=OWN, kept_for_weight=0.4, recompute_kept=0.1),
    "weights": db.Costs(static=OWN),
    "frozen": db.Costs(frozen={"default": 0.0, 0: 1.0}),
    "head": db.Costs(head={"F": 2, "B": 4, "activation": 1}, embedding={"F": 0.5}),
    "slow host": db.Costs(host_bandwidth=0.2),
    "fast host": db.Costs(host_bandwidth=5),
    "torch": db.Costs(F=1, I=1.2, W=0.7, runtime="torch"),
    "other units": db.Costs(F=3, I=3, W=3),
}
"""Costs in which everything differs that an order may be computed from."""


def said(schedule: db.Schedule, costs: db.Costs) -> tuple[str, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return db.simulate(schedule, costs).notes


def same(one: db.Schedule, other: db.Schedule) -> bool:
    return one == other and one.slicing.shares == other.slicing.shares


def made(entry: Entry, costs: db.Costs, **more: Any) -> db.Schedule | None:
    microbatches = smallest(entry).microbatches
    try:
        return db.make(entry.name, ranks=RANKS, microbatches=microbatches, costs=costs, **more)
    except db.DebubbleError:
        return None


WAYS: list[dict[str, Any]] = [
    {},
    {"memory": 4.5},
    {"recompute": "full", "recompute_at": "bubbles", "memory": 12.0},
    {"offload": "full"},
]


def some_sets(entry: Entry, way: dict[str, Any]) -> list[str]:
    """Some sets of costs, others for each schedule, so that any two meet; all to explore.

    They are half of all where the order is made for costs alone, two in five elsewhere.
    """
    share = 1.0 if EXPLORES else 0.5 if entry.uses_costs and len(way) < 2 else 0.4
    return Random(f"{entry.name} {way}").sample(list(SETS), math.ceil(share * len(SETS)))


@pytest.mark.parametrize("entry", db.schedules(), ids=lambda entry: entry.name)
def test_other_costs_lead_to_the_same_schedule_or_to_a_note(entry: Entry) -> None:
    for way in WAYS:
        some = some_sets(entry, way)
        ways = {name: made(entry, SETS[name], **way) for name in some}
        for one, schedule in ways.items():
            if schedule is None:
                continue
            assert said(schedule, SETS[one]) == ()
            for other, there in ways.items():
                if there is None or same(schedule, there):
                    continue
                assert said(schedule, SETS[other]), (way, one, other)


def test_any_two_sets_of_costs_meet_in_every_way() -> None:
    for way in WAYS:
        met = {pair for entry in db.schedules() for pair in permutations(some_sets(entry, way), 2)}
        assert met == set(permutations(SETS, 2))


FIXED = [entry for entry in db.schedules() if not entry.uses_costs]


@pytest.mark.parametrize("entry", FIXED, ids=lambda entry: entry.name)
def test_nothing_is_noted_where_nothing_is_taken_from_costs(entry: Entry) -> None:
    schedule = made(entry, db.Costs())
    assert schedule is not None
    for name, costs in SETS.items():
        noted = said(schedule, costs)
        assert not noted or "attention" in name, name
        there = made(entry, costs)
        assert not noted or (there is not None and not same(schedule, there)), name
