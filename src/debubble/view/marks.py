"""What a timeline may have beside its actions: marks on ranks, and differences from another one.

The component draws marks where a rank is idle, in place of the causes that follow from the
schedule, and at the foot of actions where one lies over an action; what is longer than in the other
timeline it shades. It knows no names: all of them come with the data.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from debubble.engine.timeline import Timeline


@dataclass(frozen=True)
class Look:
    """A name that marks have, and how they look."""

    title: str
    """The name, for the legend."""
    color: str = "#808080"
    """``#rrggbb``, light or dark; not used by marks that look like a cause of idle time."""
    like: str | None = None
    """One of :data:`debubble.analysis.bubbles.CAUSES` that they look like, and are counted with."""


Mark = tuple[float, float, str]
"""Start, end and key of the look of a mark."""


def add_marks(
    payload: dict[str, Any],
    index: int,
    marks: Mapping[int, Iterable[Mark]],
    looks: Mapping[str, Look],
) -> None:
    """Give a timeline marks.

    Parameters
    ----------
    payload
        From :func:`debubble.view.timeline_data.encode`.
    index
        Which of its timelines.
    marks
        Of every rank that has some, none over another, in the timeline's time.
    looks
        Of every key; those that no mark has are left out.
    """
    meta = payload["timelines"][index]
    lines = [joined(marks.get(rank, ())) for rank in range(meta["ranks"])]
    keys = {key for line in lines for _, _, key in line}
    known = payload.setdefault("marks", [])
    used = {}
    for key, one in looks.items():
        plain = {"title": one.title, "color": one.color, "like": one.like}
        if key in keys and plain not in known:
            known.append(plain)
        if key in keys:
            used[key] = known.index(plain)
    rows = [(start, end, used[key]) for line in lines for start, end, key in line]
    start, end, look = (np.array([row[at] for row in rows]) for at in range(3))
    meta["marks"] = {
        "counts": [len(line) for line in lines],
        "data": _packed(start.astype("<f4"), end.astype("<f4"), look.astype("<u1")),
    }


def joined(marks: Iterable[Mark]) -> list[Mark]:
    """Marks in order of time, with those made one that touch each other and look alike."""
    found: list[Mark] = []
    for start, end, key in sorted(marks):
        if found and found[-1][2] == key and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]), key)
        elif end > start:
            found.append((start, end, key))
    return found


def add_differences(
    payload: dict[str, Any],
    index: int,
    timelines: Sequence[Timeline],
    other: int,
    least: float,
) -> None:
    """Have a timeline compared with another one of the same schedule.

    Parameters
    ----------
    payload
        From :func:`debubble.view.timeline_data.encode`, of `timelines`.
    index, other
        Which timeline, and with which it is compared.
    timelines
        The timelines.
    least
        Time from which on a difference is shaded.
    """
    mine, theirs = timelines[index], timelines[other]
    assert np.array_equal(mine.schedule.actions, theirs.schedule.actions)
    late = mine.start - theirs.start
    longer = mine.duration - theirs.duration
    payload["timelines"][index]["differs"] = {
        "from": payload["timelines"][other]["name"],
        "least": least,
        "data": _packed(late.astype("<f4"), longer.astype("<f4")),
    }


def _packed(*columns: np.ndarray[Any, Any]) -> str:
    """Columns as the component reads them: one after the other, deflated, as text."""
    raw = b"".join(column.tobytes() for column in columns)
    packed = zlib.compressobj(wbits=-15)
    return base64.b64encode(packed.compress(raw) + packed.flush()).decode()
