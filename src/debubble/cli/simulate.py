"""``debubble simulate``: one schedule in numbers."""

from __future__ import annotations

import json
from typing import Annotated, Any

from debubble.analysis.layout import line_width, unstyled, wrap
from debubble.analysis.layout import table as aligned
from debubble.analysis.metrics import above_limit, kept_text, units
from debubble.analysis.question import Question
from debubble.analysis.results import spread_lines
from debubble.analysis.summary import heading, report, summary
from debubble.cli.app import command
from debubble.cli.options import (
    AsJson,
    Inputs,
    Late,
    ScheduleName,
    Setup,
    Text,
    Wide,
    takes,
    with_setup,
)
from debubble.cli.output import in_color, note, print_json, styled
from debubble.cli.panels import OUTPUT
from debubble.cli.progress import phases
from debubble.core.errors import FormatError
from debubble.core.layers import cut_words
from debubble.core.units import number
from debubble.engine.action_table import ActionTable
from debubble.engine.timeline import Timeline
from debubble.interchange.files import write_text

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
        takes(
            "[FILE]",
            "Print start and end of every action, or write them: .csv, .json.",
            panel=OUTPUT,
        ),
    ] = None,
    late: Late = False,
    wide: Wide = False,
) -> None:
    """Simulate the time and memory of a schedule.

    Prints simulated numbers next to the schedule's closed forms. With --jitter or --slow, also
    prints step times of many samples.
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
        data = _data(timeline, inputs, question) if as_json else {}
        if as_json and spread is not None:
            data["jitter"] = spread.to_dict()
        text = ""
        if actions is not None:
            phase("listing actions")
            table = timeline.actions()
            if not listed:
                write_text(actions, _written(table, timeline, actions))
            elif as_json:
                data["action_times"] = table.records()
            else:
                text = _listed(table, timeline)
        if not as_json:
            text = text or _text(timeline, inputs, question, wide)
    if as_json:
        print_json(data)
    else:
        print(text)
    if actions is not None and not listed:
        note(f"wrote {actions}")


def _listed(table: ActionTable, timeline: Timeline) -> str:
    """Return the table for a terminal."""
    unit = timeline.table.costs.time_unit
    left_out = "slice" if timeline.schedule.slices == 1 else ""
    names = list(table.columns)
    shown = [name for name in names if name != left_out]
    rows = [[f"{name} [{unit}]" if unit and name in TIMES else name for name in shown]]
    for row in table.rows():
        cells = dict(zip(names, row, strict=True))
        rows.append([number(cells[n]) if n in TIMES else str(cells[n]) for n in shown])
    left = tuple(index for index, name in enumerate(shown) if name in ("action", "kind"))
    return "\n".join([heading(timeline.schedule), "", *aligned(rows, left)])


def _written(table: ActionTable, timeline: Timeline, path: str) -> str:
    """Return the table for a file, in the format of its ending."""
    if path.lower().endswith(".csv"):
        return table.csv()
    head = {"schedule": timeline.schedule.name, "units": units(timeline.table.costs)}
    lines = ",\n".join(json.dumps(record) for record in table.records())
    return f'{json.dumps(head)[:-1]}, "actions": [\n{lines}\n]}}\n'


def _data(timeline: Timeline, inputs: Inputs, question: Question) -> dict[str, Any]:
    data = summary(timeline)
    data["notes"] += inputs.unread(timeline.schedule)
    data["costs"] = inputs.source or None
    if question.cut:
        data["layers"] = list(question.cut)
    data["memory_limit"] = inputs.memory
    peak, limit = timeline.peak_activation, inputs.memory
    data["fits"] = None if limit is None else not above_limit(peak, limit)
    return data


def _text(timeline: Timeline, inputs: Inputs, question: Question, wide: bool) -> str:
    width, spread = line_width(), question.spread
    lines = [report(timeline, width=width, wide=wide, style=styled if in_color() else unstyled)]
    for text in inputs.unread(timeline.schedule):
        lines += wrap(f"note: {text}", width, 2)
    if spread is not None:
        lines += ["", *spread_lines(spread, timeline.table.costs.time_unit, width)]
    if question.cut:
        lines += wrap(f"layers × stages: {cut_words(question.cut)}", width, 2)
    if inputs.source:
        lines += wrap(f"costs: {inputs.source}", width, 2)
    if inputs.memory is not None:
        lines.append(kept_text(timeline.peak_activation, inputs.memory, timeline.table.costs))
    return "\n".join(lines)


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
