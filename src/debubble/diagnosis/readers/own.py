"""Traces that debubble writes of its own runs: see :mod:`debubble.interchange.run_trace`.

What others write that call their events ``3F7`` and their processes like ranks is read as well.
One file has all ranks of one step, in several groups of processes: what was predicted, and last
what was measured. Several files are several steps, in the order of their names.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.core.kinds import (
    COMPUTE_KINDS,
    FORWARD_KINDS,
    KINDS,
    SEND_KINDS,
    TRANSFER_KINDS,
    Kind,
)
from debubble.diagnosis.observed import ALONE, Observed
from debubble.diagnosis.readers.action_names import LIMIT, actions_named
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.layouts import Layout, Number, decoded, in_order, layouts, numbered
from debubble.diagnosis.readers.messages import Whole, grouped
from debubble.diagnosis.readers.pool import Workers
from debubble.diagnosis.readers.scan import FINITE, Scan, decode_all, events_of, number, whole
from debubble.diagnosis.readers.stream import LeftOut
from debubble.interchange.run_trace import GROUP
from debubble.interchange.trace_events import PAIRED

NAME = "debubble"
MICROSECONDS = 1e-6

_NAMED = re.compile(rb'"name"\s*:\s*"\d+[A-Z]')
_DRAWN = re.compile(rb'"name"\s*:\s*"\d+[FIWB]\d+(?:\.\d+)?"')

SIMULATED = "files with simulated times"
PREDICTED = "actions of predicted times"
NO_TIME = "events without numbers as pid, ts and dur"
OPEN = "transfers without a beginning or an end"


FEW = 16
"""Events of a layout that are sooner read one by one."""

LONGEST_NAMED = 7
"""Digits of a number in the name of an action."""

ACTION, BEGIN, END, OTHER = range(4)
"""What an event is: an action, the beginning or end of a transfer, or of no use here."""

_AWAY = np.array([KINDS[kind].away if KINDS[kind].receives else 0 for kind in Kind])
"""Stages between the one in a transfer's name and the one that made what it moves."""

MOST_PROCESS = 1 << 31
TIMED = 3
"""Columns of events that are times."""

_DIGITS = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)

Times = NDArray[np.float64]


class _Plan(NamedTuple):
    """What events of one layout tell; of events that are read one by one, what they tell."""

    sort: int
    kind: int
    named: tuple[int, ...]
    """Stage, microbatch and slice."""
    process: Any
    thread: Any
    times: tuple[Any, Any, Any]
    """Beginning and length in microseconds, and when it was waited for."""
    key: str
    """The id with a mark in place of its number."""
    number: int


class _Events(NamedTuple):
    """Columns of the events of a group; times in microseconds."""

    sort: Whole
    kind: Whole
    rank: Whole
    stage: Whole
    microbatch: Whole
    slice: Whole
    thread: Whole
    key: Whole
    number: Whole
    start: Times
    length: Times
    waited: Times

    def taken(self, rows: NDArray[Any]) -> _Events:
        """Some of the events."""
        return _Events(*(column[rows] for column in self))


def recognizes(head: bytes) -> bool:
    """Whether this is such a file, by its beginning."""
    if b'"otherData"' in head and b'"schedule"' in head and b'"traceEvents"' in head:
        return True
    return _DRAWN.search(head) is not None and b'"cpu_op"' not in head


def read(where: str, files: Sequence[Path], left_out: LeftOut, workers: Workers) -> Observed:
    """Read one file, or one for each step.

    Raises
    ------
    FormatError
        When all times are simulated ones.
    """
    collected = Collected(where, left_out)
    hosts: tuple[str, ...] = ()
    ranks = 0
    at, acted = 0.0, False
    told = workers.each(_read_file, files, left_out)
    for number_of_step, (_, (events, about)) in enumerate(told):
        if "time_unit" in about:
            left_out[SIMULATED] += 1
            continue
        found = about.get("hosts")
        if isinstance(found, list) and all(isinstance(name, str) for name in found[:GROUP]):
            hosts = tuple(found[:GROUP])
        ranks = max(ranks, whole(about.get("ranks"), GROUP))
        if events is not None and (events.sort == ACTION).any():
            at = _add(collected, number_of_step, events, at)
            acted = True
    if not acted:
        if left_out[SIMULATED]:
            raise FormatError(
                f"{where}: its times are simulated, not measured; 'debubble run' and "
                "Pipeline.trace() write measured ones"
            )
        raise FormatError(f"{where}: no event is called like an action, for instance 3F7")
    return collected.observed(
        NAME,
        {
            "rank": "process",
            "stage": "names of events",
            "microbatch": "names of events",
            "step": "one a file",
            "clock": "that of rank 0's host, as the run has aligned them",
        },
        ranks=ranks, unit=MICROSECONDS, hosts={(0, rank): name for rank, name in enumerate(hosts)},
        clocks="hosts" if len(set(hosts)) > 1 else "one",
    )  # fmt: skip


