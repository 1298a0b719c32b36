"""Transfers in timelines of text: what every rank sends and receives, with the microbatch."""

from __future__ import annotations

import numpy as np

from debubble.view.bars import Bars
from debubble.view.transfers import transfers_of

LABELS = ("send", "recv")
LEGEND = "send, recv: >2 activation, <2 gradient of microbatch 2, where its transfer starts"
NO_ROOM = "transfers have no room here: a picture in a file has them"

_MOST = 5000
"""Ends of transfers beyond which there is no room in any terminal."""


def rows(bars: Bars, columns: int, scale: float) -> list[tuple[str, str]]:
    """For every rank what it sends and what it receives; empty where that does not fit."""
    moved = transfers_of(bars.timeline)
    if len(moved) > _MOST:
        return []
    found = []
    for rank in range(bars.ranks):
        lines = []
        for received in (False, True):
            here = np.flatnonzero((moved.rank == rank) & (moved.received == received))
            line, free = [" "] * columns, 0
            for index in here[np.argsort(moved.start[here], kind="stable")].tolist():
                text = f"{'<' if moved.backward[index] else '>'}{bars.text(int(moved.unit[index]))}"
                # Two that start together stand beside each other, if that moves none far.
                at = max(free, int(np.rint(moved.start[index] * scale)))
                late = at - moved.start[index] * scale
                if at + len(text) > columns or late > 2 * len(text):
                    return []
                line[at : at + len(text)] = text
                free = at + len(text)
            lines.append("".join(line))
        found.append((lines[0], lines[1]))
    return found
