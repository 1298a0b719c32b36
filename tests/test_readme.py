"""What the README shows works as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

import debubble as db
from debubble.cli.app import app
from debubble.interchange.cost_files import load_costs
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
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.S)
TRAINING = next(code for code in PYTHON if "dt.Pipeline" in code)
LIBRARY = next(code for code in PYTHON if "@db.register" in code)


def test_the_recipes_are_found() -> None:
    assert {line.split()[1] for line in COMMANDS} == {
        "compare", "simulate", "draw", "optimize", "export", "check", "run", "costs", "profile",
        "sweep", "plan", "trace",
    }  # fmt: skip


@pytest.mark.processes
def test_commands_run_in_order(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(cache, "folder", lambda: results)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    # Searching is tested elsewhere.
    less = {"optimize": ["--effort", "0.05"], "plan": ["--schedule", "1f1b"]}
    for line in dict.fromkeys(COMMANDS):
        words = shlex.split(line)[1:]
        result = CliRunner().invoke(app, [*words, *less.get(words[0], [])])
        assert result.exit_code == 0, f"{line}\n{result.output}"
    assert {path.name for path in tmp_path.iterdir()} == {
        "examples", "costs.yaml", "compare.html", "faster.csv", "interleaved.svg", "timeline.html",
        "zbv.csv", "run.json.gz", "actions.csv", "column.pdf", "run.png", "measured.yaml",
        "observed.yaml", "results.sqlite", "sweep.png", "results.csv", "plan.html",
    }  # fmt: skip


def test_outputs_are_what_commands_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    assert SHOWN
    for command, output in SHOWN:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert output in result.output.splitlines(), command


@pytest.mark.processes
def test_the_training_loop_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING, encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
         "train.py"],
        cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.startswith("loss ")
    assert "the fastest order found saves" in found.stdout
    assert (tmp_path / "train.json.gz").stat().st_size > 1000


def test_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        exec(compile(LIBRARY, "README.md", "exec"), {})
    finally:
        registry._ENTRIES.pop("mine", None)
    printed = capsys.readouterr().out
    assert printed.startswith("56.6, 11.7% idle, [4. 4. 4. 4.]\n")
    assert "mine is fastest: 37.2, 1.6 % less time than 1f1b" in printed
    assert (tmp_path / "zb-v.png").stat().st_size > 10_000


def test_the_own_schedule_is_one_forward_ahead_of_1f1b() -> None:
    own = LIBRARY[LIBRARY.index("@db.register") :].partition("\n\n\n")[0]
    head = "import debubble as db\nfrom debubble.core.sequence import *\n"
    try:
        exec(compile(head + own, "README.md", "exec"), {})
        mine = db.make("mine", ranks=4, microbatches=8)
    finally:
        registry._ENTRIES.pop("mine", None)
    assert db.check(mine).ok
    warm_up = [str(program).partition("B")[0].count("F") for program in mine.rows()]
    assert warm_up == [5, 4, 3, 2]


def test_the_demo_is_what_the_readme_says() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "examples/zero-bubble/gpt-6.2b-m24.yaml" in recipe
    assert "$(BIN)/activate" in recipe
    assert "8 A100s" in load_costs(ROOT / "examples/zero-bubble/gpt-6.2b-m24.yaml").name


def test_files_that_are_linked_exist() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target
