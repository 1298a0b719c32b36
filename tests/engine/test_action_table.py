"""The table of actions: one row for every action, with the times of the timeline."""

from __future__ import annotations

import csv
import io

import pytest

import debubble as db
from debubble.core.actions import unpack


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("1f1b", {"iterations": 2}),
        ("dualpipe-v", {}),
        ("dualpipe", {}),
        ("seq1f1b", {"slices": 4}),
        ("zb-v", {"recompute": "full"}),
    ],
)
def test_every_action_has_a_row_with_its_times(name, more):
    costs = db.Costs(F=1, I=1.1, W=0.7, p2p=0.1, OPT=2)
    schedule = db.make(name, ranks=4, microbatches=8, costs=costs, **more)
    timeline = db.simulate(schedule, costs)
    table = timeline.actions()
    rows = list(table)
    assert len(rows) == len(table) == len(schedule)
    names = [unpack(code).text(schedule.slices) for code in schedule.actions.tolist()]
    assert [row.action for row in rows] == names
    assert [row.rank for row in rows] == [
        rank for rank, program in enumerate(schedule) for _ in program
    ]
    for row in rows:
        assert row.action.startswith(f"{row.stage}{row.kind}{row.microbatch}")
        assert row.end - row.start == pytest.approx(row.duration)
        assert 0 <= row.slice < schedule.slices
        assert row.microbatch < 8 * schedule.iterations
    assert max(row.end for row in rows) == timeline.makespan
    assert table[3] == rows[3]


def test_actions_of_a_whole_stage_have_no_slice():
    schedule = db.Schedule.from_text(
        [["0UNSHARD0", "0F0.0", "0F0.1", "0B0.1", "0B0.0", "0REDUCE_GRAD0", "0OPT0"]],
        db.Placement.loop(1, 1), 1, slices=2,
    )  # fmt: skip
    table = db.simulate(schedule).actions()
    assert [row.action for row in table] == schedule.rows()[0]


def test_a_table_has_no_digits_of_rounding():
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    table = db.simulate(schedule, db.Costs(F=0.1, B=0.2, p2p=0.05)).actions()
    read = list(csv.DictReader(io.StringIO(table.csv())))
    assert len(read) == len(schedule)
    assert all(len(row[name]) <= 4 for row in read for name in ("start", "end", "duration"))
    assert table.records()[9]["end"] == float(read[9]["end"])


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e99])
def test_the_size_of_the_unit_does_not_matter(scale):
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    table = db.simulate(schedule, db.Costs(F=scale, B=2 * scale)).actions()
    assert [row[7] / scale for row in table.rows()] == pytest.approx([1, 2, 6, 9, 2, 4, 5, 7])


def test_columns_are_arrays():
    table = db.simulate(db.make("1f1b", ranks=2, microbatches=2), db.Costs(F=1, B=2)).actions()
    assert list(table.columns) == [
        "rank", "action", "stage", "kind", "microbatch", "slice", "start", "end", "duration",
    ]  # fmt: skip
    assert table.duration[table.kind == "B"].sum() == 8
