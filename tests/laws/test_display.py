"""Law of display: options that only show an answer change no number of it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from debubble.analysis.question import OPTIONS
from debubble.cli import check, compare, simulate
from tests.laws.surfaces import PAYING, Case, answered

COMMANDS = {"simulate": simulate.simulate, "compare": compare.compare, "check": check.check}

PHYSICS = {row.name for row in OPTIONS}
"""Options of a question; of the others none may change an answer."""

TYPED: dict[str, str] = {
    "actions": "FOLDER/actions.csv", "output": "FOLDER/out.svg", "bibtex": "FOLDER/out.bib",
}  # fmt: skip
"""Values of options of display that are no pictures'."""

ANSWER = ("makespan", "bubble_ratio", "peak_activation", "rows", "best", "ok", "problems")


def displays(command: str) -> list[str]:
    parameters = inspect.signature(COMMANDS[command]).parameters
    others = {"schedule", "schedules", "as_json", "late"}
    return [name for name in parameters if name not in PHYSICS | others]


def words_of(name: str, default: Any, folder: Path) -> list[str] | None:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(default, bool):
        return [flag if not default else f"--no-{flag[2:]}"]
    if name in TYPED:
        return [flag, TYPED[name].replace("FOLDER", str(folder))]
    return None


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command in COMMANDS for name in displays(command)]
)
def test_display_changes_no_answer(command: str, name: str, tmp_path: Path) -> None:
    default = inspect.signature(COMMANDS[command]).parameters[name].default
    words = words_of(name, default, tmp_path)
    if words is None:
        pytest.skip(f"{name} has a value of its own, which the tests of pictures give it")
    base = [command, "1f1b", *Case("1f1b", PAYING).words(), "--json"]
    if command == "compare" and name not in TYPED:
        base += ["-o", str(tmp_path / "picture.svg")]
    plain = answered(*base).data
    shown = answered(*base, *words).data
    for key in ANSWER:
        assert shown.get(key) == plain.get(key), f"{command} {' '.join(words)} changes {key}"
