"""Round trip: a file gives back the schedule that was written, and what was taken from costs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import debubble as db
from debubble.core.actions import kinds_of
from debubble.core.kind_relations import PASS_KINDS
from debubble.interchange.files import parse_schedule, text_of
from debubble.schedules.registry import Entry
from tests.small import RANKS, smallest

COSTS = db.Costs(
    F={"default": 1.0, 1: 1.5}, I=1.2, W=0.7, O={(0, 1): 2.5, "default": 2.9},
    p2p=[[0, 0.1, 0.2, 0.2], [0.1, 0, 0.1, 0.2], [0.2, 0.1, 0, 0.1], [0.2, 0.2, 0.1, 0]],
    attention=0.4, host_bandwidth=3, head={"F": 0.5, "activation": 0.2}, time_unit="ms",
)  # fmt: skip
OTHERS = db.Costs(F=1, B=3, attention=0.1, p2p=0.3, host_bandwidth=1, activation=2)

WAYS: list[dict[str, Any]] = [
    {},
    {"recompute": "full"},
    {"recompute": [1], "recompute_at": "bubbles"},
    {"offload": "full"},
    {"iterations": 2},
]
CSV = {
    "torch-csv": lambda schedule: parse_schedule(text_of(schedule, "torch-csv"), "x.csv"),
    "torch-csv-comms": lambda schedule: parse_schedule(
        text_of(schedule, "torch-csv-comms"), "x.csv"
    ),
}


def said(schedule: db.Schedule, costs: db.Costs) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [note.replace(" (changed)", "") for note in db.simulate(schedule, costs).notes]


def made(entry: Entry, **more: Any) -> db.Schedule:
    microbatches = smallest(entry).microbatches
    return db.make(entry.name, ranks=RANKS, microbatches=microbatches, costs=COSTS, **more)


@pytest.mark.parametrize("entry", db.schedules(), ids=lambda entry: entry.name)
def test_a_json_file_gives_back_all_of_a_schedule(entry: Entry) -> None:
    for way in WAYS:
        try:
            schedule = made(entry, **way)
        except db.ParameterError:
            continue
        again = parse_schedule(text_of(schedule, "json"), "x.json")
        assert again == schedule
        assert (again.made_for, again.from_costs) == (schedule.made_for, schedule.from_costs)
        assert again.slicing.shares == schedule.slicing.shares
        for costs in (COSTS, OTHERS):
            assert said(again, costs) == said(schedule, costs)
            assert db.simulate(again, costs).makespan == db.simulate(schedule, costs).makespan
        assert text_of(again, "json").replace(" (changed)", "") == text_of(schedule, "json")


@pytest.mark.parametrize("read", CSV.values(), ids=CSV)
@pytest.mark.parametrize("entry", db.schedules(), ids=lambda entry: entry.name)
def test_a_csv_gives_back_the_order_or_is_refused(
    entry: Entry, read: Callable[[db.Schedule], db.Schedule]
) -> None:
    schedule = made(entry)
    passes = set(kinds_of(schedule.actions).tolist()) <= set(PASS_KINDS)
    if schedule.placement.copies > 1 or schedule.slices > 1 or schedule.vocabulary or not passes:
        with pytest.raises(db.ParameterError, match="a JSON schedule file can say it"):
            read(schedule)
        return
    again = read(schedule)
    computing = [[c for c in row if "SEND" not in c and "RECV" not in c] for row in again.rows()]
    order = [[c for c in row if "REDUCE" not in c] for row in computing]
    assert order == schedule.rows()
    assert again.placement.table == schedule.placement.table
    assert (again.made_for, again.from_costs) == (None, ())
