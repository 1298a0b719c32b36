"""Ranges of forwards and backwards without names: PyTorch's 1F1B, and Megatron-LM's schedules.

Where the profile has Python's calls (``with_stack``), Megatron's ``forward_step`` and
``backward_step`` are the ranges. Else autograd's events show them. A backward is a series of
autograd's evaluations. Its first has the greatest sequence number, so a greater number begins the
next backward, and so does a message. A forward is the interval that recorded the numbers that a
backward evaluates. The sequence of microbatches is assumed to be that of 1F1B, or of interleaved
1F1B.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from debubble.diagnosis.readers.kineto_file import (
    EVALUATION,
    OPERATIONS,
    IntRows,
    KinetoFile,
    Nanoseconds,
    events_of,
)
from debubble.diagnosis.readers.stream import LeftOut
from debubble.diagnosis.readers.unnamed_order import (
    BACKWARD,
    FORWARD,
    AssumedOrder,
    UnnamedAction,
)

NAMES = ("Forward", "Backward")

_CALL = re.compile(r".{0,300}pipeline_parallel/schedules\.py\(\d+\): (forward|backward)_step")


def unnamed_actions(path: Path, file: KinetoFile) -> list[UnnamedAction]:
    """Return the forwards and backwards of a file that is already read, sorted by time."""
    recorded, evaluated = IntRows(3), IntRows(3)
    called: list[UnnamedAction] = []
    for block in events_of(path, LeftOut()).blocks():
        for event in block:
            if event.cat == "python_function":
                if (call := _CALL.fullmatch(event.name)) is not None:
                    kind = FORWARD if call[1] == "forward" else BACKWARD
                    called.append(UnnamedAction(*event.times, kind))
                continue
            if event.cat not in OPERATIONS:
                continue
            number = event.sequence
            evaluates = event.name.startswith(EVALUATION)
            if number >= 0 or evaluates:
                (evaluated if evaluates else recorded).add(*event.times, number)
        if recorded.full or evaluated.full:
            break
    moved = np.sort(np.concatenate([file.sends.sorted()[0], file.receives.sorted()[0]]))
    return sorted(called) or actions_recorded(evaluated.sorted(), recorded.sorted(), moved)


def actions_recorded(
    evaluated: Nanoseconds, recorded: Nanoseconds, moved: Nanoseconds
) -> list[UnnamedAction]:
    """Return the forwards and backwards that autograd's events show, sorted by time.

    Events are columns of start, end and sequence number (−1 for none), sorted by start; `moved` are
    the sorted starts of sends and receives, which divide backwards.
    """
    evaluated = evaluated[:, _outer(evaluated) == np.arange(evaluated.shape[1])]
    if not evaluated.shape[1]:
        return []
    start, end, number = evaluated
    begins = number > np.concatenate([[-1], np.maximum.accumulate(number)[:-1]])
    covered = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    begins |= np.searchsorted(moved, start) > np.searchsorted(moved, covered)
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


def backwards_of_profiled_step(file: KinetoFile, runs: Sequence[UnnamedAction]) -> int:
    """Return the most backwards in one of the profiler's steps; 0 without such steps.

    On the last rank alone nothing else divides steps: one microbatch is in flight at most.
    """
    starts = [run.start for run in runs if run.kind == BACKWARD]
    begin, end, _ = file.steps.sorted()
    inside = np.searchsorted(starts, end) - np.searchsorted(starts, begin)
    return int(inside.max(initial=0))


def add_ranges(file: KinetoFile, runs: Sequence[UnnamedAction], microbatches: int) -> None:
    """Add ranges named like GPipe's to a file: the k-th forward is that of microbatch k.

    Such a range begins with the receive of its input and ends with the send of its result, but for
    ranks that post the next receive before the send.
    """
    sends, receives = file.sends.sorted()[0], file.receives.sorted()[0]
    counts = [0, 0]
    before = 0
    for at, (start, end, kind) in enumerate(runs):
        after = runs[at + 1].start if at + 1 < len(runs) else np.iinfo(np.int64).max
        posted = receives[np.searchsorted(receives, before) :][:1]
        begin = int(posted[0]) if len(posted) and posted[0] < start else start
        sent = sends[np.searchsorted(sends, end) :][:1]
        following = receives[np.searchsorted(receives, end) :][:1]
        until = min(after, int(following[0])) if len(following) else after
        last = int(sent[0]) if len(sent) and sent[0] < until else end
        name = f"{NAMES[kind]} {counts[kind] % microbatches}"
        file.add_range(name, begin, last)
        counts[kind] += 1
        before = end


def add_staged_ranges(
    file: KinetoFile, runs: Sequence[UnnamedAction], order: AssumedOrder, rank: int, ranks: int
) -> None:
    """Add ranges named with stages to a file of a rank of the pipeline, in an assumed order."""
    numbered = [order.numbered(kind, ranks) for kind in (FORWARD, BACKWARD)]
    counts = [0, 0]
    for start, end, kind in runs:
        chunk, microbatch = numbered[kind][counts[kind] % len(numbered[kind])]
        file.add_range(f"PP:{chunk * ranks + rank}{'FB'[kind]}{microbatch}", start, end)
        counts[kind] += 1
