"""A schedule of one's own: from one command to a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import debubble as db
from debubble.cli.template import NEXT, TEMPLATE

Run = Callable[..., Any]


def test_every_command_that_it_names_works(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, *lines = run("schedules", "--from-template", "my.py").out.splitlines()
    assert first == "wrote my.py, a schedule that you can change; next:"
    commands = [shlex.split(line.split("   ")[0]) for line in map(str.strip, lines)]
    assert [words[:3] for words in commands] == [
        ["debubble", text.split()[0], "my.py:order"] for text, _ in NEXT
    ]
    for _, name, *words in commands:
        if name != "run":  # its order is 1F1B's, see below, and starts processes
            assert run(name, *words).code == 0
    assert run("check", "my.py:order", "-p", "4", "-m", "8").out.startswith("ok: 64 actions")


def test_it_is_short_and_is_what_it_says(tmp_path: Path) -> None:
    assert len(TEMPLATE.splitlines()) <= 20
    path = tmp_path / "my.py"
    path.write_text(TEMPLATE, encoding="utf-8")
    for warm_up in (0, 1, 3):
        mine = db.make(f"{path}:order", ranks=4, microbatches=6, warm_up=warm_up)
        assert db.check(mine).ok
        timeline = db.simulate(mine)
        assert timeline.makespan == 3 * (6 + 3)
        assert timeline.peak_activation[0] == min(4 + warm_up, 6)
    plain = db.make("1f1b", ranks=4, microbatches=6)
    mine = db.make(f"{path}:order", ranks=4, microbatches=6, warm_up=0)
    assert [list(map(str, mine.program(r))) for r in range(4)] == [
        list(map(str, plain.program(r))) for r in range(4)
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my.txt", "'my.txt': a schedule of your own is a .py file"),
        ("no/my.py", "there is no folder 'no'; make it first"),
        ("there.py", "'there.py' exists; name another file, or remove it"),
    ],
)
def test_no_file_is_overwritten(
    run: Run, refused: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("mine", encoding="utf-8")
    assert message in refused("schedules", "--from-template", name)
    assert (tmp_path / "there.py").read_text(encoding="utf-8") == "mine"
