"""Law of effect: every value of an option changes an output of every command, or is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from debubble.analysis.question import OPTIONS
from debubble.core.options import OptionSpec
from tests.command import call
from tests.laws.surfaces import PAYING, SCHEDULES, Case, given, values_of, without

COMMANDS = {
    "simulate": ["--json"],
    "compare": ["--json"],
    "export": ["--to", "chrome-trace"],
    "draw": [],
}
"""Commands that answer questions; what they print is what an option has to change."""


NAMED = {"conventions", "p2p_mode", "otherData"}
"""Keys that repeat what was asked, whatever comes of it."""


def printed(command: str, name: str, case: Case) -> tuple[int, Any]:
    result = call(command, name, *case.words(), *COMMANDS[command])
    if result.code or not COMMANDS[command]:
        return result.code, result.out + result.err
    return 0, {key: value for key, value in result.data.items() if key not in NAMED}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: row.name)
def test_every_value_changes_something(row: OptionSpec, command: str, tmp_path: Path) -> None:
    if row.only and command not in row.only:
        pytest.skip(f"{command} has no {row.flag}")
    costs = {} if row.panel == "Costs" and row.name != "runtime" else PAYING
    modes = ({}, {"p2p_mode": "group"}) if row.name != "p2p_mode" else ({},)
    texts = [text for text in values_of(row, tmp_path) if text != row.neutral]
    asked = {text: given(row, text) if text else without(row) for text in [row.neutral, *texts]}
    idle = set(texts)
    for name, mode in product(SCHEDULES, modes):
        if not idle:
            break
        found = {
            text: printed(command, name, Case(name, costs | mode | more))
            for text, more in asked.items()
        }
        idle -= {text for text in idle if any(one != found[text] for one in found.values())}
    assert not idle, f"{row.flag} changes nothing"


@pytest.mark.parametrize("row", [row for row in OPTIONS if not row.in_search], ids=lambda r: r.name)
def test_a_search_refuses_what_it_does_not_read(row: OptionSpec, tmp_path: Path) -> None:
    for text in values_of(row, tmp_path):
        if row.only:
            continue
        result = call("optimize", "-p", "2", "-m", "2", row.flag, text)
        assert result.code == 2
        assert row.flag in result.err
