"""Traces written by debubble for its own runs: see :mod:`debubble.interchange.trace_events`.

Traces of other programs are read as well if events are named ``3F7`` and processes like ranks. One
file has all ranks of one step, in several groups of processes: predictions first, the measurement
last. Several files are several steps, sorted by name.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.core.kinds import (
    CARRY_KINDS,
    COMPUTE_KINDS,
    FORWARD_KINDS,
    KINDS,
    SEND_KINDS,
    TRANSFER_KINDS,
    Kind,
)
from debubble.diagnosis.observed import ALONE, Columns, Location, Observed, Times, Whole
from debubble.diagnosis.readers.action_names import actions_named
from debubble.diagnosis.readers.collected import MICROSECONDS, NAN, Collected
from debubble.diagnosis.readers.events import EventFile, numbers, whole, wholes
from debubble.diagnosis.readers.messages import grouped
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import LeftOut, listed
from debubble.interchange.trace_events import GROUP, PAIRED

NAME = "debubble"
MARKS: tuple[bytes, ...] = ()

_NAMED = re.compile(rb'"name"\s*:\s*"\d+[A-Z]')
_DRAWN = re.compile(rb'"name"\s*:\s*"\d+[FIWB]\d+(?:\.\d+)?"')

SIMULATED = "files with simulated times"
PREDICTED = "predicted actions"
NO_TIME = "events without numbers as pid, ts and dur"
OPEN = "transfers without a beginning or an end"


ACTION, BEGIN, END, OTHER = range(4)
"""Sorts of events: an action, the beginning or end of a transfer, or unused."""

_AWAY = np.array([KINDS[kind].away if KINDS[kind].receives else 0 for kind in Kind])
"""Stages between the one in a transfer's name and the one that produced its data, by kind."""


class _OwnArguments(msgspec.Struct, gc=False):
    """Arguments of an event: start of the wait for an action or a receive, in microseconds."""

    waited: Any = None


class _OwnEvent(msgspec.Struct, gc=False):
    """An event as written; times in microseconds."""

    name: str = ""
    ph: Any = None
    pid: Any = None
    tid: Any = None
    id: Any = None
    ts: Any = None
    dur: Any = 0
    args: _OwnArguments | None = None


@dataclass(frozen=True, eq=False)
class _OwnEvents(Columns):
    """Events as columns; times in microseconds."""

    sort: Whole
    kind: Whole
    rank: Whole
    stage: Whole
    microbatch: Whole
    slice: Whole
    thread: Whole
    key: Whole
    """Number of the id of a transfer."""
    start: NDArray[np.float64]
    length: NDArray[np.float64]
    waited: NDArray[np.float64]


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    if b'"otherData"' in head and b'"schedule"' in head and b'"traceEvents"' in head:
        return True
    return _DRAWN.search(head) is not None and b'"cpu_op"' not in head


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read one file, or one for each step; raise FormatError when all times are simulated ones."""
    collected = Collected(where, left_out)
    described: Mapping[str, Any] = {}
    first: Path | None = None
    ranks = 0
    at = 0.0
    told = read_each(_read_file, files, left_out)
    for number_of_step, (path, (events, about)) in enumerate(told):
        if "time_unit" in about:
            left_out[SIMULATED] += 1
            continue
        described = about
        ranks = max(ranks, whole(about.get("ranks"), GROUP))
        if events is not None and (events.sort == ACTION).any():
            at = _add(collected, number_of_step, events, at, path)
            first = first or path
    if first is None:
        if left_out[SIMULATED]:
            raise FormatError(
                f"{where}: its times are simulated, not measured; 'debubble run' and "
                "Pipeline.trace() write measured ones"
            )
        raise FormatError(f"{where}: no event is called like an action, for instance 3F7")
    hosts = dict(enumerate(listed(described.get("hosts"), str)[:GROUP]))
    numbers = dict(enumerate(listed(described.get("global_ranks"), int)[:GROUP]))
    locations = {
        (0, rank): Location(numbers.get(rank), hosts.get(rank), str(first)) for rank in range(ranks)
    }
    backend, device = described.get("backend"), described.get("device")
    carries = tuple(listed(described.get("carries"), tuple[int, int])[:GROUP])
    return collected.observed(
        NAME,
        {
            "rank": "process",
            "stage": "names of events",
            "microbatch": "names of events",
            "step": "one per file",
            "clock": "rank 0's host, aligned by the run",
            **({"skip connections": "parts of the messages between neighbors"} if carries else {}),
        },
        ranks=ranks, unit=MICROSECONDS, locations=locations, carries=carries,
        clocks="hosts" if len(set(hosts.values())) > 1 else "one",
        backend=backend if isinstance(backend, str) else "",
        device=device if device in ("cpu", "gpu") else "",
    )  # fmt: skip


def _read_file(path: Path, left_out: LeftOut) -> tuple[_OwnEvents | None, Mapping[str, Any]]:
    """Return the last group of a file, or None, and the file's ``otherData``."""
    file = EventFile(path, _OwnEvent, left_out, wanted=_NAMED)
    keys: dict[Any, int] = {}
    found = [columns for block in file.blocks() if (columns := _columns(block, keys)) is not None]
    about = file.about("otherData")
    about = about if isinstance(about, dict) else {}
    if not found:
        return None, about
    events = _OwnEvents.joined(found)
    sound = (events.rank >= 0) & ~np.isnan(events.start)
    if wrong := len(sound) - int(np.count_nonzero(sound)):
        left_out[NO_TIME] += wrong
        events = events.take(sound)
    group, rank = np.divmod(events.rank, GROUP)
    last = group == group.max(initial=0)
    if predicted := int(np.count_nonzero(~last & (events.sort == ACTION))):
        left_out[PREDICTED] += predicted
    return replace(events, rank=rank).take(last), about


