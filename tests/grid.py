"""Exact figures in plain text, one slot per unit of time, as they stand in docstrings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import Action
from debubble.core.errors import ParameterError
from debubble.core.kinds import STEP_KINDS, Kind
from debubble.engine.timeline import Timeline
from debubble.view import captions
from debubble.view.bars import LOWER, UPPER, WHOLE, Bars, bars_of

WIDTH = 100
MAX_SLOTS = 1000


def grid(timeline: Timeline) -> str:
    """A timeline in equal slots, drawn exactly.

    An action is a letter and its microbatch, continued by dashes: ``B0---`` is a full backward of
    microbatch 0 that takes two slots. A dot is an idle slot, ``|`` an optimizer step without
    duration. With two chunks the second is in lower case, with more an action carries its stage:
    ``5F0``. Overlapped pairs have the forward above the backward.

    Slots are apart from each other as long as a line then has at most 100 characters.

    Raises
    ------
    ParameterError
        When the times are not multiples of one slot, or too many slots long.

    Examples
    --------
    >>> import debubble as db
    >>> timeline = db.simulate(db.make("1f1b", ranks=2, microbatches=3), db.Costs(F=1, B=2))
    >>> print(grid(timeline))
    r0 | F0 F1 .  .  B0--- F2 B1--- .  B2---
    r1 | .  F0 B0--- F1 B1--- F2 B2--- .  .
    """
    bars = bars_of(timeline)
    slot = bars.slot()
    if timeline.makespan > 0 and slot == 0:
        raise ParameterError(
            "the times are not multiples of one slot; use whole numbers, or draw() for any times"
        )
    slots = round(timeline.makespan / slot) if slot else 0
    if slots > MAX_SLOTS:
        raise ParameterError(
            f"the timeline is {slots:,} slots long; the limit is {MAX_SLOTS:,}; use draw() instead"
        )
    names = [_name(bars, bar) for bar in range(len(bars.start))]
    longest = max((len(name) for name in names), default=1)
    margin = len(f"r{bars.ranks - 1}")
    marks = bool(np.any((bars.end <= bars.start) & bars.steps))
    apart = marks or margin + 3 + slots * (longest + 1) - 1 <= WIDTH
    size = longest + apart

    lines = []
    for rank in range(bars.ranks):
        for half in (UPPER, LOWER)[: 1 + bars.paired]:
            label = f"r{rank}" if half == UPPER else ""
            row = _row(bars, names, rank, half, slot, slots * size, size, apart)
            lines.append(f"{label:<{margin}} | {row}".rstrip())
    return "\n".join(lines)


def _row(
    bars: Bars,
    names: list[str],
    rank: int,
    half: int,
    slot: float,
    length: int,
    size: int,
    apart: bool,
) -> str:
    """One line of a rank's row; the last character of a slot is a blank when slots are `apart`."""
    char = np.full(length, " ")
    if half == UPPER:
        char[::size] = "."
    part = bars.of(rank)
    begin, end = (_slots(times[part], slot) * size for times in (bars.start, bars.end))
    for bar, left, right in zip(
        range(part.start, part.stop), begin.tolist(), end.tolist(), strict=True
    ):
        if left == right or bars.half[bar] not in (WHOLE, half):
            continue
        if half == LOWER:
            char[left:right:size] = "."
        if half == LOWER and bars.half[bar] == WHOLE:
            char[left:right] = " "
            continue
        char[left : right - apart] = "-"
        char[left : left + len(names[bar])] = list(names[bar])
    if half == UPPER:
        for bar in np.flatnonzero((begin == end) & bars.steps[part]).tolist():
            char[max(begin[bar] - 1, 0)] = "|"
    return "".join(char.tolist())


def _slots(times: NDArray[np.float64], slot: float) -> NDArray[np.int64]:
    return np.rint(times / slot).astype(np.int64) if slot else np.zeros(len(times), np.int64)


def _name(bars: Bars, bar: int) -> str:
    kind = Kind(int(bars.kind[bar]))
    if kind in STEP_KINDS:
        return captions.letter(kind, 0)
    if bars.shades <= 2:
        return captions.letter(kind, int(bars.shade[bar])) + bars.label(bar)
    slices = bars.timeline.schedule.slices
    return Action(int(bars.stage[bar]), kind, int(bars.unit[bar])).text(slices)
