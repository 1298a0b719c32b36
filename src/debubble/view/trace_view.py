"""A diagnosis as data for a page: observed above predicted timeline, and the findings.

The browser page and the playground show it from the same data. The component draws marks where a
rank is idle, in place of the causes that follow from the schedule, and at the foot of actions where
one lies over an action; longer times than in the other timeline it shades.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from debubble.analysis.bubbles import MEMORY, P2P, bubbles
from debubble.analysis.layout import Column, html_table
from debubble.core.actions import kinds_of
from debubble.core.units import counted
from debubble.diagnosis import report
from debubble.diagnosis.account import CAUSES, COMPUTE, causes_over_time, edges, plain_wait
from debubble.diagnosis.diagnose import Diagnosis
from debubble.diagnosis.findings import Finding
from debubble.diagnosis.machines import Machines
from debubble.diagnosis.next_command import RUN, next_command
from debubble.diagnosis.what_if import WhatIf
from debubble.engine.timeline import Timeline, simulate
from debubble.view.captions import renamed
from debubble.view.page import page
from debubble.view.timeline_data import deflated, encode
from debubble.view.trace_tiles import tiles, tiles_html


@dataclass(frozen=True)
class MarkStyle:
    """Name and looks of marks."""

    title: str
    """Name in the legend."""
    color: str = "#808080"
    """``#rrggbb``, light or dark; not used by marks that look like a cause of idle time."""
    like: str | None = None
    """One of :data:`debubble.analysis.bubbles.CAUSES` that they look like and are counted with."""


Mark = tuple[float, float, str]
"""Start, end and key of the style of a mark."""


def add_marks(
    payload: dict[str, Any],
    index: int,
    marks: Mapping[int, Iterable[Mark]],
    styles: Mapping[str, MarkStyle],
) -> None:
    """Give the timeline with an index in a payload marks by rank, none over another.

    They are in the timeline's time. Styles of no mark are left out.
    """
    meta = payload["timelines"][index]
    lines = [joined(marks.get(rank, ())) for rank in range(meta["ranks"])]
    keys = {key for line in lines for _, _, key in line}
    known = payload.setdefault("marks", [])
    used = {}
    for key, style in styles.items():
        if key in keys:
            if asdict(style) not in known:
                known.append(asdict(style))
            used[key] = known.index(asdict(style))
    rows = [(start, end, used[key]) for line in lines for start, end, key in line]
    columns = (np.array([row[at] for row in rows], t) for at, t in enumerate(("<f4", "<f4", "<u1")))
    meta["marks"] = {
        "counts": [len(line) for line in lines],
        "data": deflated(*(column.tobytes() for column in columns)),
    }


def joined(marks: Iterable[Mark]) -> list[Mark]:
    """Return marks in order of time, those joined that touch each other and look alike."""
    found: list[Mark] = []
    for start, end, key in sorted(marks):
        if found and found[-1][2] == key and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]), key)
        elif end > start:
            found.append((start, end, key))
    return found


def add_differences(
    payload: dict[str, Any], index: int, timelines: Sequence[Timeline], other: int, least: float
) -> None:
    """Compare a timeline with another one of the same schedule.

    `index` and `other` are those of the two among `timelines`, whose payload is given; differences
    are shaded from a time of `least` on.
    """
    mine, theirs = timelines[index], timelines[other]
    assert np.array_equal(mine.schedule.actions, theirs.schedule.actions)
    late, longer = mine.start - theirs.start, mine.duration - theirs.duration
    payload["timelines"][index]["differs"] = {
        "from": payload["timelines"][other]["name"],
        "least": least,
        "data": deflated(late.astype("<f4").tobytes(), longer.astype("<f4").tobytes()),
    }


OBSERVED, PREDICTED = "observed", "predicted"
"""Names of the timelines."""

DIFFERENT = 0.1
"""Differences are shaded from this share of the median time of an action on."""

LOOKS = {
    "fill": MarkStyle("fill", like="fill"),
    "drain": MarkStyle("drain", like="drain"),
    "peer": MarkStyle("peer", like="data"),
    "transfer": MarkStyle("transfer", like="p2p"),
    "memory": MarkStyle("memory", like="memory"),
    "slow-stage": MarkStyle("slow-stage", "#d81b7a"),
    "slow-worker": MarkStyle("slow-worker", "#9c27d9"),
    "slow-copy": MarkStyle("slow-copy", "#5f5bd6"),
    "slow-link": MarkStyle("slow-link", "#00796b"),
    "head-of-line": MarkStyle("head-of-line", "#33691e"),
    "launch-gap": MarkStyle("launch-gap", "#8bc34a"),
    "garbage-collection": MarkStyle("garbage-collection", "#455a64"),
    "sequence-length": MarkStyle("sequence-length", "#5ce0c6"),
    "jitter": MarkStyle("jitter", "#b39ddb"),
    "order": MarkStyle("order", "#5d4037"),
}  # fmt: skip
"""Styles of causes; those of a flawless run look like idle time of a simulation."""

