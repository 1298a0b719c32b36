"""``debubble schedules``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import debubble as db
from debubble.cli.schedules import describe, draw_example, example_case, explain, overview
from debubble.schedules.registry import find

Run = Callable[..., Any]
ENTRIES = db.schedules()


def test_the_table_has_one_line_per_schedule(run: Run) -> None:
    head, *lines = run("schedules", "--wide").out.splitlines()
    columns = "schedule chunks memory bubble what it is year placement needs source"
    assert head.split() == columns.split()
    lines = lines[: lines.index("")]
    assert [line.split()[0] for line in lines] == [entry.name for entry in ENTRIES]
    (line,) = [line for line in lines if line.startswith("dualpipe-v ")]
    assert "2025  V " in line
    assert "at least 2·ranks microbatches" in line
    (line,) = [line for line in lines if line.startswith("1f1b ")]
    # p microbatches; (p − 1) / (m + p − 1) of the time.
    assert line.split()[1:5] == ["1", "8", "17.95", "%"]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_table_fits_in_a_line(width: int) -> None:
    lines = overview(ENTRIES, width).splitlines()
    assert max(map(len, lines)) <= width
    names = [line.split()[0] for line in lines[1 : lines.index("")]]
    assert names == [entry.name for entry in ENTRIES]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_explanations_fit_in_a_line_without_markup(entry: Any) -> None:
    text = explain(entry, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert ":`" not in text


def test_a_formula_is_listed_once_with_its_symbols(run: Run) -> None:
    out = run("schedules", "dualpipe-v").out
    assert out.count("(3p)F + (2m − p − 2)·O + (2p − 1)I + W + 2B") == 1
    assert "bubble time  (p − 1)(O + B − 3W)" in out
    assert "O overlapped pair" in out


def test_json_has_everything(run: Run) -> None:
    data = {item["name"]: item for item in run("schedules", "--json").data}
    assert data.keys() == {entry.name for entry in ENTRIES}
    item = data["interleaved-1f1b"]
    assert item["aliases"] == ["interleaved", "vpp", "megatron-interleaved"]
    assert (item["year"], item["chunks"], item["default_chunks"]) == (2021, None, 2)
    assert item["options"] == [
        {"name": "group_size", "type": "int | None", "default": None},
        {"name": "short_last_group", "type": "bool", "default": False},
    ]
    assert item["placement"] == "loop"
    assert item["use"].startswith("whole backwards, links that bear")
    assert item["at_a_glance"]["peak_activation"] == 8 * (1 + 7 / 16)
    assert data["pipedream"]["weight_versions"] == [2] * 7 + [1]
    assert "makespan" in {form["quantity"] for form in item["closed_forms"]}
    assert run("schedules", "vpp", "--json").data == item == describe(find("vpp"))


def test_one_schedule_is_explained_with_formulas_and_figure(run: Run) -> None:
    out = run("schedules", "dapple").out
    assert out.startswith("1f1b: One forward, one backward (also pipedream-flush, dapple)\n")
    assert "At most p − r microbatches are in flight on rank r" in out
    assert "source     Fan et al., DAPPLE: A Pipelined Data Parallel Approach" in out
    assert "arXiv 2007.01045; PipeDream-Flush:" in " ".join(out.split())
    assert "makespan  (m + p − 1)(F + B)\n    exact (no latency)" in out
    assert "p ranks, m microbatches" in out
    assert "rank 3 │······F0B0--F1" in out


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_schedule_has_a_small_figure(entry: Any) -> None:
    case = example_case(entry)
    assert case is not None
    assert case.ranks <= 8
    assert draw_example(entry).startswith(f"{entry.name}: {case.ranks} ranks")


def test_unknown_names_are_refused(refused: Run) -> None:
    assert refused("schedules", "gpip").startswith("unknown schedule 'gpip'; did you mean 'gpipe'")
