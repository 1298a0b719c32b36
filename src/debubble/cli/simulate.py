"""``debubble simulate``: one schedule in numbers."""

from __future__ import annotations

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

    data = summary(timeline)
    data["costs"] = inputs.source or None
    data["memory_limit"] = inputs.memory
    data["fits"] = not _above(timeline, inputs.memory) if inputs.memory else None
    return data


def _text(timeline: Timeline, inputs: Inputs) -> str:
    from debubble.analysis.layout import line_width, wrap
    from debubble.analysis.metrics import amount_text
    from debubble.analysis.summary import report

    width = line_width()
    lines = [report(timeline, width=width)]
    if inputs.source:
        lines += wrap(f"costs: {inputs.source}", width, 2)
    if inputs.memory is not None:
        above = _above(timeline, inputs.memory)
        limit = f"memory limit {amount_text(inputs.memory, timeline.table.costs)}"
        lines.append(f"{limit}: {f'exceeded on {_ranks(above)}' if above else 'kept by all ranks'}")
    return "\n".join(lines)


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
