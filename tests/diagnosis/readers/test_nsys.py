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


def test_what_is_refused(tmp_path: Path) -> None:
    run = made.run("1f1b")
    path = tmp_path / "report.sqlite"
    made_nsys.write(run, path, [0, 1], base=BASE)
    content = path.read_bytes()
    path.write_bytes(content[:5000])
    with pytest.raises(FormatError, match="1 files that are no SQLite database, or a damaged one"):
        read(path)
    path.write_bytes(content)
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
        base.commit()
    with pytest.raises(FormatError, match="2 processes whose ranges launched no kernel"):
        read(path)
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        base.commit()
    with pytest.raises(FormatError, match="1 files without the tables NVTX_EVENTS and"):
        read(path)
    (tmp_path / "run.nsys-rep").write_bytes(b"x")
    with pytest.raises(FormatError, match="'nsys export --type sqlite' makes readable files"):
        read(tmp_path / "run.nsys-rep")
