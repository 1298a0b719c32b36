"""Several processes find what one does, whatever becomes of them."""

from __future__ import annotations

import dataclasses
import gzip
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest

from debubble.core.errors import FormatError
from debubble.diagnosis.cancellation import cancelled_by
from debubble.diagnosis.observed import Columns, Observed
from debubble.diagnosis.readers import folder, pool
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import CHUNK, LeftOut
from tests.conftest import EXPLORES
from tests.diagnosis.readers import made, made_kineto, made_nsys
from tests.diagnosis.readers.test_debubble_trace import save
from tests.diagnosis.readers.test_hostile import damaged
from tests.diagnosis.readers.test_megatron_timers import log
from tests.patience import patience

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("readers_processes")]

RUN = made.run("1f1b", ranks=4, microbatches=6, steps=3)
LONG = made.run("1f1b", ranks=8, microbatches=32, steps=100)
CASES = 6 if EXPLORES else 3


def split(write: Callable[[made.MadeRun, Path], None], pattern: str) -> Callable[[Path], None]:
    """A writer of one file a rank."""

    def several(to: Path) -> None:
        for rank in range(RUN.schedule.ranks):
            done = tuple(one for one in RUN.done if one.rank == rank)
            write(dataclasses.replace(RUN, done=done), to / pattern.format(rank))

    return several


def many_victarry(to: Path) -> None:
    for step in range(130):
        made.write_victarry(made.run("1f1b", ranks=4, steps=1), to / f"step{step}")


def own(to: Path) -> None:
    for step in range(3):
        save(made.run("zb-h1", steps=1), to / f"step{step}.json")


WRITERS: dict[str, Callable[[Path], None]] = {
    "a large table": lambda to: made.write_table(LONG, to / "run.csv"),
    "tables": split(made.write_table, "rank{}.csv"),
    "primus": lambda to: made.write_primus(RUN, to, numbered=True),
    "a large ndtimeline": lambda to: made.write_ndtimeline(LONG, to / "run.json"),
    "ndtimeline": lambda to: made.write_ndtimeline(RUN, to / "run.json", tensor=(0, 1)),
    "victarry": many_victarry,
    "kineto": lambda to: made_kineto.write(RUN, to, suffix=".json"),
    "old kineto": lambda to: made_kineto.write(RUN, to, suffix=".json.gz", old=True),
    "nsys": split(
        lambda run, path: made_nsys.write(run, path, [run.done[0].rank], base=10**18),
        "rank{}.sqlite",
    ),
    "debubble": own,
    "megatron": lambda to: made.write(to / "run.log", log()),
}


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What one process reads and what two do, or why they refuse."""
    found = []
    for count in (1, 2):
        monkeypatch.setattr(pool, "processes_for", lambda _, count=count: count)
        try:
            found.append(content(folder.read(path)))
        except FormatError as error:
            found.append(str(error))
    return found


class InThisProcess:
    """Stands for a new Python, which takes a second to start: it reads as soon as it is there."""

    def __init__(self, *_: object, stdin: IO[bytes], stdout: IO[bytes], **__: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
            patch.setattr(sys, "__stdout__", SimpleNamespace(buffer=stdout))
            patch.setattr(signal, "signal", lambda *_: None)
            pool.work()

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> None: ...


def content(found: Observed) -> list[Any]:
    """All that a trace tells, to the bit and in its order."""
    values = [getattr(found, each.name) for each in dataclasses.fields(found)]
    return [
        [(name, each.dtype, each.tobytes()) for name, each in vars(value).items()]
        if isinstance(value, Columns)
        else list(value.items()) if isinstance(value, dict) else repr(value)
        for value in values
    ]  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_as_one_process(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[name](tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    if "large" in name:
        assert max(map(len, files.values())) > 2 * CHUNK
    one, several = both(tmp_path, monkeypatch)
    assert one == several
    assert not isinstance(one, str)
    monkeypatch.setattr(subprocess, "Popen", InThisProcess)
    source = random.Random(name)
    for _ in range(CASES if len(files) > 1 else 0):
        for path, text in files.items():
            path.write_bytes(text)
        for path in source.sample(sorted(files), min(len(files), 2)):
            path.write_bytes(damaged(damaged(path.read_bytes(), source) or b"x", source))
        one, several = both(tmp_path, monkeypatch)
        assert one == several


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rows_that_are_not_lines(tmp_path: Path, suffix: str) -> None:
    """A cell in the middle has a line break; compressed, the end is missing as well."""
    made.write_table(LONG, tmp_path / "run.csv")
    text = (tmp_path / "run.csv").read_bytes()
    plain = content(folder.read(tmp_path))
    half = text.index(b"\n", len(text) // 2)
    text = text[:half] + b'\n0,0,0,"SEN\nD",1.0,2.0' + text[half:]
    (tmp_path / "run.csv").unlink()
    packed = gzip.compress(text, 1)[:-1000] if suffix else text
    (tmp_path / f"run.csv{suffix}").write_bytes(packed)
    found = folder.read(tmp_path)
    assert found.left_out["lines that are no action with a rank and times"] >= 1
    if not suffix:
        assert content(dataclasses.replace(found, left_out={})) == plain


def doubled(task: int, left_out: LeftOut) -> int:
    left_out[f"{task % 3}"] += 1
    return task * 2


def dies_elsewhere(task: tuple[int, int], _: LeftOut) -> int:
    """Ends the process in the fifth task, unless it is that with this number."""
    number, process = task
    if number == 5 and os.getpid() != process:
        os.kill(os.getpid(), signal.SIGTERM)
    return number


def raises(task: tuple[int, int], left_out: LeftOut) -> np.ndarray[Any, Any]:
    number, last = task
    left_out["tried"] += 1
    if number == last:
        raise FormatError("the last")
    print("this is not for the results")
    return np.full(100_000, number)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes read, whatever there is to read."""
    monkeypatch.setattr(pool, "processes_for", lambda _: 2)


