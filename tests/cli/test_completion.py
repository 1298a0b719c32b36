"""What a shell offers on Tab."""

from __future__ import annotations

import pytest

from debubble.cli.app import COMMANDS, app
from debubble.planner.hardware.gpus import GPUS
from debubble.planner.model.files import shipped_models
from debubble.schedules import registry


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Words offered for a line, as bash asks for them; none means files."""

    def call(line: str) -> list[str]:
        monkeypatch.setenv("_DEBUBBLE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        with pytest.raises(SystemExit):
            app(prog_name="debubble")
        out, err = capsys.readouterr()
        assert err == ""
        return out.split()

    return call


def test_commands(offered) -> None:
    assert offered("debubble ") == list(COMMANDS)
    assert offered("debubble s") == ["schedules", "simulate", "serve", "sweep"]


def test_schedules(offered) -> None:
    names = list(registry.entries())
    for command in ("simulate", "draw", "check", "export", "schedules"):
        assert offered(f"debubble {command} zb-") == [n for n in names if n.startswith("zb-")]
    assert offered("debubble compare gpipe 1f1b ") == names


def test_values_of_options(offered) -> None:
    assert offered("debubble plan --gpu h") == [name for name in GPUS if name.startswith("h")]
    assert offered("debubble plan qwen") == [n for n in shipped_models() if n.startswith("qwen")]
    assert offered("debubble simulate --p2p-mode b") == ["blocking"]
    assert "--memory" in offered("debubble compare 1f1b --mem")


def test_files_where_no_word_fits(offered) -> None:
    for line in ("draw orders/best", "draw my.py:", "compare 1f1b --costs ", "costs mine"):
        assert offered(f"debubble {line}") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_shown(shell: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    with pytest.raises(SystemExit) as ended:
        app(["--show-completion"], prog_name="debubble")
    assert ended.value.code == 0
    assert "_DEBUBBLE_COMPLETE=complete_" in capsys.readouterr().out
