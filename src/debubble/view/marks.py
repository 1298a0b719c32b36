"""Additions to a timeline of the browser: marks on ranks, and differences from another timeline.

The component draws marks where a rank is idle, in place of the causes that follow from the
schedule, and at the foot of actions where one lies over an action; longer times than in the other
timeline it shades. Names and colors of marks come with the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from debubble.engine.timeline import Timeline
from debubble.view.timeline_data import deflated


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
