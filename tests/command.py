"""Running a command in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from debubble.cli.app import app
from tests.forkserver import serve

LESS = {
    "optimize": ["--effort", "0.01", "--time-limit", "0.3"],
    "plan": ["--schedule", "1f1b", "--tp", "4", "--cp", "1", "--microbatch-size", "1"],
}
"""What makes examples of commands search less; searching is tested elsewhere."""


@dataclass(frozen=True)
class Result:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


def call(*words: object) -> Result:
    """Run a command in this process; unexpected errors go through to the test."""
    arguments = [str(word) for word in words]
    if arguments[:1] == ["run"]:
        serve()  # its ranks have the server that those of other tests in this process have
    env = {"DEBUBBLE_DEBUG": "1", "COLUMNS": "100"}
    result = CliRunner(env=env).invoke(app, arguments, prog_name="debubble")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Result(result.exit_code, result.stdout, result.stderr)
