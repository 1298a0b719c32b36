"""An option of questions, added to a copy of the package as the guide says: a row and a field.

Nothing that answers questions may take it and answer as if it were not there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edited_package import environment_with

END_OF_ROWS = '\n)  # fmt: skip\n"""Options that belong'
ROW = """
    OptionSpec(
        "stretch", Whole(9), "N", "Factor of all times.", "Costs", example="2", neutral="1",
        in_search=False,
    ),"""
END_OF_FIELDS = "\n    layers: Layers | None = None\n"
FIELD = "\n    stretch: int | None = None"
COSTS = "compile_graph(self.made, self.p2p_mode), self.stage_costs"
EDITS = {
    "core/options.py": ((END_OF_ROWS, ROW + END_OF_ROWS),),
    "analysis/question.py": (
        (END_OF_FIELDS, FIELD + END_OF_FIELDS),
        (COSTS, f"{COSTS}.scaled(self.stretch or 1)"),
    ),
}

SCRIPT = """
import contextlib, io, json
import debubble as db
from debubble.cli.app import app
from debubble.playground.state import PageState
from debubble.sweeps.commands import compute
from debubble.sweeps.spec import spec_of

def typed(command, *more):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        app([command, "gpipe", "-p", "2", "-m", "2", "--times", "F=1,B=2", "--json", *more],
            prog_name="debubble")
    return json.loads(out.getvalue())

def swept(command, name, value):
    options = {name: value, "ranks": 2, "microbatches": 2, "costs": {"F": 1, "B": 2}}
    spec = spec_of({"command": command, "options": options, "grid": {"stretch": [1, 3]}})
    return [result.rows[0]["makespan"] for result in compute(command, {}, list(spec.points()))]

BOTH = (), ("--stretch", "3")
sizes = {"ranks": 2, "microbatches": 2}
compared = db.compare(["gpipe"], costs=db.Costs(F=1, B=2), stretch=3, **sizes)
page = PageState.model_validate({"schedules": [{"name": "gpipe"}], "stretch": 3, **sizes})
print(json.dumps({
    "simulate": [typed("simulate", *more)["makespan"] for more in BOTH],
    "compare": [typed("compare", *more)["rows"][0]["makespan"] for more in BOTH],
    "python": [9, compared.rows[0].makespan],
    "swept": swept("simulate", "schedule", "gpipe"),
    "swept comparisons": swept("compare", "schedules", ["gpipe"]),
    "page": [9, 9 * page.options["stretch"]],
}))
"""


@pytest.mark.processes
def test_everything_that_asks_questions_has_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment_with(EDITS, tmp_path),
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stderr
    found = json.loads(done.stdout)
    assert found == {surface: [9, 27] for surface in found}
