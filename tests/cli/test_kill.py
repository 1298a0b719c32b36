"""SIGKILL at any moment: a file that was asked for is whole, or as it was before.

What a command does to files is looked at from within, so that it is killed before each of these
things, and in the middle of what it writes, however fast the machine is.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.cli import plan, progress
from tests.forkserver import forked, serve

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ASKED = ["-p", "2", "-m", "3", "--memory", "2", "--times", "F=5,I=6,W=4",
         "--effort", "0.01", "--workers", "1"]  # fmt: skip
LOADED = ["debubble.cli.export", "debubble.cli.optimize", "debubble.optimize.search",
          "ortools.sat.python.cp_model", "tests.kernels"]  # fmt: skip
"""What commands here load."""

CHANGES = ("open", "os.rename", "os.remove", "os.chmod", "os.truncate")
"""Audit events of what may change a file."""


def kill_at(number: int, folder: str) -> None:
    """Have this process killed right before it changes a file of a folder for the `number`-th time.

    It is not when it changes fewer.
    """
    left = [number]

    def look(event: str, args: tuple[Any, ...]) -> None:
        if event not in CHANGES or not isinstance(args[0], str | os.PathLike):
            return
        if event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if os.path.abspath(args[0]).startswith(folder):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def command(words: list[str], folder: str, change: int, size: int) -> None:
    """A command in this process, which works in a folder and says nothing.

    It is killed before it changes a file for the `change`-th time, and when it writes more than
    `size` bytes to one; neither for 0.
    """
    from debubble.cli import main
    from tests.kernels import run_by

    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = folder
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the process ends with it
    sys.argv = ["debubble", *words]
    if change:
        kill_at(change, folder)
    if size:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    # For searches as small as these, compiling the kernels would take far longer.
    with run_by(compiled=False):
        main()


def ran(words: list[str], folder: Path, *, change: int = 0, size: int = 0) -> int:
    """The exit code of a command; below 0 when it was killed."""
    process = forked.Process(target=command, args=(words, str(folder), change, size))
    process.start()
    process.join()
    code: int = process.exitcode
    return code


def kill_at_every_change(words: list[str], folder: Path, look: Callable[[], None]) -> int:
    """Kill a command before every change of a file, and look each time; how many there are.

    At last it is not killed.
    """
    serve(*LOADED)
    changes = 0
    while (code := ran(words, folder, change=changes + 1)) == -signal.SIGKILL:
        changes += 1
        look()
    assert code == 0
    return changes


def test_optimize(tmp_path: Path) -> None:
    output = tmp_path / "best.json"
    kept = tmp_path / "debubble" / "optimize"
    words = ["optimize", *ASKED, "-o", "best.json"]
    found: list[Any] = []

    def look() -> None:
        if output.exists():
            schedule = db.load(output)
            assert db.check(schedule, memory=2).ok
            found.append(schedule.actions.tolist())
            output.unlink()
        for path in kept.glob("*.json") if kept.exists() else ():
            entry = json.loads(path.read_text(encoding="utf-8"))
            assert entry["bound"] > 0
            path.unlink()

    # The output and what is kept of the search are made and renamed.
    assert kill_at_every_change(words, tmp_path, look) >= 4
    entry, size = next(kept.glob("*.json")), output.stat().st_size
    look()
    assert ran(words, tmp_path, size=size // 2) == -signal.SIGXFSZ
    look()
    assert not entry.exists() or size < 2 * entry.stat().st_size
    # What was left behind is no obstacle, and the cache answers as ever.
    for _ in range(2):
        assert ran(words, tmp_path) == 0
        found.append(db.load(output).actions.tolist())
    assert all(actions == found[0] for actions in found)
    assert len(list(kept.glob("*.json"))) == 1


@pytest.mark.parametrize("form", ["json", "chrome-trace"])
def test_a_file_that_is_replaced(tmp_path: Path, form: str) -> None:
    output = tmp_path / "x.json"
    output.write_text("[]")
    words = ["export", "1f1b", "-p", "4", "-m", "50", "--to", form, "-o", "x.json"]

    def look() -> None:
        assert output.read_text(encoding="utf-8") == "[]"

    assert kill_at_every_change(words, tmp_path, look) >= 3
    whole = output.read_bytes()
    assert json.loads(whole) is not None
    output.write_text("[]")
    for size in (1, len(whole) // 2, len(whole) - 1):
        assert ran(words, tmp_path, size=size) == -signal.SIGXFSZ
        look()
    assert ran(words, tmp_path) == 0
    assert output.read_bytes() == whole


def planned(folder: str) -> None:
    """A search for plans that takes long, with its output in files."""
    from debubble.cli import main

    os.chdir(folder)
    sys.stdout, sys.stderr = open("out", "w"), open("err", "w")  # noqa: SIM115 - as above
    progress.EVERY, plan.EVERY = 0.2, 0.2
    sys.argv = ["debubble", "plan", "llama-3.1-70b", "--gpu", "h100", "--gpus", "64",
                "--batch", "128", "--seq", "8192", "--framework", "megatron"]  # fmt: skip
    main()


def test_sigterm_ends_a_search_for_plans_with_the_best_so_far(tmp_path: Path) -> None:
    process = forked.Process(target=planned, args=(str(tmp_path),))
    process.start()
    err = tmp_path / "err"
    while process.is_alive() and not (err.exists() and ", best " in err.read_text()):
        time.sleep(0.05)
    process.terminate()
    process.join()
    lines = err.read_text().splitlines()
    assert "plans decided" in lines[0]
    assert "\r" not in lines[0]
    assert "best so far (search stopped)" in (tmp_path / "out").read_text()
