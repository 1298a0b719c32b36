"""``debubble check``: completeness, deadlocks, memory and time of schedules."""

from __future__ import annotations

from typing import Annotated

import typer

from debubble.analysis.check import Report
from debubble.analysis.layout import line_width, wrap
from debubble.analysis.metrics import MODES, in_short, memory_text
from debubble.cli.app import command
from debubble.cli.options import AsJson, ScheduleNames, Setup, Text, takes, with_setup
from debubble.cli.output import print_json
from debubble.cli.progress import phases
from debubble.core.options import Real

PROBLEMS = 1


@with_setup
def check(
    schedules: ScheduleNames,
    setup: Setup,
    makespan: Annotated[Text, takes("TIME", "Limit of the simulated step time.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that schedules are complete and cannot deadlock.

    Exits with 1 if there is a problem, and with 2 if a schedule cannot be read or made.
    """
    inputs = setup.read()
    most = None if makespan is None else Real().read("--makespan", makespan)
    found: list[tuple[Report, dict[str, str]]] = []
    with phases(2 * len(schedules)) as phase:
        for name in schedules:
            phase(f"reading {name}")
            made = inputs.of(name, schedules).made
            phase(f"checking {len(made):,} actions")
            words = {
                "p2p": f"{inputs.mode}: {MODES[inputs.mode]}",
                "memory": memory_text(inputs.costs_of(made), made),
            }
            found.append((inputs.verdict(made, most), words))
    ok = all(report.ok for report, _ in found)
    if as_json:
        asked = {"p2p_mode": inputs.mode, "memory_limit": inputs.memory, "makespan_limit": most}
        every = [report.to_dict() | asked | {"conventions": words} for report, words in found]
        print_json(every[0] if len(every) == 1 else {"ok": ok, "checked": every})
    else:
        for name, (report, _) in zip(schedules, found, strict=True):
            print(f"{name}: {report}" if len(found) > 1 else report)
        if len(found) == 1:
            for line in in_short(found[0][1]):
                print("\n".join(wrap(line, line_width(), 2)))
    if not ok:
        raise typer.Exit(PROBLEMS)


app = command(
    check,
    [
        "check dualpipe-v -p 4 -m 8",
        "check schedule.csv schedule.json --memory 4 --makespan 40",
        "check schedule.json --memory 4 --json",
    ],
)
