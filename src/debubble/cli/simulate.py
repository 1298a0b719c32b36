"""``debubble simulate``: one schedule in numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from debubble.cli.app import command
from debubble.cli.options import AsJson, Inputs, Late, ScheduleName, Setup, Text, takes, with_setup
from debubble.cli.output import note, print_json
from debubble.cli.progress import phases
from debubble.core.errors import FormatError
from debubble.engine.memory import ROUNDING, Limit, memory_limits
from debubble.engine.timeline import Timeline

if TYPE_CHECKING:
    from debubble.engine.action_table import ActionTable
    from debubble.engine.ensembles import Spread

TIMES = ("start", "end", "duration")


TERMINAL = "-"
"""Value of ``--actions`` without a file: standard output."""


@with_setup
def simulate(
    schedule: ScheduleName,
    setup: Setup,
    as_json: AsJson = False,
    actions: Annotated[
        Text,
        takes("[FILE]", "Start and end of every action: to the terminal, or a .csv or .json file."),
    ] = None,
    late: Late = False,
) -> None:
    """Simulate a schedule: time and memory.

    Closed forms of the schedule stand beside what the simulation says. With --jitter or --slow,
    step times of many samples, too.
    """
    inputs = setup.read()
    listed = actions == TERMINAL
    if actions is not None and not listed and not actions.lower().endswith((".csv", ".json")):
        raise FormatError(f"'{actions}': actions are written as .csv or .json")
    with phases(3) as phase:
        phase(f"making {schedule}")
        question = inputs.of(schedule, late=late)
        phase(f"simulating {len(question.made):,} actions")
        timeline = inputs.simulate(question, schedule)
        phase("measuring")
        spread = question.spread
        data = _data(timeline, inputs) if as_json else {}
        if as_json and spread is not None:
            data["jitter"] = spread.to_dict()
        text = ""
        if actions is not None:
            phase("listing actions")
            table = timeline.actions()
            if not listed:
                from debubble.interchange.files import write_text

                write_text(actions, _written(table, timeline, actions))
            elif as_json:
                data["action_times"] = table.records()
            else:
                text = _listed(table, timeline)
        if not as_json:
            text = text or _text(timeline, inputs, spread)
    if as_json:
        print_json(data)
    else:
        print(text)
    if actions is not None and not listed:
        note(f"wrote {actions}")


def _listed(table: ActionTable, timeline: Timeline) -> str:
    """The table for a terminal."""
    from debubble.analysis.layout import table as aligned
    from debubble.analysis.summary import heading
    from debubble.core.units import number

    unit = timeline.table.costs.time_unit
    names = list(table.columns)
    heads = [f"{name} [{unit}]" if unit and name in TIMES else name for name in names]
    if timeline.schedule.slices == 1:
        heads.remove("slice")
    rows = [heads]
    for row in table.rows():
        cells = dict(zip(names, row, strict=True))
        if timeline.schedule.slices == 1:
            del cells["slice"]
        rows.append(
            [number(value) if name in TIMES else str(value) for name, value in cells.items()]
        )
    left = tuple(index for index, name in enumerate(heads) if name in ("action", "kind"))
    return "\n".join([heading(timeline.schedule), "", *aligned(rows, left)])


def _written(table: ActionTable, timeline: Timeline, path: str) -> str:
    """The table for a file, in the format of its ending."""
    if path.lower().endswith(".csv"):
        return table.csv()
    from debubble.analysis.metrics import units

    head = {"schedule": timeline.schedule.name, "units": units(timeline.table.costs)}
    lines = ",\n".join(json.dumps(record) for record in table.records())
    return f'{json.dumps(head)[:-1]}, "actions": [\n{lines}\n]}}\n'


def _data(timeline: Timeline, inputs: Inputs) -> dict[str, Any]:
    from debubble.analysis.summary import summary

    data = summary(timeline)
    data["costs"] = inputs.source or None
    data["memory_limit"] = inputs.memory
    data["fits"] = not _above(timeline, inputs.memory) if inputs.memory is not None else None
    return data


def _text(timeline: Timeline, inputs: Inputs, spread: Spread | None) -> str:
    from debubble.analysis.layout import line_width, wrap
    from debubble.analysis.metrics import amount_text, ranges
    from debubble.analysis.spread import spread_lines
    from debubble.analysis.summary import report

    width = line_width()
    lines = [report(timeline, width=width)]
    if spread is not None:
        lines += ["", *spread_lines(spread, timeline.table.costs.time_unit, width)]
    if inputs.source:
        lines += wrap(f"costs: {inputs.source}", width, 2)
    if inputs.memory is not None:
        above = _above(timeline, inputs.memory)
        limit = f"memory limit {amount_text(inputs.memory, timeline.table.costs)}"
        where = f"rank{'s' if len(above) > 1 else ''} {ranges(above)}" if above else ""
        lines.append(f"{limit}: {f'exceeded on {where}' if above else 'kept by all ranks'}")
    return "\n".join(lines)


def _above(timeline: Timeline, limit: Limit) -> list[int]:
    """Ranks that hold more than a limit."""
    limits = memory_limits(limit, timeline.schedule.ranks)
    assert limits is not None, "asked only when there is a limit"
    above = np.flatnonzero(timeline.peak_activation > limits * (1 + ROUNDING))
    found: list[int] = above.tolist()
    return found


app = command(
    simulate,
    [
        "simulate 1f1b -p 8 -m 32",
        "simulate interleaved-1f1b -p 8 -m 32 -v 2 --rank-times F=2,I=2,W=2,p2p=0.1",
        "simulate 1f1b -p 8 -m 32 --recompute full --recompute-at with-backward",
        "simulate 1f1b -p 8 -m 32 --jitter normal:3% --replicas 64 --slow copy.rank2=1.2",
        "simulate 1f1b -p 4 -m 8 --actions",
        "simulate 1f1b -p 4 -m 8 --actions actions.csv",
        "simulate zb-h1 --costs examples/zero-bubble/gpt-28.3b-m96.yaml --json",
    ],
    bare={"--actions": TERMINAL},
)
