"""Results as tables: CSV, Parquet, and columns."""

from __future__ import annotations

import builtins
import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.sweeps import Results, run, spec_of


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    path = tmp_path_factory.mktemp("sweep") / "x.sqlite"
    data = {
        "command": "compare",
        "options": {"schedules": ["1f1b", "dualpipe"], "microbatches": 6, "chunks": 2},
        "grid": {"ranks": [2, 3], "memory": [2, [2, 1, 1], [2, 1]]},
    }
    run(spec_of(data), path, jobs=1)
    return Results.read(path)


def test_columns_are_options_then_results(results: Results) -> None:
    assert results.options == ("schedules", "microbatches", "chunks", "ranks", "memory")
    assert results.columns[:6] == (*results.options, "schedule")
    assert results.columns[-2:] == ("error", "seconds")
    assert {"makespan", "place", "fits"} < set(results.columns)
    with pytest.raises(db.ParameterError, match="no column 'makspan'; did you mean 'makespan'"):
        results.select("makspan")


def test_what_a_schedule_has_counts_not_what_was_asked_for(results: Results) -> None:
    found = set(results.select("schedule", "chunks"))
    # 1f1b has one chunk whatever is asked for; what could not be made has what was asked for.
    assert ("1f1b", 1) in found
    assert ("dualpipe", 2) in found


def test_csv_has_every_row(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    results.save(path)
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == results.rows
    assert tuple(rows[0]) == results.columns
    assert {row["memory"] for row in rows} == {"2.0", "[2.0,1.0,1.0]", "[2.0,1.0]"}
    assert [row["makespan"] for row in rows] == [
        "" if value is None else str(value) for (value,) in results.select("makespan")
    ]


def test_parquet_has_every_row(results: Results, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    results.save(path)
    found = parquet.read_table(path)
    assert tuple(found.column_names) == results.columns
    assert found.num_rows == results.rows
    assert found["makespan"].to_pylist() == [value for (value,) in results.select("makespan")]


def test_without_a_writer_of_parquet_it_says_what_to_install(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in ("pyarrow", "polars"):
            raise ImportError(name)
        return find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(db.ParameterError, match=r"pip install pyarrow, or write a \.csv"):
        results.save(tmp_path / "x.parquet")


def test_other_endings_and_folders_are_refused(results: Results, tmp_path: Path) -> None:
    with pytest.raises(db.ParameterError, match=r"results are written as .csv or .parquet"):
        results.save(tmp_path / "x.xlsx")
    with pytest.raises(db.ParameterError, match="cannot write"):
        results.save(tmp_path / "none" / "x.csv")


def test_what_a_killed_writer_left_half_done_is_undone(results: Results) -> None:
    code = f"""
import os, signal, sqlite3
file = sqlite3.connect({str(results.path)!r}, isolation_level=None)
file.execute("PRAGMA journal_mode = DELETE")
file.execute("PRAGMA cache_size = 1")
file.execute("BEGIN")
file.executemany("INSERT INTO about VALUES (?, ?)", [(str(i), "x" * 500) for i in range(2000)])
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert results.path.with_name(results.path.name + "-journal").stat().st_size
    assert Results.read(results.path) == results
