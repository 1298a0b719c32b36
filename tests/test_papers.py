"""What docs/papers.md shows works as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from debubble.cli.app import app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.slow
def test_commands_write_what_they_say(here: Path) -> None:
    commands = re.findall(r"^debubble (.*)$", TEXT, re.M)
    assert len(commands) == 5
    for line in commands:
        result = CliRunner().invoke(app, shlex.split(line))
        assert result.exit_code == 0, f"{line}\n{result.output}"
    table, bibliography = (
        (here / name).read_text(encoding="utf-8") for name in ("table.tex", "schedules.bib")
    )
    [compared] = (line for line in commands if line.startswith("compare "))
    assert f"% command: debubble {compared}\n" in table
    assert "costs: GPT 6.2B on 8 A100s" in table
    cited = {key for keys in re.findall(r"\\cite\{(.*?)\}", table) for key in keys.split(",")}
    assert cited == set(re.findall(r"^@\w+\{(\w+),", bibliography, re.M))
    assert b"debubble draw zb-v -p 4 -m 8" in (here / "column.pdf").read_bytes()


def test_python_runs(here: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(code, {})
    text = (here / "table.tex").read_text(encoding="utf-8")
    assert r"\caption{Schedules on eight stages}" in text
    assert r"~\cite{qi2024zero}" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "x.tex", "--width", "3in"], "--width is for"),
        (["--bibtex", "x.txt"], "--bibtex 'x.txt': a bibliography is written as .bib"),
        (["--bibtex", "no/x.bib"], "there is no folder 'no'"),
    ],
)
def test_what_cannot_be_written_is_refused_first(
    words: list[str], message: str, here: Path
) -> None:
    result = CliRunner().invoke(app, ["compare", "1f1b", "-p", "2", "-m", "2", *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert {path.name for path in here.iterdir()} == {"examples"}
