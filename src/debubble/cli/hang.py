"""``debubble hang``: the rank and action that a job waits for, from dumps of its messages."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from debubble.analysis.layout import line_width
from debubble.analysis.question import OPTIONS
from debubble.cli.app import command
from debubble.cli.options import AsJson, Setup, Text, takes, with_rows
from debubble.cli.output import print_json
from debubble.core.errors import ParameterError
from debubble.diagnosis.hang.dumps import Dump, empty_dumps, read_dumps
from debubble.diagnosis.hang.explain import explain_hang
from debubble.diagnosis.hang.pipelines import ranks_that_talk
from debubble.interchange.files import is_foreign
from debubble.lowering.chain import LOWERINGS

BESIDE = "schedule.json"
"""File with the schedule that our own runtime writes next to its dumps."""

READ = ("ranks", "microbatches", "chunks", "iterations", "option", "group_size", "p2p_mode")
"""Options of a question that say which schedule ran, and how."""

ROWS = [row for row in OPTIONS if row.name in READ]
ROWS += [row for row in LOWERINGS if row.name == "transfers" and row not in ROWS]


def hang(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder with the ranks' dumps.")],
    setup: Setup,
    schedule: Annotated[
        Text, takes("SCHEDULE", "Schedule of the job: name, file, file.py:function.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find out which rank a hanging job waits for.

    Names the action at which it stopped. Reads dumps of PyTorch's Flight Recorder, pickled or as
    JSON, and those of debubble's runtime. The k-th message between two ranks is matched with the
    k-th one of the schedule.
    """
    answer_hang(path, schedule, setup, as_json)


def answer_hang(path: str, schedule: str | None, setup: Setup, as_json: bool) -> None:
    """Read dumps, and print why their job hangs."""
    dumps = read_dumps(path)
    made = _inputs(path, schedule, setup, dumps)
    mode = setup["p2p_mode"]
    inputs = made[0].read()
    report = explain_hang(dumps, inputs.of(made[1]).made, inputs.mode if mode else None)
    report = replace(report, empty=empty_dumps(path, dumps))
    if as_json:
        print_json(report.to_dict())
    else:
        print(report.text(line_width()))


def _inputs(
    path: str, schedule: str | None, setup: Setup, dumps: list[Dump]
) -> tuple[Setup, str]:  # fmt: skip
    """Return the options of the schedule that ran, and its name; ranks are found in the dumps."""
    if schedule is None:
        beside = Path(path) / BESIDE
        if not beside.is_file():
            raise ParameterError(
                f"which schedule ran? debubble hang {shlex.quote(path)} --schedule 1f1b -m 8, or "
                "its .csv or .json file"
            )
        return setup, str(beside)
    if is_foreign(schedule):
        return setup, schedule
    if setup["microbatches"] is None:
        raise ParameterError(
            f"'{schedule}' needs its number of microbatches: debubble hang "
            f"{shlex.quote(path)} --schedule {shlex.quote(schedule)} -m 8"
        )
    if setup["ranks"] is None:
        setup = setup.but(ranks=str(ranks_that_talk(dumps)))
    return setup, schedule


app = command(
    with_rows(hang, "setup", ROWS, Setup),
    [
        "hang dumps --schedule 1f1b -p 4 -m 8",
        "hang dumps --schedule schedule.csv",
        "hang dumps --schedule 1f1b -m 8 --p2p-mode pair --json",
    ],
)
