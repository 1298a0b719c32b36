"""Running sweeps: what is kept, what goes on, and what is refused."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.sweeps import Progress, Results, Spec, run, spec_of
from debubble.sweeps.commands import compute
from debubble.sweeps.store import Writer

DATA: dict[str, Any] = {
    "command": "simulate",
    "options": {"microbatches": 8},
    "grid": {"schedule": ["1f1b", "gpipe", "dualpipe"], "ranks": [2, 3, 4]},
}


@pytest.fixture
def spec() -> Spec:
    return spec_of(DATA)


def table(path: Path) -> list[tuple[Any, ...]]:
    """All rows without the time they took."""
    return [row[:-1] for row in Results.read(path).select(*Results.read(path).columns)]


def test_the_former_module_has_the_same_names() -> None:
    from debubble import sweeps
    from debubble.planner import sweeps as former

    for name in sweeps.__all__:
        with pytest.warns(db.DebubbleDeprecationWarning, match="use debubble.sweeps"):
            assert getattr(former, name) is getattr(sweeps, name)


def test_results_are_in_the_file(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    said: list[Progress] = []
    end = run(spec, path, jobs=1, progress=said.append)
    assert (end.done, end.total, end.failed, end.here) == (9, 9, 1, 9)
    assert [progress.done for progress in said] == sorted(progress.done for progress in said)
    results = Results.read(path)
    assert (results.command, results.points, results.rows, results.failed) == ("simulate", 9, 9, 1)
    found = results.select("schedule", "ranks", "makespan", "error")
    assert found[0] == (
        "1f1b", 2, db.simulate(db.make("1f1b", ranks=2, microbatches=8)).makespan, None
    )  # fmt: skip
    ((text, count),) = results.errors()
    assert text.startswith("'dualpipe' needs an even number of ranks; ranks is 3")
    assert count == 1


def test_the_file_is_for_any_reader(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    run(spec, path, jobs=1)
    with sqlite3.connect(path) as file:
        found = file.execute(
            "SELECT schedule, max(bubble_ratio) FROM sweep WHERE ranks = 4 GROUP BY schedule"
        ).fetchall()
    assert dict(found)["1f1b"] == 3 / 11
    keys = {point.key for point in spec.points()}
    with sqlite3.connect(path) as file:
        assert {key for (key,) in file.execute("SELECT point FROM results")} == keys


def test_a_second_run_computes_nothing(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    run(spec, path, jobs=1)
    before = Results.read(path).select("schedule", "seconds")
    assert run(spec, path, jobs=1).here == 0
    assert Results.read(path).select("schedule", "seconds") == before


def test_ctrl_c_keeps_what_was_reported(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    whole = tmp_path / "whole.sqlite"
    run(spec, whole, jobs=1)

    def stop(progress: Progress) -> None:
        if progress.here >= 2:
            raise KeyboardInterrupt

    for _ in range(9):
        try:
            run(spec, path, jobs=1, progress=stop)
        except KeyboardInterrupt:
            continue
        break
    assert run(spec, path, jobs=1).here == 0
    assert table(path) == table(whole)


def test_failed_points_are_computed_again_when_asked(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    run(spec, path, jobs=1)
    end = run(spec, path, jobs=1, retry_failed=True)
    assert (end.here, end.failed) == (1, 1)
    assert Results.read(path).rows == 9


def test_another_sweep_is_refused_unless_it_extends(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    run(spec, path, jobs=1)
    more = spec_of({**DATA, "grid": {**DATA["grid"], "ranks": [2, 3, 4, 8]}})
    with pytest.raises(db.ParameterError, match=r"another sweep: grid.ranks differs. Give another"):
        run(more, path, jobs=1)
    end = run(more, path, jobs=1, extend=True)
    assert (end.here, end.done, end.total) == (3, 12, 12)
    changed = spec_of({**DATA, "options": {"microbatches": 8, "costs.p2p": 1}})
    with pytest.raises(db.ParameterError, match=r"options.costs.p2p is new"):
        run(changed, path, jobs=1)
    run(changed, path, jobs=1, extend=True)
    assert set(Results.read(path).select("costs.p2p")) == {(None,), (1.0,)}
    other = spec_of({"command": "optimize", "grid": {"ranks": [2], "microbatches": [2]}})
    with pytest.raises(db.ParameterError, match="has a sweep of simulate, not optimize"):
        run(other, path, jobs=1, extend=True)


def test_one_sweep_writes_at_a_time(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    writer = Writer(path, spec, "0")
    with pytest.raises(db.ParameterError, match=r"another sweep writes to '.*'; wait for it"):
        run(spec, path, jobs=1)
    assert Results.read(path).points == 0
    writer.close()
    assert run(spec, path, jobs=1).here == 9


def test_a_full_disk_keeps_what_was_reported(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    run(spec_of({**DATA, "grid": {**DATA["grid"], "ranks": [2]}}), path, jobs=1)
    before = table(path)
    writer = Writer(path, spec, "0", extend=True)
    writer._file.execute("PRAGMA max_page_count = 1")
    (result,) = compute(spec.command, spec.files, list(spec.points())[:1])
    large = [result._replace(key=f"{n:032x}", options={"text": "x" * 4000}) for n in range(100)]
    with pytest.raises(db.ParameterError, match="no space left for"):
        writer.add(large)
    writer.close()
    assert table(path) == before


def test_files_of_others_are_refused(spec: Spec, tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_text("no database at all, but long enough to be looked at by SQLite " * 20)
    with pytest.raises(db.FormatError, match="is no file of a sweep"):
        run(spec, text, jobs=1)
    assert text.read_text().startswith("no database")
    with sqlite3.connect(tmp_path / "other.db") as file:
        file.execute("CREATE TABLE mine (x)")
    file.close()
    with pytest.raises(db.FormatError, match="is a database of something else"):
        run(spec, tmp_path / "other.db", jobs=1)
    with pytest.raises(db.FormatError, match="is a database of something else"):
        Results.read(tmp_path / "other.db")
    with pytest.raises(db.ParameterError, match=r"results are kept as .sqlite"):
        run(spec, tmp_path / "x.csv", jobs=1)
    with pytest.raises(db.FormatError, match="there is no file"):
        Results.read(tmp_path / "none.sqlite")
    with pytest.raises(db.ParameterError, match="cannot write"):
        run(spec, tmp_path / "no folder" / "x.sqlite", jobs=1)


def test_backends_that_are_not_there_are_named(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.sqlite"
    with pytest.raises(db.ParameterError, match=r"backend is 'dusk'; did you mean 'dask'\?"):
        run(spec, path, backend="dusk")
    with pytest.raises(db.ParameterError, match="jobs is 0; give a number from 1 up"):
        run(spec, path, jobs=0)
    with pytest.raises(db.ParameterError, match="processes of this computer have none"):
        run(spec, path, jobs=2, address="tcp://x:1")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    message = r"backend 'ray' needs joblib: pip install 'debubble\[ray\]'"
    with pytest.raises(db.ParameterError, match=message):
        run(spec, path, backend="ray")
    with pytest.raises(db.ParameterError, match=r"pip install 'debubble\[sweep\]'"):
        run(spec, path, jobs=2)
    # Nobody asked for others: one by one, in this process.
    assert run(spec, path).here == 9


@pytest.mark.processes
def test_processes_compute_the_same(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import import_module

    monkeypatch.setattr(import_module("debubble.sweeps.run"), "ALONE_SECONDS", 0.0)
    run(spec, tmp_path / "one.sqlite", jobs=1)
    end = run(spec, tmp_path / "two.sqlite", jobs=2)
    assert end.here == 9
    assert table(tmp_path / "two.sqlite") == table(tmp_path / "one.sqlite")
    assert multiprocessing.active_children() == []
