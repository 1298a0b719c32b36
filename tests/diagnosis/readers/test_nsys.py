"""Reports of Nsight Systems with sail-sg's ranges."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.readers.folder import read
from tests.diagnosis.readers import made, made_nsys

BASE = 1_790_857_026_000_000_000


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v"])
@pytest.mark.parametrize("texts", [True, False])
def test_what_was_written_is_read(tmp_path: Path, name: str, texts: bool) -> None:
    run = made.run(name, ranks=4, microbatches=8)
    # Two nodes, of which one began its report a second earlier.
    made_nsys.write(run, tmp_path / "node0.sqlite", [0, 1], base=BASE, texts=texts)
    late = made.MadeRun(run.schedule, tuple(
        one._replace(start=one.start + 1, end=one.end + 1) for one in run.done
    ))  # fmt: skip
    made_nsys.write(late, tmp_path / "node1.sqlite", [2, 3], base=BASE, texts=texts)
    found = read(tmp_path)
    assert (found.format, found.ranks, found.steps) == ("nsys", 4, (7, 8))
    assert (found.hosts, found.clocks) == (("node-1",) * 4, "one")
    made.assert_recovered(found, run)
    rows = found.actions
    assert rows.start - rows.issued == pytest.approx(2e-3 - 10e-6)
    assert rows.busy == pytest.approx(rows.end - rows.start)
    assert found.left_out == {}


def test_a_file_for_each_rank(tmp_path: Path) -> None:
    run = made.run("1f1b")
    for rank in range(2):
        path = tmp_path / f"rank{rank}.sqlite"
        made_nsys.write(run, path, [rank], base=BASE, pid=False)
        with contextlib.closing(sqlite3.connect(path)) as base:
            base.execute("DELETE FROM NVTX_EVENTS WHERE textId IN "
                         "(SELECT id FROM StringIds WHERE value LIKE 'iter%')")  # fmt: skip
            base.commit()
    found = read(tmp_path)
    assert found.steps == (0, 1)
    made.assert_recovered(found, run)


def test_every_eighth_rank_is_one_of_the_pipeline(tmp_path: Path) -> None:
    run = made.run("1f1b", ranks=4, microbatches=8)
    made_nsys.write(run, tmp_path / "report.sqlite", [0, 1, 2, 3], base=BASE, stride=8)
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert "one in 8 of the job's ranks" in found.taken_for["rank"]


def test_reports_that_do_not_say_when_they_began(tmp_path: Path) -> None:
    run = made.run("1f1b")
    path = tmp_path / "report.sqlite"
    made_nsys.write(run, path, [0, 1], base=BASE)
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("ALTER TABLE TARGET_INFO_SESSION_START_TIME RENAME utcEpochNs TO systemNs")
        base.execute("DROP TABLE TARGET_INFO_SYSTEM_ENV")
        base.commit()
    found = read(tmp_path)
    made.assert_recovered(found, run)
    assert found.clocks == "hosts"


def test_passes_of_a_sharded_vocabulary_are_counted(tmp_path: Path) -> None:
    run = made.run("1f1b")
    path = tmp_path / "report.sqlite"
    made_nsys.write(run, path, [0, 1], base=BASE, texts=True)
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text) "
            "SELECT start, end, 59, globalTid, 'S0.0.0' FROM NVTX_EVENTS WHERE text = 'F0.0.0'"
        )
        base.commit()
    found = read(tmp_path)
    assert sum(found.left_out.values()) >= 4
    assert "ranges S and T of a sharded output layer" in found.left_out


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-v"])
def test_ranges_named_by_debubble_megatron(tmp_path: Path, name: str) -> None:
    """Their names have stages, and the stages tell the ranks."""
    run = made.run(name, ranks=4, microbatches=8)
    made_nsys.write(run, tmp_path / "a.sqlite", [2, 3], base=BASE, names="stages")
    made_nsys.write(run, tmp_path / "b.sqlite", [0, 1], base=BASE, names="stages")
    found = read(tmp_path)
    assert (found.format, found.ranks, found.order_assumed) == ("nsys", 4, "")
    made.assert_recovered(found, run)
    assert found.taken_for["rank"] == "stages of ranges"
    assert found.left_out == {}


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b"])
def test_operators_of_megatron_show_forwards_and_backwards(tmp_path: Path, name: str) -> None:
    run = made.run(name, ranks=2, microbatches=4)
    made_nsys.write(run, tmp_path / "report.sqlite", [1, 0], base=BASE, names="operators")
    found = read(tmp_path)
    assert (found.ranks, found.order_assumed) == (2, name)
    made.assert_recovered(found, run)
    assert found.taken_for["rank"] == "forwards before the first backward"


def test_what_is_refused(tmp_path: Path) -> None:
    run = made.run("1f1b")
    path = tmp_path / "report.sqlite"
    made_nsys.write(run, path, [0, 1], base=BASE)
    content = path.read_bytes()
    path.write_bytes(content[:5000])
    with pytest.raises(
        FormatError, match="1 × files that are no SQLite database, or a damaged one"
    ):
        read(path)
    path.write_bytes(content)
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
        base.commit()
    with pytest.raises(FormatError, match="2 × processes whose ranges launched no kernel"):
        read(path)
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        base.commit()
    with pytest.raises(FormatError, match="1 × files without the tables NVTX_EVENTS and"):
        read(path)
    (tmp_path / "run.nsys-rep").write_bytes(b"x")
    with pytest.raises(FormatError, match="'nsys export --type sqlite' makes readable files"):
        read(tmp_path / "run.nsys-rep")
