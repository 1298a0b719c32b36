"""NDTimeline of veScale, as ByteDance publishes it: one Chrome trace of all workers.

A process is a data-parallel rank. Threads are called ``PP rank 1, TP rank 0, compute`` or
``…, pp-comm``. Events called ``forward-compute`` and ``backward-compute`` have their step, chunk
and microbatch in ``args``; those of transfers count calls. Times are in microseconds; workers have
aligned their clocks before they wrote.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from debubble.core.errors import FormatError
from debubble.core.kinds import Kind
from debubble.diagnosis.observed import PAUSES, Observed
from debubble.diagnosis.readers.chunks import Row, is_v_shaped, rank_of, stage_of
from debubble.diagnosis.readers.collected import Collected
from debubble.diagnosis.readers.scan import Scan, number, whole
from debubble.diagnosis.readers.stream import LeftOut

NAME = "ndtimeline"
MICROSECONDS = 1e-6

WORK = {"forward-compute": Kind.F, "backward-compute": Kind.B}
TRANSFERS = {
    "forward-send": Kind.SEND_F, "forward-recv": Kind.RECV_F,
    "backward-send": Kind.SEND_B, "backward-recv": Kind.RECV_B,
}  # fmt: skip

WANTED = re.compile(
    rb'"name"\s*:\s*"(?:(?:forward|backward)-(?:compute|send|recv)|gc|thread_name)"'
)
_THREAD = re.compile(r"PP rank (\d{1,6}), TP rank (\d{1,6}), ([\w-]{1,40})", re.ASCII)

_COMPUTE = re.compile(rb"PP rank \d{1,6}, TP rank \d{1,6}, compute")

NO_WORKER = "events of threads that are not called 'PP rank 0, TP rank 0, …'"
TENSOR = "events of tensor-parallel ranks other than the first of each worker"
NO_NUMBERS = "events without whole numbers as step, model_chunk and mb_id"
NO_TIME = "events without numbers as ts and dur"
MORE_CALLS = "steps of a worker with another number of transfers than its actions need"


class _Event(NamedTuple):
    name: str
    process: int
    thread: Any
    args: Mapping[str, Any]
    start: float
    end: float


class _Worker(NamedTuple):
    copy: int
    rank: int


def recognises(head: bytes) -> bool:
    """Whether this is such a file, by its beginning."""
    work = b'-compute"' in head and b'"mb_id"' in head
    return work or _COMPUTE.search(head) is not None


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read one file, or several with some of the workers each.

    Raises
    ------
    FormatError
        When no event tells of an action.
    """
    every: dict[_Worker, dict[int, list[_Event]]] = defaultdict(lambda: defaultdict(list))
    for path in files:
        _read_file(path, every, left_out)
    # All tensor-parallel ranks of a worker do the same at the same time.
    found = {worker: tensor[min(tensor)] for worker, tensor in every.items()}
    spare = sum(len(e) for tensor in every.values() for e in tensor.values())
    if spare := spare - sum(map(len, found.values())):
        left_out[TENSOR] += spare
    if not found:
        raise FormatError(f"{where}: no thread is called 'PP rank 0, TP rank 0, compute'")
    ranks = max(worker.rank for worker in found) + 1
    rows: dict[_Worker, list[Row]] = {
        worker: _actions(worker, events, left_out) for worker, events in found.items()
    }
    first = [row for worker, each in rows.items() if worker.copy == 0 for row in each]
    v_shaped = any(row[3] for row in first) and is_v_shaped(first, ranks)
    collected = Collected(where, left_out)
    for worker, events in found.items():
        _add(collected, worker, rows[worker], events, ranks, v_shaped)
    return collected.observed(
        NAME,
        {
            "rank": "names of threads",
            "copy": "process",
            "stage": "model_chunk and rank, placed " + ("in a V" if v_shaped else "round by round"),
            "microbatch": "mb_id of actions; transfers in order of their calls",
            "step": "step of the event",
            "clock": "of every worker, aligned by the writer",
        },
        unit=MICROSECONDS, clocks="hosts",
    )  # fmt: skip


