from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import debubble as db
from debubble import Action, Kind, Placement, Schedule


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


def test_programs_must_match_the_ranks() -> None:
    with pytest.raises(db.ParameterError, match="1 programs for 2 ranks"):
        Schedule.from_programs("x", Placement.linear(2), 1, [np.array([0])])


@pytest.mark.parametrize("name", ["microbatches", "iterations", "slices", "weight_versions"])
def test_counts_are_positive(name: str) -> None:
    fields = {"microbatches": 1, name: 0}
    microbatches = fields.pop("microbatches")
    with pytest.raises(db.ParameterError, match=f"{name} is 0"):
        Schedule.from_text([["0F0"]], Placement.linear(1), microbatches, **fields)