def _columns(block: Sequence[_OwnEvent], keys: dict[Any, int]) -> _OwnEvents | None:
    """Return the events of a block named like actions; None if it has none.

    `keys` numbers the ids of transfers.
    """
    events = [event for event in block if event.name[:1].isdigit()]
    named = [actions_named(event.name[:200], carried=True) for event in events]
    events = [event for event, one in zip(events, named, strict=True) if len(one) == 1]
    if not events:
        return None
    actions = [one[0] for one in named if len(one) == 1]
    kind, stage, microbatch, slice = np.array(list(chain(*actions)), np.int64).reshape(-1, 4).T
    phases = np.array([_PHASES.get(str(event.ph), OTHER) for event in events])
    sort = np.select(
        [(phases == ACTION) & _IS_COMPUTE[kind], (phases == BEGIN) & _IS_TRANSFER[kind],
         phases == END],
        [ACTION, BEGIN, END], OTHER,
    )  # fmt: skip
    key = [keys.setdefault(str(event.id), len(keys)) for event in events]
    waited = [event.args and event.args.waited for event in events]
    return _OwnEvents(
        sort, kind, wholes([event.pid for event in events]), stage, microbatch, slice,
        wholes([event.tid for event in events]), np.array(key),
        numbers([event.ts for event in events]), numbers([event.dur for event in events]),
        numbers(waited),
    )  # fmt: skip


_PHASES = {"X": ACTION, "b": BEGIN, "e": END}
_IS_COMPUTE = np.isin(list(Kind), COMPUTE_KINDS)
_IS_TRANSFER = np.isin(list(Kind), TRANSFER_KINDS)


def _add(
    collected: Collected, number_of_step: int, events: _OwnEvents, at: float, path: Path
) -> float:
    """Add a step that begins at `at`, and return its end; both in seconds."""
    actions = events.take(events.sort == ACTION)
    zero = float(actions.start.min())

    def seconds(time: Times) -> Times:
        return at + (time - zero) * MICROSECONDS

    begun, end = _transfers(events)
    if (still_open := np.isnan(end)).any():
        collected.left_out[OPEN] += int(np.count_nonzero(still_open))
        begun, end = begun.take(~still_open), end[~still_open]
    begun, end = _with_carried(begun, end, path)
    is_send = np.isin(begun.kind, SEND_KINDS)
    for mine in (is_send, ~is_send):
        some = begun.take(mine)
        carried = (
            number_of_step, 0, np.isin(some.kind, FORWARD_KINDS), some.stage + _AWAY[some.kind],
            some.microbatch, some.slice, some.rank, seconds(some.start),
        )  # fmt: skip
        if mine is is_send:
            collected.many("sends", *carried)
        else:
            collected.many("receives", *carried, seconds(some.waited), seconds(end[mine]))
    waited = _arrivals(actions, begun.take(~is_send), end[~is_send])
    over = actions.start + actions.length
    collected.many(
        "actions", number_of_step, 0, actions.rank, actions.kind, actions.stage,
        actions.microbatch, actions.slice, _pairs(actions, over), seconds(actions.start),
        seconds(over), NAN, seconds(waited), NAN,
    )  # fmt: skip
    return float(seconds(np.fmax.reduce(over, initial=zero)))


