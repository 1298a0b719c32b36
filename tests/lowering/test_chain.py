"""A lowering is one row of a list: flags, comparisons and the playground have it with that."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from typing import Any

import pytest

import debubble as db
from debubble.lowering.chain import LOWERINGS, lower

# Added before anything reads the list, as a row in the file would be.
DUMMY = """
import sys
from dataclasses import replace
from debubble.lowering import chain

def apply(schedule, values, setting):
    return replace(schedule, options={**schedule.options, "stamp": values["stamp"]})

def read(flag, text):
    if text not in ("red", "blue"):
        raise chain.ParameterError(f"{flag} is '{text}'; give red or blue")
    return text

choice = chain.Choice("colour", {"red": "in red"}, none="plain", hint="Ink.")
chain.LOWERINGS.append(
    chain.Lowering("stamp", "COLOUR", "Stamp it red or blue.", read, apply, on_page=choice)
)
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", DUMMY + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def debubble(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run("from debubble.cli import main\nmain()", *arguments)


@pytest.mark.parametrize("command", ["simulate", "compare", "check", "export", "draw", "run"])
def test_every_command_with_schedules_has_the_flag(command: str) -> None:
    words = " ".join(debubble(command, "--help").stdout.split())
    assert "--stamp COLOUR Stamp it red or blue." in words


def test_flags_and_json_have_it() -> None:
    sizes = ("-p", 2, "-m", 4)
    found = json.loads(debubble("simulate", "1f1b", *sizes, "--stamp", "red", "--json").stdout)
    assert found["options"] == {"stamp": "red"}
    refused = debubble("compare", "1f1b", *sizes, "--stamp", "green")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "debubble: --stamp is 'green'; give red or blue\n"
    refused = debubble("optimize", *sizes, "--stamp", "red")
    assert refused.stderr == "debubble: --stamp is for published schedules; leave it out\n"


def test_comparisons_and_the_playground_have_it() -> None:
    found = run("""
import debubble as db
from debubble.playground.controls import choices
from debubble.playground.state import State
for row in db.compare(["1f1b", "gpipe"], ranks=2, microbatches=2, stamp="blue").rows:
    print(row.schedule.options)
state = State.model_validate({"schedules": [{"name": "1f1b"}], "stamp": "red"})
print(state.lowering["stamp"])
print(choices()[-1])
""")
    *lines, control = found.stdout.splitlines()
    assert lines == ["{'stamp': 'blue'}", "{'stamp': 'blue'}", "red"]
    assert ast.literal_eval(control) == {
        "name": "stamp", "label": "colour", "hint": "Ink.", "needs": None,
        "values": [("", "plain"), ("red", "in red")],
    }  # fmt: skip


def test_nothing_asked_for_is_nothing_done() -> None:
    schedule = db.make("1f1b", ranks=2, microbatches=2)
    nothing: dict[str, Any] = {lowering.name: None for lowering in LOWERINGS}
    assert lower(schedule, **nothing) is schedule


@pytest.mark.parametrize("call", [
    lambda: lower(db.make("1f1b", ranks=2, microbatches=2), shardin="ddp"),
    lambda: db.compare(["1f1b"], ranks=2, microbatches=2, shardin="ddp"),
])  # fmt: skip
def test_a_misspelt_lowering_is_named(call: Any) -> None:
    with pytest.raises(db.ParameterError, match="'shardin'; did you mean 'sharding'"):
        call()


def test_a_place_without_recomputes_is_refused_before_anything_is_made() -> None:
    with pytest.raises(db.ParameterError, match="no stage recomputes; give recompute='full'"):
        db.compare(["1f1b"], ranks=2, microbatches=2, recompute_at="bubbles")
