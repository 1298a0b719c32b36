"""Effect: a cost that is said to change nothing does not, and every other one does somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import debubble as db
from debubble.analysis.unread_costs import NEEDS, unread_costs
from debubble.core.costs import COST_FIELDS, Costs
from debubble.core.embedding_and_head import PARTS
from debubble.lowering.chain import lower
from debubble.schedules.registry import find
from tests.conftest import EXPLORES
from tests.small import RANKS, smallest

SETS = {
    "halves": Costs(F=1, I=1.2, W=0.7, p2p=0.1),
    "whole": Costs(F=1, B=2.1, message=1.5, bandwidth=9, activation=1.5, kv=0.1),
    "all": Costs(
        F=1, I=1.2, W=0.7, B=2.3, R=0.9, O=2.8, FF=1.7, message=2, bandwidth=8, recompute_kept=0.1,
        attention=0.2, microbatch={"default": 1.0, 1: 1.4}, host_bandwidth=3, static=2,
    ),
    "none": Costs(host_bandwidth=5),
}  # fmt: skip
WAYS: list[dict[str, Any]] = [
    {},
    {"recompute": "full"},
    {"offload": "full"},
    {"iterations": 2},
    {"sharding": "ddp", "carry": [(0, 1)]},
    {"sharding": "fsdp"},
]
VALUES: dict[str, Any] = {
    **dict.fromkeys(COST_FIELDS, 0.37),
    "bandwidth": 2.5, "host_bandwidth": 2.5, "host_link_shared_by": 2,
    "microbatch": {"default": 1.0, 0: 1.3}, "O": 3.3, "FF": 1.9,
    **{part: {"F": 0.4, "B": 0.5, "activation": 0.2} for part in PARTS},
}  # fmt: skip
"""Another value of every cost."""


@cache
def schedule_of(name: str, way: int) -> db.Schedule | None:
    values = dict(WAYS[way])
    sizes = {"ranks": RANKS, "microbatches": smallest(find(name)).microbatches}
    sharding = values.pop("sharding", None)
    try:
        made = db.make(name, **sizes, costs=SETS["none"], **values)
        return made if sharding is None else lower(made, sharding=sharding)
    except db.ParameterError:
        return None


@cache
def usual_outcome(name: str, way: int, costs: str) -> np.ndarray[Any, Any]:
    """That of a schedule with a set of costs."""
    schedule = schedule_of(name, way)
    assert schedule is not None
    return outcome(schedule, SETS[costs])


def outcome(schedule: db.Schedule, costs: Costs) -> np.ndarray[Any, Any]:
    timeline = db.simulate(schedule, costs)
    spread = timeline.jitter("normal:5%", samples=2)
    return np.concatenate([timeline.node_end, timeline.peak_activation, spread.times])


def changed(name: str, way: int, costs: str, other: Costs) -> bool:
    """Whether a schedule has another outcome with other costs than those of a set."""
    schedule = schedule_of(name, way)
    assert schedule is not None
    one, two = usual_outcome(name, way, costs), outcome(schedule, other)
    return one.shape != two.shape or not np.array_equal(one, two)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [False, True] if EXPLORES else [False])
@pytest.mark.parametrize("way", range(len(WAYS)), ids=map(str, WAYS))
def test_what_is_said_to_change_nothing_changes_nothing(way: int, every: bool) -> None:
    wrong = []
    for entry in db.schedules()[0 if every else way :: 1 if every else 2 * len(WAYS)]:
        schedule = schedule_of(entry.name, way)
        if schedule is None:
            continue
        for name, costs in SETS.items():
            for cost in COST_FIELDS:
                other = replace(costs, **{cost: VALUES[cost]})
                unread = cost in dict(unread_costs(schedule, other))
                if unread and changed(entry.name, way, name, other):
                    wrong.append((entry.name, name, cost))
    assert wrong == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cost", COST_FIELDS)
def test_every_cost_changes_something_somewhere(cost: str) -> None:
    def cases() -> Iterator[bool]:
        for entry in db.schedules():
            for way in range(len(WAYS)):
                schedule = schedule_of(entry.name, way)
                for name, costs in SETS.items():
                    other = replace(costs, **{cost: VALUES[cost]})
                    if schedule is not None and cost not in dict(unread_costs(schedule, other)):
                        yield changed(entry.name, way, name, other)

    assert any(cases())


def test_needs_are_those_of_costs() -> None:
    assert set(NEEDS) <= set(COST_FIELDS)


HIDDEN = {"kept_for_weight", "host_bandwidth", "host_link_shared_by"}
"""Costs that count and may change nothing: of a peak, and of copies with time to spare."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["halves", "whole"])
def test_a_cost_that_counts_changes_something(name: str) -> None:
    for entry in db.schedules():
        schedule = schedule_of(entry.name, 0)
        assert schedule is not None
        for cost in set(COST_FIELDS) - HIDDEN:
            other = replace(SETS[name], **{cost: VALUES[cost]})
            if cost not in dict(unread_costs(schedule, other)):
                assert changed(entry.name, 0, name, other), (entry.name, cost)
