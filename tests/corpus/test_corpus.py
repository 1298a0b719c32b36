"""What once went wrong, case by case: see ``cases.toml``, which says how to add one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import debubble as db
from debubble.cli.app import app
from debubble.core.errors import DebubbleError

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))["case"]
KEYS = {"name", "command", "shell", "python", "exit", "says", "hides", "needs"}
NEVER = ("internal error", "Traceback")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the corpus' files."""
    return Path(shutil.copytree(HERE / "files", tmp_path_factory.mktemp("corpus") / "files"))


def by_command(line: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, line.split(), prog_name="debubble")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout + result.stderr


def by_shell(line: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
    return done.returncode, done.stdout + done.stderr


def by_python(statements: str) -> tuple[int, str]:
    try:
        exec(statements, {"db": db, "np": np})
    except DebubbleError as error:
        return 2, str(error)
    return 0, ""


WAYS = {"command": by_command, "shell": by_shell, "python": by_python}


def marks(case: dict[str, Any]) -> list[pytest.MarkDecorator]:
    """Shells are processes, and searching is slow."""
    found = [pytest.mark.processes] if "shell" in case else []
    searches = any("optimize" in str(case[way]) for way in WAYS if way in case)
    return [*found, *([pytest.mark.slow] if searches else [])]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case["name"], marks=marks(case)) for case in CASES]
)
def test_case(case: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(case) <= KEYS
    if "needs" in case and importlib.util.find_spec(case["needs"]) is None:
        pytest.skip(f"{case['needs']} is not installed")
    monkeypatch.chdir(folder)
    ((way, call),) = ((way, call) for way, call in WAYS.items() if way in case)
    code, text = call(case[way])
    for word in case.get("says", []):
        assert word in text, text
    for word in (*NEVER, *case.get("hides", [])):
        assert word not in text, text
    assert code == case["exit"], text
