"""Pages of benchmarks say what their data files have."""

import csv
import json
from importlib import import_module
from pathlib import Path

import pytest

import debubble as db

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def test_the_frontier_is_that_of_the_measured_points() -> None:
    frontier = import_module("frontier")
    assert (PAGES / "frontier.md").read_text(encoding="utf-8") == frontier.document(
        list(frontier.load().values())
    )


def test_no_found_schedule_is_slower_than_a_published_one() -> None:
    lines = (ROOT / "benchmarks/frontier.jsonl").read_text(encoding="utf-8").splitlines()
    points = [json.loads(line) for line in lines]
    assert len(points) == 288
    for point in points:
        assert point["ours"] >= point["bound"] * (1 - 1e-9)
        assert point["published"] is None or point["ours"] <= point["published"] + 0.006


def test_the_page_of_real_runs_has_the_figures_of_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truth = import_module("truth")
    page = (PAGES / "truth.md").read_text(encoding="utf-8")
    measured_with = page.partition("; PyTorch ")[2].partition(".\n")[0]
    monkeypatch.setattr(truth.torch, "__version__", measured_with)
    assert page == truth.written(page, truth.load())


def test_the_table_of_real_runs_has_every_schedule() -> None:
    with (ROOT / "benchmarks/truth.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["error"]]
    assert {row["schedule"] for row in rows} == {entry.name for entry in db.schedules()}
    for row in rows:
        assert row["gradients"] == "equal"
        error = int(row["measured_ms"]) / int(row["predicted_ms"]) - 1
        assert float(row["error"]) == pytest.approx(error, abs=0.0015)
        assert abs(error) < 0.02