assert set(LOOKS) == set(CAUSES)

NOT_PLAIN = {P2P: "transfer", MEMORY: "memory"}
"""Causes of idle time in a simulation other than waits for the results of other ranks."""

MOST_RANKS = 512
"""Most ranks with a line in the account."""

MACHINES_TITLE = "Ranks of the job"

LEAST_APART = 5e-4
"""Minimum difference of two shares of idle time that look different."""

ONE_LINE = 1 << 20
"""Width at which nothing is wrapped."""

RankMarks = dict[int, list[Mark]]
"""Marks of every rank."""


def trace_view(found: Diagnosis, answers: Sequence[WhatIf] = (), path: str = RUN) -> dict[str, Any]:
    """Return a diagnosis, with answers to further questions, as plain data for a page.

    The ``place`` of a finding is ``[timeline, rank, start, end]`` of where to see it, or None;
    ``said`` and ``notes`` are sentences, ``facts`` a name and a text each, ``machines`` a table of
    the ranks, or None if nothing is known of them, ``tiles`` four numbers to start with, and
    ``timelines`` is for the component. `path`
    is that of the trace, for the ``next`` command.
    """
    timelines = trace_timelines(found, answers)
    payload = encode(timelines, time_unit="ms")
    lines: RankMarks = {}
    predicted = 0
    if _is_drawn(found):
        predicted = 1
        lines = _lines(found)
        add_marks(payload, 0, lines, LOOKS)
        for place, simulated in enumerate(timelines[1:], 1):
            add_marks(payload, place, _simulated_lines(simulated), LOOKS)
        least = DIFFERENT * float(np.median(timelines[0].duration))
        add_differences(payload, 0, timelines, predicted, least)
        payload["timelines"][0]["setting"] = _which_step(found)
    steps = counted(len(found.run.step_times), "step")
    payload["timelines"][predicted]["setting"] = f"at the median times of {steps}"
    for place in range(predicted + 1, len(timelines)):
        payload["timelines"][place]["setting"] = f"at the times of {_which_step(found)}"
    said = list(report.sentences(found))
    said += [line for one in answers for line in report.what_if_text(one, ONE_LINE)]
    return {
        "title": report.headline(found),
        "tiles": [tile._asdict() for tile in tiles(found)],
        "said": said,
        "findings": [
            {
                "cause": one.cause,
                "gain": report.gain_text(one),
                "text": report.finding_text(one),
                "place": _place(found, lines, one),
            }
            for one in found.findings
        ],
        "notes": list(_notes(found)),
        "next": next_command(found, path, answers),
        "account": {
            "title": report.ACCOUNT_TITLE,
            "columns": [
                {"title": column.title, "cells": list(column.cells)}
                for column in report.account_columns(found, MOST_RANKS)
            ],
        },
        "machines": _machines(found),
        "facts": [list(row) for row in report.facts(found)],
        "timelines": payload,
    }


def trace_timelines(found: Diagnosis, answers: Sequence[WhatIf] = ()) -> list[Timeline]:
    """Return the observed, the predicted and the answers' timelines.

    The observed one is missing if the file of a rank is.
    """
    seen = [found.timeline] if _is_drawn(found) else []
    order = seen[0].schedule if seen else found.schedule
    predicted = found.predicted if order is found.schedule else simulate(order, found.costs)
    named = [renamed(timeline, OBSERVED) for timeline in seen] + [renamed(predicted, PREDICTED)]
    return named + [one.timeline for one in answers if one.timeline is not None]


def _is_drawn(found: Diagnosis) -> bool:
    """Return True if the step to draw was traced on all ranks."""
    return bool(found.run.known[found.shown].all())


def _lines(found: Diagnosis) -> RankMarks:
    """Return causes of lost time of every rank in the shown step, in milliseconds of it."""
    row = found.shown
    begin = float(found.run.begin[row])
    pieces = causes_over_time(found.replay, row, found.causes.excess, found.causes.slow_link)
    return {
        rank: joined(
            ((start - begin) * 1e3, (end - begin) * 1e3, cause)
            for start, end, cause in line
            if cause != COMPUTE
        )
        for rank, line in pieces.items()
    }


def _simulated_lines(timeline: Timeline) -> RankMarks:
    """Return causes of lost time of every rank in a simulation."""
    schedule, idle = timeline.schedule, bubbles(timeline)
    limits = edges(
        schedule.ranks, schedule.ranks_of_actions, kinds_of(schedule.actions), timeline.start,
        timeline.end,
    )  # fmt: skip
    lines: RankMarks = {}
    columns = (idle.rank, idle.start, idle.end, idle.cause)
    for rank, start, end, cause in zip(*(column.tolist() for column in columns), strict=True):
        plain = plain_wait(start, end, *limits.get(rank, (0.0, 0.0)))
        lines.setdefault(rank, []).append((start, end, NOT_PLAIN.get(cause, plain)))
    return lines


