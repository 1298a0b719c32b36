"""Ranges for PyTorch's 1F1B, which gives its actions no names: told by autograd's own events.

A backward is a run of autograd's evaluations; its first has the greatest sequence number of all,
so a greater one begins the next. A forward is what recorded the numbers that a backward evaluates.
The order of microbatches is that of 1F1B, and assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from debubble.diagnosis.readers.kineto_file import Columns, KinetoFile, times
from debubble.diagnosis.readers.scan import Scan
from debubble.diagnosis.readers.stream import LeftOut

_NUMBER = re.compile(rb'"Sequence number"\s*:\s*(\d{1,18})')
_EVALUATION = re.compile(rb'"name"\s*:\s*"autograd::engine::evaluate_function: ')
_OP = re.compile(rb'"cat"\s*:\s*"(?:cpu_op|Operator)"')

FORWARD, BACKWARD = range(2)
NAMES = ("Forward", "Backward")


class Run(NamedTuple):
    """A forward or backward that has no name; times in nanoseconds."""

    start: int
    end: int
    kind: int


def runs_of(path: Path, left_out: LeftOut) -> list[Run]:
    """The forwards and backwards of a file, in order of time."""
    recorded, evaluated = Columns(3), Columns(3)
    for texts in Scan(path, left_out).events():
        for text in texts:
            if _OP.search(text) is None:
                continue
            number = _NUMBER.search(text)
            evaluates = _EVALUATION.search(text) is not None
            if number is None and not evaluates:
                continue
            start, end = times(text)
            rows = evaluated if evaluates else recorded
            rows.add(left_out, start, end, int(number[1]) if number else -1)
    return _runs(_outermost(evaluated.sorted().T.tolist()), recorded.sorted().T.tolist())


def _outermost(events: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """Events that lie in none before them, which are sorted by their start."""
    found: list[Sequence[int]] = []
    for event in events:
        if not found or event[0] >= found[-1][1]:
            found.append(event)
    return found


def _runs(evaluated: Sequence[Sequence[int]], recorded: Sequence[Sequence[int]]) -> list[Run]:
    backwards: list[list[int]] = []
    numbers: dict[int, int] = {}
    greatest = -1
    for start, end, number in evaluated:
        if number > greatest or not backwards:
            greatest = number
            backwards.append([start, end])
        backwards[-1][1] = end
        if number >= 0:
            numbers[number] = len(backwards) - 1
    bounds = np.array(evaluated, np.int64).reshape(-1, 3).T
    outside = [
        event for event in recorded
        if (at := int(np.searchsorted(bounds[0], event[0], side="right")) - 1) < 0
        or event[0] >= bounds[1][at]
    ]  # fmt: skip
    # An operator has the number that the next record gets: the last one with it made the record.
    maker: dict[int, Sequence[int]] = {}
    outer: Sequence[int] = (0, 0, 0)
    for event in outside:
        outer = event if event[0] >= outer[1] else outer
        maker[event[2]] = outer
    forwards: dict[int, list[int]] = {}
    for number, owner in numbers.items():
        if number in maker:
            start, end, _ = maker[number]
            span = forwards.setdefault(owner, [start, end])
            span[:] = min(span[0], start), max(span[1], end)
    found = [Run(start, end, FORWARD) for start, end in forwards.values()]
    found += [Run(start, end, BACKWARD) for start, end in backwards]
    return sorted(found)


def microbatches_of(orders: Iterable[Sequence[Run]]) -> int:
    """How many microbatches a step has: until nothing is in flight, where most was; 0 for none."""
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


def add_ranges(file: KinetoFile, runs: Sequence[Run], microbatches: int, left_out: LeftOut) -> None:
    """Give a file ranges as GPipe's: the k-th forward is microbatch k's, and so on.

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
        file.add_range(name, begin, last, left_out)
        counts[kind] += 1
        before = last
