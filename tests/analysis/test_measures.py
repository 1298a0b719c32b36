"""A measure is one entry of a list: text, JSON, words and the page have it without another edit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import debubble as db
from debubble.analysis.layout import html_table
from debubble.analysis.measures import MEASURES, Measure
from debubble.analysis.summary import report, summary
from debubble.playground.state import PageState, Wanted
from debubble.playground.work import simulate

QUARTER = Measure(
    "quarter", lambda timeline: timeline.makespan / 4, "a quarter of the makespan", "time",
    compared=True, head="a|quarter", reported=True,
)  # fmt: skip


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    before = MEASURES[:]
    MEASURES.append(QUARTER)
    yield
    MEASURES[:] = before


def test_one_simulation_says_it() -> None:
    timeline = db.simulate(db.make("1f1b", ranks=4, microbatches=8))
    data = summary(timeline)
    assert (data["makespan"], data["quarter"]) == (33.0, 8.25)
    assert data["conventions"]["quarter"] == "a quarter of the makespan"
    [line] = [line for line in report(timeline).splitlines() if line.startswith("quarter")]
    assert line.split(maxsplit=2) == ["quarter", "8.25", "a quarter of the makespan"]


def test_a_comparison_has_a_column_of_it() -> None:
    result = db.compare(["gpipe", "1f1b"], ranks=4, microbatches=8)
    assert [row.quarter for row in result.rows] == [8.25, 8.25]
    data = result.to_dict()
    assert [row["quarter"] for row in data["rows"]] == [8.25, 8.25]
    assert data["conventions"]["quarter"] == "a quarter of the makespan"
    assert "8.25" in str(result)
    assert '<th scope="col">a quarter</th>' in html_table(result.columns())


def test_the_playground_shows_it() -> None:
    table = simulate(PageState(schedules=[Wanted(name="1f1b")]))["table"]
    [column] = [column for column in table["columns"] if column["title"] == "a quarter"]
    assert len(column["cells"]) == len(table["rows"]) == 1


def test_a_row_names_what_it_has() -> None:
    [row] = db.compare(["1f1b"], ranks=2, microbatches=2).rows
    with pytest.raises(AttributeError, match="a row has no 'span'; it has makespan, "):
        _ = row.span


def test_the_playground_has_rows_that_cannot_be_held_against_each_other() -> None:
    wanted = [Wanted(name="1f1b"), Wanted(name="zb-v")]
    state = PageState(schedules=wanted, costs={"basis": "action", "F": 1.0})  # type: ignore[arg-type]
    columns = {column["title"]: column["cells"] for column in simulate(state)["table"]["columns"]}
    assert columns["time / best"] == ("–", "–")
