"""Ranges of PyTorch's 1F1B, which has no named actions, from autograd's events.

A backward is a series of autograd's evaluations. Its first has the greatest sequence number, so a
greater number begins the next backward. A forward is the interval that recorded the numbers that a
backward evaluates. The sequence of microbatches is assumed to be that of 1F1B.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from debubble.diagnosis.readers.kineto_file import IntRows, KinetoFile, Nanoseconds, events_of
from debubble.diagnosis.readers.stream import LeftOut

EVALUATION = "autograd::engine::evaluate_function: "
OPERATORS = ("cpu_op", "Operator")

FORWARD, BACKWARD = range(2)
NAMES = ("Forward", "Backward")


class UnnamedAction(NamedTuple):
    """Forward or backward without a name; times in nanoseconds."""

    start: int
    end: int
    kind: int


def unnamed_actions(path: Path) -> list[UnnamedAction]:
    """Return the forwards and backwards of a file that is already read, sorted by time."""
    recorded, evaluated = IntRows(3), IntRows(3)
    for block in events_of(path, LeftOut()).blocks():
        for event in block:
            if event.cat not in OPERATORS:
                continue
            number = event.sequence
            evaluates = event.name.startswith(EVALUATION)
            if number >= 0 or evaluates:
                (evaluated if evaluates else recorded).add(*event.times, number)
        if recorded.full or evaluated.full:
            break
    return _runs(evaluated.sorted(), recorded.sorted())


def _runs(evaluated: Nanoseconds, recorded: Nanoseconds) -> list[UnnamedAction]:
    evaluated = evaluated[:, _outer(evaluated) == np.arange(evaluated.shape[1])]
    if not evaluated.shape[1]:
        return []
    start, end, number = evaluated
    begins = number > np.concatenate([[-1], np.maximum.accumulate(number)[:-1]])
    begins[0] = True
    run = np.cumsum(begins) - 1
    backwards = zip(start[begins], np.maximum.reduceat(end, np.flatnonzero(begins)), strict=True)
    # An event outside of all evaluations recorded something for a backward.
    at = np.searchsorted(start, recorded[0], side="right") - 1
    inside = (at >= 0) & (recorded[0] < end[np.maximum(at, 0)])
    recorded = recorded[:, ~inside & np.isin(recorded[2], number[number >= 0])]
    outer = _outer(recorded)
    # An operator has the number that the next record gets: the last one with it made the record.
    made, last = np.unique(recorded[2][::-1], return_index=True)
    maker = outer[recorded.shape[1] - 1 - last]
    order = np.argsort(number, kind="stable")
    owner = run[order[np.searchsorted(number[order], made)]]
    forwards = []
    for each in np.unique(owner):
        mine = maker[owner == each]
        forwards.append((recorded[0][mine].min(), recorded[1][mine].max()))
    found = [UnnamedAction(int(a), int(b), FORWARD) for a, b in forwards]
    found += [UnnamedAction(int(a), int(b), BACKWARD) for a, b in backwards]
    return sorted(found)


def _outer(events: Nanoseconds) -> Nanoseconds:
    """Return the outermost event around each event; events are sorted by start."""
    start, end = events[0], events[1]
    before = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])[: len(start)]
    here = np.arange(len(start))
    return np.maximum.accumulate(np.where(start >= before, here, 0)) if len(start) else here


def microbatches_of(orders: Iterable[Sequence[UnnamedAction]]) -> int:
    """Return the microbatches of a step: backwards until nothing is in flight; 0 for none."""
    most, found = 0, 0
    for runs in orders:
        flying, highest, done, first = 0, 0, 0, 0
        for run in runs:
            flying += 1 if run.kind == FORWARD else -1
            highest = max(highest, flying)
            done += run.kind == BACKWARD
            if flying == 0 and not first:
                first = done
        if highest > most:
            most, found = highest, first
    return found


def add_ranges(file: KinetoFile, runs: Sequence[UnnamedAction], microbatches: int) -> None:
    """Add ranges named like GPipe's to a file: the k-th forward is that of microbatch k.

    Such a range begins with the receive of its input and ends with the send of its result.
    """
    sends, receives = file.sends.sorted()[0], file.receives.sorted()[0]
    counts = [0, 0]
    before = 0
    for at, (start, end, kind) in enumerate(runs):
        after = runs[at + 1].start if at + 1 < len(runs) else np.iinfo(np.int64).max
        posted = receives[np.searchsorted(receives, before) :][:1]
        begin = int(posted[0]) if len(posted) and posted[0] < start else start
        sent = sends[np.searchsorted(sends, end) :][:1]
        last = int(sent[0]) if len(sent) and sent[0] < after else end
        name = f"{NAMES[kind]} {counts[kind] % microbatches}"
        file.add_range(name, begin, last)
        counts[kind] += 1
        before = last
