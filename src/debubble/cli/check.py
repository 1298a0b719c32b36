"""``debubble check``: completeness, deadlocks and memory of a schedule."""

from __future__ import annotations

import typer

from debubble.analysis.layout import line_width, wrap
from debubble.analysis.metrics import MODES, in_short, memory_text
from debubble.cli.app import command
from debubble.cli.options import AsJson, ScheduleName, Setup, with_setup
from debubble.cli.output import print_json
from debubble.cli.progress import phases

PROBLEMS = 1


@with_setup
def check(schedule: ScheduleName, setup: Setup, as_json: AsJson = False) -> None:
    """Check that a schedule runs and is complete.

    Exits with 1 when there is a problem, and with 2 when the schedule cannot be read or made.
    """
    inputs = setup.read()
    with phases(2) as phase:
        phase(f"reading {schedule}")
        made = inputs.of(schedule).made
        phase(f"checking {len(made):,} actions")
        report = inputs.verdict(made)
    words = {
        "p2p": f"{inputs.mode}: {MODES[inputs.mode]}",
        "memory": memory_text(inputs.costs_of(made), made),
    }
    if as_json:
        asked = {"p2p_mode": inputs.mode, "memory_limit": inputs.memory}
        print_json(report.to_dict() | asked | {"conventions": words})
    else:
        print(report)
        print("\n".join(wrap(in_short(words), line_width(), 2)))
    if not report.ok:
        raise typer.Exit(PROBLEMS)


app = command(
    check,
    ["check dualpipe-v -p 4 -m 8", "check schedule.csv", "check schedule.json --memory 4 --json"],
)