def _which_step(found: Diagnosis) -> str:
    run, row = found.run, found.shown
    copies = found.observed.copies
    step = f"step {run.steps[run.step[row]]}" + (f" of copy {run.copy[row]}" if copies > 1 else "")
    several = len(run.step_times) > 1
    return f"{step}, of median length" if several else step


def _place(found: Diagnosis, lines: RankMarks, one: Finding) -> list[float] | None:
    """Return timeline, rank, start and end of the longest mark of a finding, None for none."""
    copy = one.where.get("copy")
    if copy is not None and copy != found.run.copy[found.shown]:
        return None
    rank, link = one.where.get("rank"), one.where.get("link")
    ranks: Iterable[int] = link if isinstance(link, list) else lines
    if isinstance(rank, int):
        ranks = (rank,)
    marks = [
        (start - end, rank, start, end)
        for rank in ranks
        for start, end, cause in lines.get(rank, ())
        if cause == one.cause
    ]
    if not marks:
        return None
    _, rank, start, end = min(marks)
    return [0, rank, start, end]


def _notes(found: Diagnosis) -> Iterable[str]:
    """Yield the sentences below the findings."""
    yield from report.notes(found)
    drawn = _is_drawn(found)
    if drawn and abs(found.timeline.bubble_ratio - found.bubble_ratio) > LEAST_APART:
        yield (
            f"The drawn step is {_which_step(found)}: its ranks are idle "
            f"{100 * found.timeline.bubble_ratio:.1f} % of it, and "
            f"{100 * found.bubble_ratio:.1f} % of all steps and copies."
        )
    if not drawn:
        yield "A rank was not traced: the observed step cannot be drawn."


def _machines(found: Diagnosis) -> dict[str, Any] | None:
    """Return a table of the global rank, host and file of every rank; None if all are unknown."""
    columns = Machines.of(found.run).columns(MOST_RANKS)
    if not columns:
        return None
    return {"title": MACHINES_TITLE, "columns": [
        {"title": title, "cells": cells} for title, cells in columns.items()
    ]}  # fmt: skip


STYLE = """<style>
.findings { padding-left: 1.4rem; max-width: 110ch; }
.findings li { margin: 0 0 0.6rem; }
.findings button {
  font: inherit; font-size: 0.85rem; color: inherit; background: none; cursor: pointer;
  border: 1px solid var(--line); border-radius: 4px; padding: 0 0.5rem; margin-left: 0.5rem;
}
.said { max-width: 110ch; color: var(--faint); margin: 0 0 0.6rem; }
.next code { overflow-wrap: anywhere; user-select: all; }
:is(th, td):last-child { text-align: right; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.2rem; }
.facts dt { color: var(--faint); }
.facts dd { margin: 0; max-width: 110ch; overflow-wrap: anywhere; }
</style>"""


def trace_page(found: Diagnosis, answers: Sequence[WhatIf] = (), path: str = RUN) -> str:
    """Return a self-contained page: findings, timelines, the account, and more answers.

    `path` is that of the trace, for the next command.
    """
    view = trace_view(found, answers, path)
    tables = "".join(map(_table, filter(None, (view["account"], view["machines"]))))
    facts = "".join(f"<dt>{_(name)}</dt><dd>{_(text)}</dd>" for name, text in view["facts"])
    return page(
        trace_timelines(found, answers),
        title=view["title"],
        above_html="\n".join([STYLE, tiles_html(found), *_above(view)]),
        table_html=f"{tables}<dl class=facts>{facts}</dl>",
        payload=view["timelines"],
        memory=False,
        time_unit="ms",
    )


def _above(view: Mapping[str, Any]) -> Iterable[str]:
    """Yield the sentences and findings, with buttons that show the place."""
    yield from (f'<p class="said">{_(text)}</p>' for text in view["said"])
    if view["findings"]:
        yield f'<ol class="findings">{"".join(map(_finding, view["findings"]))}</ol>'
    yield from (f'<p class="said">{_(text)}</p>' for text in view["notes"])
    yield f'<p class="next">Next: <code>{_(view["next"])}</code></p>'


def _table(data: Mapping[str, Any]) -> str:
    columns = [Column((one["title"],), tuple(one["cells"])) for one in data["columns"]]
    return f"<p>{_(data['title'])}</p>{html_table(columns)}"


def _finding(one: Mapping[str, Any]) -> str:
    place = " ".join(map(str, one["place"] or ()))
    show = f'<button data-reveal="{place}">show</button>' if place else ""
    return f"<li><b>{_(one['cause'])}: {_(one['gain'])}</b>{show}<br>{_(one['text'])}</li>"


_ = html.escape
