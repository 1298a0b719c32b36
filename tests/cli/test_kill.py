"""SIGKILL at any moment: a file that was asked for is whole, or as it was before."""

from __future__ import annotations

import json
import os
import random
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

ASKED = ["-p", "2", "-m", "3", "-v", "2", "--memory", "2", "--times", "F=5,I=6,W=4",
         "--effort", "0.01", "--workers", "1"]  # fmt: skip
KILLS = 10


def command(words: list[str], folder: str) -> None:
    """A command in this process, which works in a folder and says nothing."""
    from debubble.cli import main

    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = folder
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the process ends with it
    sys.argv = ["debubble", *words]
    main()


def begun(words: list[str], folder: Path) -> Any:
    process = forked.Process(target=command, args=(words, str(folder)))
    process.start()
    return process


def seconds_of(words: list[str], folder: Path) -> float:
    """How long a command takes that nobody disturbs."""
    began = time.monotonic()
    process = begun(words, folder)
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - began


def kill(words: list[str], folder: Path, delay: float) -> bool:
    """Start a command and kill it some time later; whether it was still at work."""
    process = begun(words, folder)
    time.sleep(delay)
    process.kill()
    process.join()
    return bool(process.exitcode != 0)


def killed(words: list[str], folder: Path, look: Callable[[], None], source: str) -> int:
    """Kill a command at random moments, most of them near its end; how often it was at work."""
    serve("tests.preloaded")
    chance, usual = random.Random(source), seconds_of(words, folder)
    look()
    hits = 0
    for _ in range(KILLS):
        share = chance.choice((chance.uniform(0, 1.1), chance.uniform(0.8, 1.05)))
        hits += kill(words, folder, share * usual)
        look()
    return hits


def test_optimize(tmp_path: Path) -> None:
    output = tmp_path / "best.json"
    kept = tmp_path / "debubble" / "optimize"
    found: dict[str, Any] = {}

    def look() -> None:
        if output.exists():
            schedule = db.load(output)
            assert db.check(schedule, memory=2).ok
            assert found.setdefault("programs", schedule.actions.tolist()) == (
                schedule.actions.tolist()
            )
            output.unlink()
        for path in kept.glob("*.json") if kept.exists() else ():
            entry = json.loads(path.read_text(encoding="utf-8"))
            assert entry["bound"] > 0
            path.unlink()

    assert killed(["optimize", *ASKED, "-o", "best.json"], tmp_path, look, "optimize") > 0
    # What was left behind is no obstacle, and the cache answers as ever.
    for _ in range(2):
        seconds_of(["optimize", *ASKED, "-o", "best.json"], tmp_path)
        assert db.load(output).actions.tolist() == found["programs"]
    assert len(list(kept.glob("*.json"))) == 1


@pytest.mark.parametrize("form", ["json", "chrome-trace"])
def test_a_file_that_is_replaced(tmp_path: Path, form: str) -> None:
    output = tmp_path / "x.json"
    output.write_text("[]")
    words = ["export", "1f1b", "-p", "8", "-m", "500", "--to", form, "-o", "x.json"]
    sizes = set()

    def look() -> None:
        text = output.read_text(encoding="utf-8")
        assert json.loads(text) is not None
        sizes.add(len(text))
        output.write_text("[]")

    assert killed(words, tmp_path, look, form) > 0
    assert len(sizes) == 2


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
