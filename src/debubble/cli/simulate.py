"""``debubble simulate``: one schedule in numbers."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import Any

import numpy as np

from debubble.cli.app import command
from debubble.cli.options import AsJson, Inputs, ScheduleName, Setup, with_setup
from debubble.cli.output import print_json
from debubble.cli.progress import steps
from debubble.engine.timeline import Timeline


@with_setup
def simulate(schedule: ScheduleName, setup: Setup, as_json: AsJson = False) -> None:
    """Simulate a schedule: time and memory.

    Closed forms of the schedule stand beside what the simulation says.
    """
    inputs = setup.read()
    with steps(3) as step:
        step(f"making {schedule}")
        made = inputs.schedule(schedule)
        step(f"simulating {len(made):,} actions")
        timeline = inputs.simulate(made, schedule)
        step("measuring")
        text = "" if as_json else _text(timeline, inputs)
        data = _data(timeline, inputs) if as_json else {}
    if as_json:
        print_json(data)
    else:
        print(text)


def _data(timeline: Timeline, inputs: Inputs) -> dict[str, Any]:
    from debubble.analysis.summary import summary

    data = summary(timeline, inputs.memory)
    units = {"time_unit": inputs.time_unit, "memory_unit": inputs.memory_unit}
    data["conventions"] |= {key: unit for key, unit in units.items() if unit}
    data["costs"] = inputs.source or None
    data["memory_limit"] = inputs.memory
    data["fits"] = not _above(timeline, inputs.memory) if inputs.memory else None
    return data


def _text(timeline: Timeline, inputs: Inputs) -> str:
    from debubble.analysis.summary import report

    lines = [report(timeline, time_unit=inputs.time_unit, limit=inputs.memory)]
    if inputs.source:
        lines.append(f"costs: {inputs.source}")
    if inputs.memory is not None:
        above = _above(timeline, inputs.memory)
        unit = inputs.memory_unit
        if timeline.table.costs.activation is None:
            unit = "activation units"
        limit = f"memory limit {inputs.memory:g} {unit}".rstrip()
        lines.append(f"{limit}: {f'exceeded on {_ranks(above)}' if above else 'kept by all ranks'}")
    return _wrapped("\n".join(lines))


def _wrapped(text: str) -> str:
    """The text with the conventions behind the last table broken at a terminal's width."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return text
    width = max(40, shutil.get_terminal_size().columns)
    tables, gap, words = text.rpartition("\n\n")
    lines = [
        line for part in words.split("\n")
        for line in textwrap.wrap(part, width, subsequent_indent="  ", break_long_words=False)
    ]  # fmt: skip
    return tables + gap + "\n".join(lines)


def _above(timeline: Timeline, limit: float | None) -> list[int]:
    """Ranks that hold more than a limit."""
    from debubble.analysis.check import TOLERANCE

    assert limit is not None, "asked only when there is a limit"
    above = np.flatnonzero(timeline.peak_activation > limit * (1 + TOLERANCE))
    found: list[int] = above.tolist()
    return found


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return "ranks " + ", ".join(map(str, ranks))


app = command(
    simulate,
    [
        "simulate 1f1b -p 8 -m 32",
        "simulate interleaved-1f1b -p 8 -m 32 -v 2 --rank-times F=2,I=2,W=2,p2p=0.1",
        "simulate 1f1b -p 8 -m 32 --recompute full --recompute-at with-backward",
        "simulate zb-h1 --costs examples/zero-bubble/gpt-28.3b-m96.yaml --json",
    ],
)
