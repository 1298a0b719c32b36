"""What the README shows works as it stands."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from debubble.cli.app import app
from debubble.optimize import cache
from debubble.schedules import registry

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [
    [line.strip() for line in block.splitlines()]
    for block in re.findall(r"(?:^    .*\n)+", TEXT.replace("\\\n", " "), re.M)
]
COMMANDS = [line for block in BLOCKS for line in block if line.startswith("debubble ")]
SHOWN = [
    (command, output)
    for block in BLOCKS
    for command, output in pairwise(block)
    if command in COMMANDS and output not in COMMANDS
]


def test_the_recipes_are_found() -> None:
    assert {line.split()[1] for line in COMMANDS} == {
        "compare", "simulate", "draw", "optimize", "export", "check", "run",
    }  # fmt: skip


def test_commands_run_in_order(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(cache, "folder", lambda: results)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in COMMANDS:
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
    assert {path.name for path in tmp_path.iterdir()} == {
        "examples", "compare.html", "faster.csv", "interleaved.svg", "timeline.html", "zbv.csv",
        "run.json.gz",
    }  # fmt: skip


def test_outputs_are_what_commands_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert SHOWN
    for command, output in SHOWN:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert output in result.output.splitlines(), command


def test_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", TEXT, re.S)
    assert code is not None
    try:
        exec(compile(code.group(1), "README.md", "exec"), {})
    finally:
        registry._ENTRIES.pop("mine", None)
    assert "1f1b is fastest: 33, the same time as mine" in capsys.readouterr().out
    assert (tmp_path / "zb-v.png").stat().st_size > 10_000


def test_files_that_are_linked_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / target).exists(), target