def _read_file(
    path: Path, found: dict[_Worker, dict[int, list[_Event]]], left_out: LeftOut
) -> None:
    scan = Scan(path, left_out)
    threads: dict[tuple[int, Any], re.Match[str]] = {}
    events = []
    for texts in scan.events():
        for event in scan.decode_all([text for text in texts if WANTED.search(text)]):
            process, thread = whole(event.get("pid")), event.get("tid")
            args = event.get("args")
            if process < 0 or not isinstance(args, dict) or not isinstance(thread, int | str):
                continue
            name = str(event.get("name"))
            if name == "thread_name":
                match = _THREAD.match(str(args.get("name")))
                if match:
                    threads[process, thread] = match
                continue
            start, length = number(event.get("ts")), number(event.get("dur"))
            if start != start or length != length:
                left_out[NO_TIME] += 1
                continue
            events.append(_Event(name, process, thread, args, start, start + length))
    for one in events:
        match = threads.get((one.process, one.thread))
        if match is None:
            left_out[NO_WORKER] += 1
        else:
            found[_Worker(one.process, int(match[1]))][int(match[2])].append(one)


def _actions(worker: _Worker, events: Sequence[_Event], left_out: LeftOut) -> list[Row]:
    rows: list[Row] = []
    for one in events:
        kind = WORK.get(one.name)
        if kind is None:
            continue
        step, chunk, unit = (whole(one.args.get(key)) for key in ("step", "model_chunk", "mb_id"))
        if min(step, chunk, unit) < 0:
            left_out[NO_NUMBERS] += 1
            continue
        rows.append((step, worker.rank, kind, chunk, unit, one.start, one.end))
    return rows


def _add(
    collected: Collected, worker: _Worker, rows: Sequence[Row], events: Sequence[_Event],
    ranks: int, v_shaped: bool,
) -> None:  # fmt: skip
    copy, rank = worker
    stages = ranks * (1 + max((row[3] for row in rows), default=0))
    # What a step's k-th call of each transfer belongs to: the k-th action that needs one.
    needs: dict[tuple[int, Kind], list[tuple[float, int, int]]] = defaultdict(list)
    for step, _, kind, chunk, unit, start, end in rows:
        stage = stage_of(rank, chunk, ranks, v_shaped)
        collected.action(
            step, copy, rank, kind, stage, unit, start * MICROSECONDS, end * MICROSECONDS
        )
        before, after = (
            0 <= other < stages and rank_of(other, ranks, v_shaped) != rank
            for other in (stage - 1, stage + 1)
        )
        forward = kind == Kind.F
        if before if forward else after:
            needs[step, Kind.RECV_F if forward else Kind.RECV_B].append((start, stage, unit))
        if after if forward else before:
            needs[step, Kind.SEND_F if forward else Kind.SEND_B].append((start, stage, unit))
    calls: dict[tuple[int, Kind], list[tuple[float, float]]] = defaultdict(list)
    for one in events:
        step = whole(one.args.get("step"))
        if one.name in TRANSFERS and step >= 0:
            calls[step, TRANSFERS[one.name]].append((one.start, one.end))
        elif one.name == "gc" and one.end > one.start:
            start, end = one.start * MICROSECONDS, one.end * MICROSECONDS
            collected.pause(copy, rank, PAUSES.index("garbage-collection"), start, end)
    for (step, kind), times in calls.items():
        whose = needs[step, kind]
        if len(whose) != len(times):
            collected.left_out[MORE_CALLS] += 1
            continue
        for (_, stage, unit), (start, end) in zip(sorted(whose), sorted(times), strict=True):
            begin = start * MICROSECONDS
            if kind in (Kind.SEND_F, Kind.SEND_B):
                collected.transfer(step, copy, rank, kind, stage, unit, sent=begin)
            else:
                collected.transfer(
                    step, copy, rank, kind, stage, unit, posted=begin, waited=begin,
                    arrived=end * MICROSECONDS,
                )  # fmt: skip
