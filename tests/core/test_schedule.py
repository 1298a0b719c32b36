from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

import debubble as db
from debubble import Action, Kind, Placement, Schedule
from debubble.core.schedule import SAVED
from debubble.interchange.schedule_json import from_json, to_json


def small() -> Schedule:
    return Schedule.from_text([["0F0", "0B0"], ["1F0", "1B0"]], Placement.linear(2), 1)


def test_is_immutable() -> None:
    schedule = small()
    with pytest.raises(FrozenInstanceError):
        schedule.name = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        schedule.actions[0] = 1


def test_programs_as_actions_and_as_text() -> None:
    schedule = small()
    assert list(schedule) == [
        (Action(0, Kind.F, 0), Action(0, Kind.B, 0)),
        (Action(1, Kind.F, 0), Action(1, Kind.B, 0)),
    ]
    assert schedule.rows() == [["0F0", "0B0"], ["1F0", "1B0"]]
    assert len(schedule) == 4
    assert [schedule.rank_of(position) for position in range(4)] == [0, 0, 1, 1]


def test_equality_is_by_order_not_by_name() -> None:
    same = Schedule.from_text(small().rows(), Placement.linear(2), 1, name="same")
    assert small() == same
    assert hash(small()) == hash(same)
    assert small() != Schedule.from_text([["0F0", "0B0"], ["1B0", "1F0"]], Placement.linear(2), 1)


def test_rows_read_back_for_every_family() -> None:
    for entry in db.schedules():
        schedule = db.make(entry.name, ranks=2, microbatches=8, iterations=2)
        back = Schedule.from_text(
            schedule.rows(), schedule.placement, 8, iterations=2, sync=schedule.sync,
            slices=schedule.slices, exchange=schedule.exchange, offload_to=schedule.offload_to,
            vocabulary=schedule.vocabulary,
        )  # fmt: skip
        assert back == schedule, entry.name


def test_bad_text_says_where() -> None:
    with pytest.raises(db.FormatError, match="rank 1, action 0: '1G0' is not an action"):
        Schedule.from_text([["0F0"], ["1G0"]], Placement.linear(2), 1)


@pytest.mark.parametrize(
    ("programs", "placement", "message"),
    [
        (3, Placement.linear(2), "programs is 3; give one list of actions per rank"),
        ([3], Placement.linear(2), "programs[0] is 3; give one list of actions per rank"),
        ([["0F0"], [4]], Placement.linear(2), "programs[1][0] is 4; give an action as text"),
        ([["0F0"]], 1, "placement is 1; give debubble.Placement.loop"),
    ],
)
def test_values_of_wrong_types_are_refused(programs, placement, message) -> None:
    with pytest.raises(db.ParameterError) as refused:
        Schedule.from_text(programs, placement, 1)
    assert str(refused.value).startswith(message)


def test_programs_must_match_the_ranks() -> None:
    with pytest.raises(db.ParameterError, match="1 programs for 2 ranks"):
        Schedule.from_programs("x", Placement.linear(2), 1, [np.array([0])])


@pytest.mark.parametrize("name", ["microbatches", "iterations", "slices", "weight_versions"])
def test_counts_are_positive(name: str) -> None:
    fields = {"microbatches": 1, name: 0}
    microbatches = fields.pop("microbatches")
    with pytest.raises(db.ParameterError, match=f"{name} is 0"):
        Schedule.from_text([["0F0"]], Placement.linear(1), microbatches, **fields)


def test_every_field_is_in_files_or_known_not_to_be() -> None:
    aside = {"placement", "actions", "offsets", "derived"}
    assert set(SAVED) == {spec.name for spec in fields(Schedule)} - aside


@pytest.mark.parametrize("name", SAVED)
def test_a_file_has_every_field_that_is_not_empty_and_no_wrong_value(name: str) -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    written = schedule.to_dict()
    assert (name in written) == (not SAVED[name].rare)
    with pytest.raises(db.FormatError, match=f"x.json: {name} is "):
        from_json(json.dumps(written | {name: -1}), "x.json")


@pytest.mark.parametrize(
    ("name", "value", "equal"),
    [
        ("name", "other", True), ("microbatches", 3, False), ("iterations", 2, False),
        ("slices", 2, False), ("exchange", True, False), ("sync", "local", False),
        ("recompute_after", "gradient", False), ("weight_versions", 2, True),
        ("explicit_reduction", True, True), ("options", {"a": 1}, True),
        ("offload_to", (1, 0), False), ("offload_to", (None, None), True),
        ("cut", (1.0,), True), ("vocabulary", 1, False),
    ],
)  # fmt: skip
def test_schedules_are_equal_where_what_they_run_is(name: str, value: object, equal: bool) -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    other = replace(schedule, **{name: value})  # type: ignore[arg-type]
    assert (schedule == other) == equal
    assert from_json(to_json(other), "x.json") == other


def test_other_programs_keep_every_field() -> None:
    schedule = db.make("bpipe", ranks=4, microbatches=8, iterations=2, sync="local")
    rows = [schedule.program(rank) for rank in range(schedule.ranks)]
    again = schedule.with_programs(rows)
    for spec in fields(Schedule):
        if spec.name not in ("actions", "offsets", "derived"):
            assert getattr(again, spec.name) == getattr(schedule, spec.name)
    assert again == schedule


@pytest.mark.parametrize("copy", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_read_only(copy: Callable[[Schedule], Schedule]) -> None:
    schedule = db.make("bpipe", ranks=4, microbatches=8)
    made = db.simulate(schedule).makespan
    again = copy(schedule)
    assert again == schedule
    assert not again.derived
    for array in (again.actions, again.offsets, again.homes):
        assert not array.flags.writeable
    assert db.simulate(again).makespan == made
    for spec in fields(Schedule):
        assert spec.name == "derived" or np.all(
            getattr(again, spec.name) == getattr(schedule, spec.name)
        )


@pytest.mark.parametrize("slices", [1, 3])
def test_homes_are_read_only(slices: int) -> None:
    """Kernels have one form for all schedules: none of their own for an array to write to."""
    schedule = replace(small(), slices=slices)
    assert not schedule.homes.flags.writeable
    assert schedule.homes.tolist() == [0, 1] * slices
