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
    chain.lowering_row(
        "stamp", "COLOUR", "Stamp it red or blue.", read, apply=apply, on_page=choice
    )
)
"""


COMMANDS = """
import io, json, shlex
from contextlib import redirect_stderr, redirect_stdout
from debubble.cli import main

found = []
for line in sys.argv[1:]:
    sys.argv = ["debubble", *shlex.split(line)]
    code, out, err = 0, io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    found.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(found))
"""


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", DUMMY + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def debubble(*lines: str) -> Any:
    """Exit code, output and errors of some command lines, one after the other in one process."""
    return json.loads(run(COMMANDS, *lines))


@pytest.mark.processes
def test_every_command_with_schedules_has_the_flag() -> None:
    names = ("simulate", "compare", "check", "export", "draw", "run")
    for name, (_, out, _) in zip(names, debubble(*(f"{n} --help" for n in names)), strict=True):
        assert "--stamp COLOUR Stamp it red or blue." in " ".join(out.split()), name


@pytest.mark.processes
def test_flags_and_json_have_it() -> None:
    simulated, compared, optimized = debubble(
        "simulate 1f1b -p 2 -m 4 --stamp red --json",
        "compare 1f1b -p 2 -m 4 --stamp green",
        "optimize -p 2 -m 4 --stamp red",
    )
    assert json.loads(simulated[1])["options"] == {"stamp": "red"}
    assert compared == [2, "", "debubble: --stamp is 'green'; give red or blue\n"]
    assert optimized[2] == "debubble: --stamp is for published schedules; leave it out\n"


@pytest.mark.processes
def test_comparisons_and_the_playground_have_it() -> None:
    found = run("""
import debubble as db
from debubble.playground.controls import choices
from debubble.playground.state import PageState
for row in db.compare(["1f1b", "gpipe"], ranks=2, microbatches=2, stamp="blue").rows:
    print(row.schedule.options)
state = PageState.model_validate({"schedules": [{"name": "1f1b"}], "stamp": "red"})
print(state.lowering["stamp"])
print(choices()[-1])
""")
    *lines, control = found.splitlines()
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
