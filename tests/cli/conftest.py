"""Running the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command import Result, call


@pytest.fixture(scope="session")
def run() -> Callable[..., Result]:
    return call


@pytest.fixture(scope="session")
def refused(run: Callable[..., Result]) -> Callable[..., str]:
    """Run a command that must be refused; its message without the program's name."""

    def call(*words: object) -> str:
        result = run(*words)
        assert (result.code, result.out) == (2, "")
        lines = result.err.splitlines()
        assert 1 <= len(lines) <= 2
        assert lines[0].startswith("debubble: ")
        return result.err.removeprefix("debubble: ").rstrip("\n")

    return call


@pytest.fixture(scope="session")
def start() -> Callable[..., subprocess.Popen[str]]:
    """Start the installed command as a process of its own."""

    def call(*words: object, **options: Any) -> subprocess.Popen[str]:
        program = Path(sys.executable).with_name("debubble")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = os.environ | {"PYTHONWARNINGS": "error"} | options.pop("env", {})
        return subprocess.Popen(
            [program, *map(str, words)],
            env=env,
            # A test run in the background of a shell ignores Ctrl-C, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **pipes | options,
        )

    return call
