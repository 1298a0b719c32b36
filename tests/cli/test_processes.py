"""The installed command as a process: pipes, signals, encodings and what it imports."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from debubble.cli import progress

Start = Callable[..., subprocess.Popen[str]]
LONG = ("export", "1f1b", "-p", 16, "-m", 2000, "--to", "chrome-trace")
"""More output than a pipe holds: the process still runs when its first line is read."""


@pytest.mark.processes
def test_a_simulation_from_start_to_end(start: Start) -> None:
    process = start("simulate", "1f1b", "-p", 8, "-m", 64)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "makespan         213" in out


@pytest.mark.processes
def test_an_error_is_one_line(start: Start) -> None:
    process = start("simulate", "1f1b", "-p", 0, "-m", 64)
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert err == "debubble: ranks is 0; it goes from 1 to 4,096\n"


@pytest.mark.processes
def test_a_reader_that_goes_away_is_no_error(start: Start) -> None:
    process = start(*LONG)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("{")
    process.stdout.close()
    _, err = process.communicate()
    assert (process.returncode, err) == (141, "")


@pytest.mark.processes
def test_ctrl_c_ends_it_quietly(start: Start) -> None:
    process = start(*LONG)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("{")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err == "debubble: interrupted\n"


@pytest.mark.processes
def test_a_terminal_without_unicode_gets_question_marks(start: Start) -> None:
    process = start("simulate", "1f1b", "-p", 2, "-m", 4, env={"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "(m + p ? 1)(F + B)" in out


@pytest.mark.processes
def test_a_full_disk_is_reported(start: Start) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        process = start("simulate", "1f1b", "-p", 2, "-m", 4, "--json", stdout=full)
        _, err = process.communicate()
    assert process.returncode == 2
    assert err == "debubble: No space left on device\n"


@pytest.mark.processes
def test_a_small_simulation_imports_nothing_slow() -> None:
    code = (
        "import sys\n"
        "from debubble.cli import main\n"
        "sys.argv = ['debubble', 'simulate', '1f1b', '-p', '8', '-m', '64']\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "slow = ('numba', 'matplotlib', 'yaml', 'rich', 'tomllib', 'debubble.view')\n"
        "print([name for name in slow if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal; not in a fixture, because pytest sets it after those."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_slow_commands_show_the_step_they_are_at(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)

    def shows(text: str) -> bool:
        for _ in range(1000):
            if text in terminal.getvalue():
                return True
            time.sleep(0.02)
        return False

    with progress.phases(2) as step:
        step("making a [schedule]")
        assert shows("making a [schedule]")
        step("simulating")
        assert shows("simulating")


def test_quick_commands_and_pipes_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    with progress.phases(1) as step:
        step("quick")
    assert terminal.getvalue() == ""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with progress.phases(1) as step:
        step("piped")
        time.sleep(0.1)
    assert terminal.getvalue() == ""