def _transfers(events: _OwnEvents) -> tuple[_OwnEvents, Times]:
    """Return begins of transfers, and their end times; NaN if the trace has no end."""
    rows = np.flatnonzero((events.sort == BEGIN) | (events.sort == END))
    begins = events.sort[rows] == BEGIN
    if not begins.any():
        return events.take(rows[:0]), np.zeros(0)
    first, group = grouped([events.rank[rows], events.key[rows]])
    last, end = np.full(len(first), -1), np.full(len(first), np.nan)
    last[group[begins]] = rows[begins]
    end[group[~begins]] = events.start[rows[~begins]]
    there = np.flatnonzero(last >= 0)
    there = there[np.argsort(last[there])]
    return events.take(last[there]), end[there]


def _with_carried(begun: _OwnEvents, end: Times, path: Path) -> tuple[_OwnEvents, Times]:
    """Return transfers without carried ones, which are a part of the messages next to them.

    What a stage gets of its neighbor is there when what is carried to it is there, too.
    """
    carried = np.isin(begun.kind, CARRY_KINDS)
    if not carried.any():
        return begun, end
    receives = ~np.isin(begun.kind, SEND_KINDS)
    forward = np.isin(begun.kind, FORWARD_KINDS).astype(np.int8)
    columns = [begun.rank, forward, begun.stage, begun.microbatch, begun.slice]
    first, group = grouped([column[receives] for column in columns])
    mine = carried[receives]
    alone = np.bincount(group[~mine], minlength=len(first)) == 0
    if alone.any():
        stage = int(begun.stage[receives][first[alone][0]])
        raise FormatError(
            f"{path}: what is carried to stage {stage} is all that it gets of another rank, and a "
            f"diagnosis knows no such messages; draw it: debubble draw {path}"
        )
    last, since = np.full(len(first), -np.inf), np.full(len(first), np.inf)
    np.fmax.at(last, group, end[receives])
    np.fmin.at(since, group, begun.waited[receives])
    end, waited = end.copy(), begun.waited.copy()
    end[receives] = last[group]
    waited[receives] = np.where(np.isfinite(since), since, np.nan)[group]
    return replace(begun, waited=waited).take(~carried), end[~carried]


def _arrivals(actions: _OwnEvents, receives: _OwnEvents, end: Times) -> Times:
    """Return the arrival time of each action's input; NaN if it is not in the trace."""
    if not len(end):
        return np.full(len(actions.rank), np.nan)
    columns = []
    for name in ("rank", "kind", "stage", "microbatch", "slice"):
        both = np.concatenate([getattr(receives, name), getattr(actions, name)])
        columns.append(np.isin(both, FORWARD_KINDS).astype(np.int8) if name == "kind" else both)
    first, group = grouped(columns)
    arrived = np.full(len(first), np.nan)
    arrived[group[: len(end)]] = end
    found: Times = arrived[group[len(end) :]]
    return found


def _pairs(actions: _OwnEvents, over: Times) -> Whole:
    """Return the pair of every action in one: that of its first half.

    The second halves are on their own thread, and begin slightly later if they were measured. Each
    belongs to the action on the first thread with the largest overlap in time.
    """
    found = np.full(len(over), ALONE)
    if not (actions.thread == PAIRED).any():
        return found
    columns = actions.rank, actions.thread, actions.start, over
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    firsts: dict[int, list[tuple[float, float, int]]] = {}
    for place, (rank, thread, start, end) in enumerate(rows):
        if thread != PAIRED:
            firsts.setdefault(rank, []).append((start, end, place))
    for row in firsts.values():
        row.sort()
    for place, (rank, thread, start, end) in enumerate(rows):
        if thread != PAIRED:
            continue
        row = firsts.get(rank, [])
        at = bisect_right(row, (start, end, place))
        near = row[max(at - 2, 0) : at + 1]
        shared = [(min(end, over) - max(start, begin), other) for begin, over, other in near]
        most, other = max(shared, default=(0.0, ALONE))
        if most > 0:
            found[[place, other]] = other
    return found
