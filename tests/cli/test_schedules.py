"""``debubble schedules``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import debubble as db
from debubble.cli.schedules import describe, draw_example, example_case
from debubble.schedules.registry import find

Run = Callable[..., Any]
ENTRIES = db.schedules()


def test_the_table_has_one_line_per_schedule(run: Run) -> None:
    head, *lines = run("schedules").out.splitlines()
    columns = ["name", "year", "placement", "chunks", "memory", "bubble", "needs", "source"]
    assert head.split() == columns
    assert [line.split()[0] for line in lines] == [entry.name for entry in ENTRIES]
    (line,) = [line for line in lines if line.startswith("dualpipe-v ")]
    assert "2025  V " in line
    (line,) = [line for line in lines if line.startswith("1f1b ")]
    # p microbatches; (p − 1) / (m + p − 1) of the time.
    assert line.split()[6:10] == ["1", "8", "17.95", "%"]
    (line,) = [line for line in lines if line.startswith("dualpipe-v ")]
    assert "at least 2·ranks microbatches" in line


def test_terminals_get_lines_that_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from debubble.cli import schedules as command

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    command._print_table(ENTRIES)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "…" in lines[1] + lines[2]
    assert lines[-1] == "'debubble schedules NAME' says all about one, and draws it."


def test_json_has_everything(run: Run) -> None:
    data = {item["name"]: item for item in run("schedules", "--json").data}
    assert data.keys() == {entry.name for entry in ENTRIES}
    item = data["interleaved-1f1b"]
    assert item["aliases"] == ["interleaved", "vpp", "megatron-interleaved"]
    assert (item["year"], item["chunks"], item["default_chunks"]) == (2021, None, 2)
    assert item["options"] == [{"name": "group_size", "type": "int | None", "default": None}]
    assert item["placement"] == "loop"
    assert item["at_a_glance"]["peak_activation"] == 8 * (1 + 7 / 16)
    assert data["pipedream"]["weight_versions"] == [2] * 7 + [1]
    assert "makespan" in {form["quantity"] for form in item["closed_forms"]}
    assert run("schedules", "vpp", "--json").data == item == describe(find("vpp"))


def test_one_schedule_is_explained_with_formulas_and_figure(run: Run) -> None:
    out = run("schedules", "dapple").out
    assert out.startswith("1f1b: One forward, one backward (also pipedream-flush, dapple)\n")
    assert "At most p − r microbatches are in flight on rank r" in out
    assert "source     DAPPLE, arXiv 2007.01045" in out
    assert "makespan         (m + p − 1)(F + B)  (no latency)" in out
    assert "rank 3 │······F0B0--F1" in out


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_schedule_has_a_small_figure(entry: Any) -> None:
    case = example_case(entry)
    assert case is not None
    assert case.ranks <= 8
    assert draw_example(entry).startswith(f"{entry.name}: {case.ranks} ranks")


def test_unknown_names_are_refused(refused: Run) -> None:
    assert refused("schedules", "gpip").startswith("unknown schedule 'gpip'; did you mean 'gpipe'")
