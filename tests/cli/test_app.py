"""The command as a whole: help, version, errors."""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import debubble
from debubble.cli import app as application
from debubble.cli import errors
from debubble.cli.panels import ORDER
from tests.command import LESS
from tests.diagnosis.hang.recorded import of_schedule, write
from tests.diagnosis.hang.recorded import run as execute

Run = Callable[..., Any]
COMMANDS = application.COMMANDS


def test_without_a_command_the_help_is_printed(run: Run) -> None:
    plain, long, short = run(), run("--help"), run("-h")
    assert plain.code == long.code == short.code == 0
    assert plain.out == long.out == short.out
    for name in COMMANDS:
        assert f"\n  {name} " in plain.out
    assert "..." not in plain.out.split("Commands:")[1].split("Examples:")[0]


def test_version(run: Run) -> None:
    assert run("--version").out == f"debubble {debubble.__version__}\n"


def test_the_list_of_commands_says_what_each_says(run: Run) -> None:
    for name, line in COMMANDS.items():
        assert line in " ".join(run(name, "--help").out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: debubble {name} ")
    assert f"Examples:\n    debubble {name}" in result.out
    assert "\b" not in result.out


ONE_SCREEN = 52
"""Lines of a help that needs no scrolling."""


def test_the_help_of_a_comparison_is_one_screen(run: Run) -> None:
    lines = run("compare", "--help").out.splitlines()
    assert len(lines) <= ONE_SCREEN


@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_has_every_option_in_a_panel(run: Run, name: str) -> None:
    module = importlib.import_module(f"debubble.cli.{name}")
    options = [p for p in typer.main.get_command(module.app).params if not p.hidden]
    plain, whole = run(name, "--help").out, run(name, "--help-all")
    if whole.code:
        whole = run(name, "--help")
    for option in options:
        if option.param_type_name == "option":
            assert f" {option.opts[-1]}" in whole.out
    assert set(re.findall("^([A-Z].*):$", whole.out, re.M)) <= set(ORDER)
    assert len(plain) <= len(whole.out)


def test_no_help_says_hold_it_fixed_or_has_defaults_in_brackets_of_their_own(run: Run) -> None:
    helps = "".join(run(name, "--help").out for name in COMMANDS)
    assert "Hold it" not in helps
    assert "[default: (" not in helps


def examples(run: Run) -> list[list[str]]:
    lines = [line for name in COMMANDS for line in run(name, "--help").out.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("    debubble ")]


@pytest.mark.processes
def test_the_examples_of_the_help_run(
    run: Run, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathlib import Path

    from debubble.interchange.trace_events import run_trace, write_trace

    (tmp_path / "examples").symlink_to(Path(__file__).parents[2] / "examples")
    monkeypatch.chdir(tmp_path)
    debubble.make("1f1b", ranks=4, microbatches=8).save("schedule.csv")
    debubble.make("1f1b", ranks=4, microbatches=8).save("schedule.json")
    run_of_it = debubble.simulate(debubble.load("schedule.json"))
    times = {"measured": (run_of_it.start, run_of_it.end)}
    write_trace(run_trace(run_of_it.schedule, times), "run.json.gz")
    hung = of_schedule(debubble.load("schedule.json"), stop=(0, 2, 0, "2F3"))
    write(execute(hung), tmp_path / "dumps")
    Path("last.json").write_text(run("trace", "run.json.gz", "--json").out)
    found = examples(run)
    assert len(found) >= 3 * len(COMMANDS) - 3
    for words in found:
        # Servers run until somebody ends them: tests/playground and test_mcp.py start them.
        assert words[0] in ("serve", "mcp") or run(*words, *LESS.get(words[0], [])).code == 0, words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["simulat"], "unknown command 'simulat'; did you mean 'simulate'?"),
        (["simulate"], "missing argument 'SCHEDULE'; see debubble simulate --help"),
        (["check"], "missing argument 'SCHEDULE...'; see debubble check --help"),
        (["simulate", "1f1b", "--rank", "3"], "no such option: --rank"),
        (["simulate", "1f1b", "-p"], "option '-p' requires an argument"),
        (["simulate", "1f1b", "gpipe"], "got unexpected extra argument"),
        (["--verbose"], "no such option: --verbose"),
    ],
)
def test_bad_usage_is_one_line_with_the_way_to_the_help(
    refused: Run, words: list[str], message: str
) -> None:
    found = refused(*words)
    assert found.startswith(message)
    assert len(found.splitlines()) == 1


def broken(error: BaseException) -> Run:
    def raises(*_: object, **__: object) -> None:
        raise error

    return raises


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RuntimeError("what?"), 70, "debubble: internal error: RuntimeError: what?\nthis is a bug"),
        (MemoryError(), 2, "debubble: not enough memory for this size; use fewer ranks or"),
        (KeyboardInterrupt(), 130, "debubble: interrupted"),
        (OSError(28, "No space left", "x.png"), 2, "debubble: 'x.png': No space left\n"),
        (OSError("strange"), 2, "debubble: strange\n"),
    ],
)
def test_no_error_shows_a_traceback(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    message: str,
) -> None:
    monkeypatch.delenv("DEBUBBLE_DEBUG", raising=False)
    with pytest.raises(SystemExit) as caught, errors.clean_exit():
        broken(error)()
    captured = capsys.readouterr()
    assert caught.value.code == code
    assert captured.err.startswith(message)
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_bugs_go_through_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUBBLE_DEBUG", "1")
    with pytest.raises(RuntimeError, match="what"), errors.clean_exit():
        broken(RuntimeError("what?"))()


@pytest.mark.parametrize("where", ["nowhere/x", "folder", "locked/x"])
@pytest.mark.parametrize(
    ("words", "ending"),
    [
        ("draw 1f1b -p 2 -m 2 -o", ".png"),
        ("compare 1f1b gpipe -p 2 -m 2 -o", ".html"),
        ("export 1f1b -p 2 -m 2 --to json -o", ".json"),
        ("export 1f1b -p 2 -m 2 --to chrome-trace -o", ".json.gz"),
        ("optimize -p 2 -m 2 --no-cache -o", ".csv"),
        ("optimize -p 2 -m 2 --no-cache --memory sweep -o", ".svg"),
        ("run 1f1b -p 2 -m 2 --trace", ".json"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_made(
    refused: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, ending: str,
    where: str,
) -> None:  # fmt: skip
    import debubble as db
    from debubble.cli.options import Inputs

    def make(*_: Any, **__: Any) -> None:
        raise AssertionError("began to work")

    monkeypatch.setattr(Inputs, "of", make)
    monkeypatch.setattr(db, "optimize", make)
    (tmp_path / f"folder{ending}").mkdir()
    (tmp_path / "locked").mkdir()
    may = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: "locked" not in str(path) and may(path, mode)
    )
    message = refused(*words.split(), tmp_path / f"{where}{ending}")
    reason = {
        "nowhere/x": "there is no folder", "folder": "is a folder", "locked/x": "permission denied"
    }  # fmt: skip
    assert reason[where] in message
