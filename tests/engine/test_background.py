"""Machine code is made in a second process while this one interprets."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from debubble.engine import background, compiler_process, jit
from debubble.engine.explain.cycle import mark_reachable
from debubble.engine.jit import kernel

BUSY = """
import time
import numpy as np
import debubble as db
from debubble.engine import background, jit
from debubble.engine.explain.cycle import mark_reachable
begin, followers = np.array([0, 1, 1]), np.array([1])
def run():
    waiting = np.array([0, 1])
    mark_reachable.run(100_000, begin, followers, waiting, np.zeros(2, dtype=np.int64))
    return waiting.tolist()
import numba
found = [run()]
started = list(background._processes)
limit = time.monotonic() + 300
while not mark_reachable._ready and time.monotonic() < limit:
    found.append(run())
    time.sleep(0.05)
print(len(started), found[0] == found[-1], len(mark_reachable._ready))
print(*mark_reachable.compiled.stats.cache_hits.values())
"""


def python(code: str, cache: Path) -> tuple[list[str], str]:
    """Lines that a new process prints, and what it prints as errors.

    Modules in its working directory would be taken for Python's own.
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "DEBUBBLE_BACKGROUND": "1"}
    here = cache / "work"
    here.mkdir()
    for name in ("typing", "queue", "numba"):
        (here / f"{name}.py").write_text(f"raise SystemExit('{name} of the working directory')")
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code], cwd=here,
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    return done.stdout.splitlines(), done.stderr


@pytest.mark.slow
def test_code_is_made_elsewhere_and_then_loaded_here(tmp_path: Path) -> None:
    shown, errors = python(BUSY, tmp_path)
    assert shown == ["1 True 1", "1"]
    assert errors == ""


def test_a_small_command_starts_no_process(tmp_path: Path) -> None:
    code = (
        "import debubble as db, sys; from debubble.engine import background;"
        "db.simulate(db.make('1f1b', ranks=4, microbatches=8));"
        "print(background._processes, 'numba' in sys.modules)"
    )
    assert python(code, tmp_path) == (["[] False"], "")


class Worker:
    """A process that was asked and has ended."""

    def poll(self) -> int:
        return 1


@pytest.fixture
def _asked_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(background.SWITCH, "1")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(background, "_asked", {})
    monkeypatch.setattr(background, "_processes", [])
    monkeypatch.setattr(background, "_failed", False)


@pytest.mark.usefixtures("_asked_for_nothing")
def test_where_no_process_can_start_code_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError("no processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert not background.compile_in_background("somewhere", "name", ())
    assert not background.compile_in_background("somewhere", "other", ())


@pytest.mark.usefixtures("_asked_for_nothing")
def test_a_process_that_ends_without_the_code_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "_start", Worker)
    monkeypatch.setattr(background, "_write", lambda _process, _request: None)
    assert background.compile_in_background("somewhere", "name", ())
    assert not background.compile_in_background("somewhere", "name", ())


@pytest.mark.usefixtures("_asked_for_nothing")
def test_nothing_starts_where_it_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(background.SWITCH, "0")
    assert not background.compile_in_background("somewhere", "name", ())
    assert background._processes == []


class Busy:
    """A process that has not ended."""

    def poll(self) -> None:
        return None


@pytest.mark.usefixtures("_asked_for_nothing")
def test_requests_go_to_new_processes_up_to_the_limit_and_then_to_the_one_with_fewest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "MOST", 2)
    monkeypatch.setattr(background, "_start", Busy)
    written: list[object] = []
    monkeypatch.setattr(background, "_write", lambda process, _request: written.append(process))
    for name in ("a", "b", "c", "d", "c"):
        assert background.compile_in_background("somewhere", name, ())
    first, second = background._processes
    assert written == [first, second, first, second]


@pytest.mark.parametrize("asked", [("light", "heavy"), ("heavy", "light")])
def test_the_kernel_that_has_run_most_is_made_first(
    asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    kernels = {name: SimpleNamespace(compiled=SimpleNamespace(compile=made.append))
               for name in asked}  # fmt: skip
    work = {"light": 60_000, "heavy": 300_000}
    packed = b"".join(
        pickle.dumps((-work[name], pickle.dumps(("somewhere", name, name)))) for name in asked
    )
    # They have arrived by the time that the compiler is loaded.
    monkeypatch.setattr(compiler_process, "Thread", lambda **given: SimpleNamespace(
        start=lambda: given["target"](*given["args"])
    ))  # fmt: skip
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BytesIO(packed)))
    monkeypatch.setattr(compiler_process, "import_module", lambda _: SimpleNamespace(**kernels))
    compiler_process.serve()
    assert made == ["heavy", "light"]


def test_code_that_cannot_be_kept_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*function: object, **options: object) -> object:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(*function, **options)

    njit = numba.njit
    monkeypatch.setattr(numba, "njit", nowhere)
    tested = kernel(writes=("queue", "waiting"))(mark_reachable.py_func)
    waiting = np.array([0, 1])
    args = np.array([0, 1, 1]), np.array([1]), waiting, np.zeros(2, dtype=np.int64)
    assert not tested._is_ready(jit.INTERPRET_UNASKED + 1, args)
    assert tested._is_ready(jit.INTERPRET_UNCOMPILED * 100_000, args)
    tested.compiled(*args)
    assert waiting.tolist() == [0, 0]