@pytest.mark.usefixtures("two")
def test_order_and_counts() -> None:
    left_out = LeftOut()
    found = list(read_each(doubled, range(20), left_out))
    assert found == [(task, task * 2) for task in range(20)]
    assert list(left_out.items()) == [("0", 7), ("1", 7), ("2", 6)]


@pytest.mark.usefixtures("two")
def test_nothing_to_read() -> None:
    assert not list(read_each(doubled, [], LeftOut()))


@pytest.mark.usefixtures("two")
def test_one_that_dies() -> None:
    tasks = [(number, os.getpid()) for number in range(30)]
    found = [number for _, number in read_each(dies_elsewhere, tasks, LeftOut())]
    assert found == list(range(30))


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("last", [7, 8])
def test_what_one_raises_is_raised_here(last: int) -> None:
    left_out = LeftOut()
    each = read_each(raises, [(task, last) for task in range(20)], left_out)
    for task in range(last):
        (number, _), values = next(each)
        values[0] = -1
        assert (number, values[1]) == (task, task)
    with pytest.raises(FormatError, match="the last"):
        next(each)
    assert left_out == {"tried": last + 1}


@pytest.mark.usefixtures("two")
def test_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none can be started, or what starts is something else, this one reads."""
    for command in ("/nowhere", sys.executable):
        monkeypatch.setattr(sys, "executable", command)
        monkeypatch.setattr(sys, "path", ["/nowhere"])
        found = list(read_each(doubled, range(5), LeftOut()))
        assert found == [(task, task * 2) for task in range(5)]


@pytest.mark.usefixtures("two")
def test_nobody_wants_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class EndedError(Exception):
        pass

    asked = iter(range(8))

    def ask() -> None:
        if next(asked) == 7:
            raise EndedError

    started: list[subprocess.Popen[bytes]] = []

    class Process(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **others: Any) -> None:
            super().__init__(*args, **others)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Process)
    with pytest.raises(EndedError), cancelled_by(ask):
        list(read_each(doubled, range(1000), LeftOut()))
    assert [process.returncode is not None for process in started] == [True]


def test_few_bytes_are_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "processors", lambda: 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0, 0), raising=False)
    paths = [tmp_path / f"rank{rank}.json" for rank in range(5)]
    for size, expected in ((1000, 1), (pool.FEWEST_BYTES // 5, 4)):
        for path in paths:
            with open(path, "wb") as file:
                file.truncate(size)
        assert pool.processes_for(paths) == expected
    for load, expected in ((4.0, 2), (6.5, 1), (50.0, 1)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0), raising=False)
        assert pool.processes_for(paths) == expected
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0, 0), raising=False)
    monkeypatch.setattr(sys, "executable", "/usr/bin/blender")
    assert pool.processes_for(paths) == 1


def test_any_program_may_read(tmp_path: Path) -> None:
    """One without a guard; and of the folder that it is in nothing is imported."""
    made.write_primus(RUN, tmp_path / "trace")
    (tmp_path / "numpy.py").write_text("open('imported', 'w')")
    script = tmp_path / "scripts" / "read.py"
    script.parent.mkdir()
    script.write_text(
        "from debubble.diagnosis.readers import folder, pool\n"
        "pool.processes_for = lambda files: 2\n"
        "print('here')\n"
        "print(len(folder.read('trace').actions))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert found.stdout.split() == ["here", str(len(RUN.done))]
    assert not found.stderr
    assert not (tmp_path / "imported").exists()


def test_threads_that_cannot_start(tmp_path: Path) -> None:
    """A thread goes on when the main one is over; then none can be started any more."""
    (tmp_path / "run").mkdir()
    made.write_primus(RUN, tmp_path / "run")
    script = tmp_path / "script.py"
    script.write_text(f"""
import threading, time
import debubble as db
from debubble.diagnosis.readers import folder, pool
pool.processes_for = lambda _: 2
def late():
    threading.main_thread().join()
    print(db.read_trace({str(tmp_path / "run")!r}).schedule.name)
threading.Thread(target=late).start()
""")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1f1b\n", "")