def _read_file(path: Path, left_out: LeftOut) -> tuple[_Events | None, Mapping[str, Any]]:
    """The last group of a file, None where there is none; and what the file says of itself."""
    scan = Scan(path, left_out)
    events = _events(scan)
    about = scan.about("otherData")
    return events, about if isinstance(about, dict) else {}


def _events(scan: Scan) -> _Events | None:
    """The last group of a file; None where there is none."""
    keys: dict[str, int] = {}
    plans: dict[bytes, _Plan | None] = {}
    found = []
    for text in scan.blocks():
        layouts_of, odd = layouts(text, events_of, few=FEW)
        blocks: list[tuple[Any, ...]] = []
        for layout in layouts_of:
            if not _NAMED.search(numbered(layout.text)):
                continue
            try:
                plan = plans[layout.text] = plans.get(layout.text) or _plan_of(layout.text)
            except (ValueError, RecursionError):
                odd += layout.at.tolist()
                continue
            if plan is not None:
                blocks.append(_of_layout(layout, plan, keys))
        if odd:
            blocks.append(_one_by_one(scan, text, sorted(odd), keys))
        if blocks:
            found.append(in_order(blocks)[1:])
    if not found:
        return None
    events = _Events(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    sound = (events.rank >= 0) & ~np.isnan(events.start)
    if wrong := len(sound) - int(np.count_nonzero(sound)):
        scan.left_out[NO_TIME] += wrong
        events = events.taken(sound)
    group, rank = np.divmod(events.rank, GROUP)
    last = group == group.max(initial=0)
    predicted = int(np.count_nonzero(~last & (events.sort == ACTION)))
    if predicted:
        scan.left_out[PREDICTED] += predicted
    return events._replace(rank=rank).taken(last)


def _plan(event: Mapping[str, Any]) -> _Plan | None:
    """What an event tells; None for one of no action.

    Its numbers may be those of a layout, and then what is told are runs of that.
    """
    named = actions_named(str(event.get("name"))[:200])
    if len(named) != 1:
        return None
    kind, *numbers = named[0]
    phase, args = event.get("ph"), event.get("args")
    sort = OTHER
    if phase == "X" and kind in COMPUTE_KINDS:
        sort = ACTION
    elif phase == "b" and kind in TRANSFER_KINDS:
        sort = BEGIN
    elif phase == "e":
        sort = END
    waited = args.get("waited") if isinstance(args, dict) else None
    key, digits = "", 0
    if sort in (BEGIN, END):
        key, digits = _key(event.get("id"))
    times = event.get("ts"), event.get("dur", 0), waited
    return _Plan(sort, kind, tuple(numbers), event.get("pid"), event.get("tid"), times, key, digits)


def _key(key: Any) -> tuple[str, int]:
    """A transfer's id with a mark in place of its number, and that; all of it where it has none."""
    if isinstance(key, Number):
        if key.fraction or key.exponent:
            raise ValueError("an id has a point")
        return f"{key.sign}#", key.whole
    text = str(key)
    found = _DIGITS.findall(text)
    if len(found) == 1:
        return _DIGITS.sub("#", text), int(found[0])
    return text, 0


def _plan_of(text: bytes) -> _Plan | None:
    """What events of a layout tell.

    Raises
    ------
    ValueError
        When they are no JSON, or have ids of several numbers.
    """
    event = decoded(b"{" + text + b"}")
    plan = _plan(event)
    if plan is not None and not plan.number and any(map(str.isdecimal, plan.key)):
        raise ValueError("an id has several numbers")
    return plan


def _of_layout(layout: Layout, plan: _Plan, keys: dict[str, int]) -> tuple[Any, ...]:
    """Places and columns of the events of a layout."""
    rows = layout.rows
    places = [each for each in (plan.process, plan.thread) if isinstance(each, Number)]
    read = iter(rows.wholes(places).T)
    process, thread = (
        next(read) if isinstance(each, Number) else np.asarray(whole(each))
        for each in (plan.process, plan.thread)
    )
    points = [each for each in plan.times if isinstance(each, Number)]
    seen = iter(rows.numbers(points).T)
    times = [next(seen) if isinstance(each, Number) else number(each) for each in plan.times]
    times = [np.where(np.abs(each) < FINITE, each, NAN) for each in times]
    named = rows.runs(plan.named, LONGEST_NAMED)
    (digits,) = rows.runs([plan.number]).T
    process = np.where(process < MOST_PROCESS, process, -1)
    key = keys.setdefault(plan.key, len(keys))
    at = layout.at
    columns = plan.sort, plan.kind, process, *named.T, thread, key, digits, *times
    keep = (named < LIMIT).all(axis=1)
    if keep.all():
        return at, *columns
    return at[keep], *(column[keep] if np.ndim(column) else column for column in columns)


def _one_by_one(
    scan: Scan, text: bytes, places: Sequence[int], keys: dict[str, int]
) -> tuple[Any, ...]:
    """Places and columns of events of a text that are decoded each."""
    texts = events_of(text)
    places = [at for at in places if _NAMED.search(texts[at])]
    rows = []
    events = decode_all([texts[at] for at in places], scan.left_out)
    for at, event in zip(places, events, strict=True):
        plan = _plan(event)
        if plan is not None:
            key = keys.setdefault(plan.key, len(keys))
            rows.append((
                at, plan.sort, plan.kind, whole(plan.process), *plan.named, whole(plan.thread),
                key, plan.number, *map(number, plan.times),
            ))  # fmt: skip
    columns = np.array(rows, np.float64).reshape(-1, 1 + len(_Events._fields)).T
    return *columns[:-TIMED].astype(np.int64), *columns[-TIMED:]


def _add(collected: Collected, number_of_step: int, events: _Events, at: float) -> float:
    """Add a step that begins at `at`, in seconds; when it ends."""
    actions = events.taken(events.sort == ACTION)
    zero = float(actions.start.min())

    def seconds(time: Times) -> Times:
        return at + (time - zero) * MICROSECONDS

    begun, end = _transfers(events)
    if (still_open := np.isnan(end)).any():
        collected.left_out[OPEN] += int(np.count_nonzero(still_open))
        begun, end = begun.taken(~still_open), end[~still_open]
    is_send = np.isin(begun.kind, SEND_KINDS)
    for mine in (is_send, ~is_send):
        some = begun.taken(mine)
        carried = (
            number_of_step, 0, np.isin(some.kind, FORWARD_KINDS), some.stage + _AWAY[some.kind],
            some.microbatch, some.slice, some.rank, seconds(some.start),
        )  # fmt: skip
        if mine is is_send:
            collected.many("sends", *carried)
        else:
            collected.many("receives", *carried, seconds(some.waited), seconds(end[mine]))
    waited = _arrivals(actions, begun.taken(~is_send), end[~is_send])
    over = actions.start + actions.length
    collected.many(
        "actions", number_of_step, 0, actions.rank, actions.kind, actions.stage,
        actions.microbatch, actions.slice, _pairs(actions, over), seconds(actions.start),
        seconds(over), NAN, seconds(waited), NAN,
    )  # fmt: skip
    return float(seconds(np.fmax.reduce(over, initial=zero)))


def _transfers(events: _Events) -> tuple[_Events, Times]:
    """Transfers that begin, and when they end; NaN where that is not told."""
    rows = np.flatnonzero((events.sort == BEGIN) | (events.sort == END))
    begins = events.sort[rows] == BEGIN
    if not begins.any():
        return events.taken(rows[:0]), np.zeros(0)
    first, group = grouped([each[rows] for each in (events.rank, events.key, events.number)])
    last, end = np.full(len(first), -1), np.full(len(first), np.nan)
    last[group[begins]] = rows[begins]
    end[group[~begins]] = events.start[rows[~begins]]
    there = np.flatnonzero(last >= 0)
    there = there[np.argsort(last[there])]
    return events.taken(last[there]), end[there]


def _arrivals(actions: _Events, receives: _Events, end: Times) -> Times:
    """When the input of each action was received; NaN where that is not told."""
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


def _pairs(actions: _Events, over: Times) -> Whole:
    """The pair of every action in one: that of its first half.

    The other halves stand on a thread of their own, and began a moment later where that was
    measured. They go with the action on the first thread that they share most of their time with.
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
