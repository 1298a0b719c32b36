"""Traces that debubble writes of its own runs: see :mod:`debubble.interchange.run_trace`.

What others write that call their events ``3F7`` and their processes like ranks is read as well.
One file has all ranks of one step, in several groups of processes: what was predicted, and last
what was measured. Several files are several steps, in the order of their names.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from debubble.core.errors import FormatError
from debubble.core.kinds import COMPUTE_KINDS, FORWARD_KINDS, SEND_KINDS, TRANSFER_KINDS
from debubble.diagnosis.observed import ALONE, Observed
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.names import Named, actions_named
from debubble.diagnosis.readers.scan import Scan, number, whole
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


@dataclass(eq=False)
class _Step:
    """What one file has of its last group."""

    actions: list[tuple[int, Any, float, float, Named]] = field(default_factory=list)
    """Process, thread, start and end in microseconds, and the action."""
    begun: dict[tuple[int, str], tuple[float, float, Named]] = field(default_factory=dict)
    """By process and id, of transfers: start, when it was waited for, and the action."""
    ended: dict[tuple[int, str], float] = field(default_factory=dict)


def recognises(head: bytes) -> bool:
    """Whether this is such a file, by its beginning."""
    if b'"otherData"' in head and b'"schedule"' in head and b'"traceEvents"' in head:
        return True
    return _DRAWN.search(head) is not None and b'"cpu_op"' not in head


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read one file, or one for each step.

    Raises
    ------
    FormatError
        When all times are simulated ones.
    """
    collected = Collected(where, left_out)
    hosts: tuple[str, ...] = ()
    ranks = 0
    at = 0.0
    for number_of_step, path in enumerate(files):
        scan = Scan(path, left_out)
        step = _read_file(scan)
        about = scan.about("otherData")
        about = about if isinstance(about, dict) else {}
        if "time_unit" in about:
            left_out[SIMULATED] += 1
            continue
        found = about.get("hosts")
        if isinstance(found, list) and all(isinstance(name, str) for name in found[:GROUP]):
            hosts = tuple(found[:GROUP])
        ranks = max(ranks, whole(about.get("ranks"), GROUP))
        at = _add(collected, number_of_step, step, at)
    if not collected.actions:
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


def _read_file(scan: Scan) -> _Step:
    """The last group of a file."""
    groups: dict[int, _Step] = {}
    for texts in scan.events():
        for event in scan.decode_all([text for text in texts if _NAMED.search(text)]):
            named = actions_named(str(event.get("name"))[:200])
            if len(named) != 1:
                continue
            phase, process = event.get("ph"), whole(event.get("pid"))
            time = number(event.get("ts"))
            if process < 0 or time != time:
                scan.left_out[NO_TIME] += 1
                continue
            group, rank = divmod(process, GROUP)
            step = groups.setdefault(group, _Step())
            if phase == "X" and named[0].kind in COMPUTE_KINDS:
                length = number(event.get("dur", 0))
                step.actions.append((rank, event.get("tid"), time, time + length, named[0]))
            elif phase == "b" and named[0].kind in TRANSFER_KINDS:
                args = event.get("args")
                waited = number(args.get("waited")) if isinstance(args, dict) else NAN
                step.begun[rank, str(event.get("id"))] = (time, waited, named[0])
            elif phase == "e":
                step.ended[rank, str(event.get("id"))] = time
    if not groups:
        return _Step()
    last = groups.pop(max(groups))
    predicted = sum(len(group.actions) for group in groups.values())
    if predicted:
        scan.left_out[PREDICTED] += predicted
    return last


def _add(collected: Collected, number_of_step: int, step: _Step, at: float) -> float:
    """Add a step that begins at `at`, in seconds; when it ends."""
    if not step.actions:
        return at
    zero = min(start for _, _, start, _, _ in step.actions)

    def seconds(time: float) -> float:
        return at + (time - zero) * MICROSECONDS

    arrivals: dict[tuple[int, bool, int, int, int], float] = {}
    for key, (start, waited, one) in step.begun.items():
        end = step.ended.get(key, NAN)
        if end != end:
            collected.left_out[OPEN] += 1
            continue
        place = number_of_step, 0, key[0], one.kind, one.stage, one.microbatch
        if one.kind in SEND_KINDS:
            collected.transfer(*place, slice=one.slice, sent=seconds(start))
            continue
        arrivals[key[0], one.kind in FORWARD_KINDS, *one[1:]] = seconds(end)
        collected.transfer(
            *place, slice=one.slice, posted=seconds(start), waited=seconds(waited),
            arrived=seconds(end),
        )  # fmt: skip
    pairs = _pairs(step)
    for index, (rank, _, start, end, one) in enumerate(step.actions):
        collected.action(
            number_of_step, 0, rank, one.kind, one.stage, one.microbatch, seconds(start),
            seconds(end), slice=one.slice, pair=pairs.get(index, ALONE),
            waited=arrivals.get((rank, one.kind in FORWARD_KINDS, *one[1:]), NAN),
        )  # fmt: skip
    return seconds(max(end for *_, end, _ in step.actions))


def _pairs(step: _Step) -> dict[int, int]:
    """The pair of every action in one: that of its first half.

    The other halves stand on a thread of their own, and began a moment later where that was
    measured. They go with the action on the first thread that they share most of their time with.
    """
    firsts: dict[int, list[tuple[float, float, int]]] = {}
    for place, (rank, thread, start, end, _) in enumerate(step.actions):
        if thread != PAIRED:
            firsts.setdefault(rank, []).append((start, end, place))
    for row in firsts.values():
        row.sort()
    found: dict[int, int] = {}
    for place, (rank, thread, start, end, _) in enumerate(step.actions):
        if thread != PAIRED:
            continue
        row = firsts.get(rank, [])
        at = bisect_right(row, (start, end, place))
        near = row[max(at - 2, 0) : at + 1]
        shared = [(min(end, over) - max(start, begin), other) for begin, over, other in near]
        most, other = max(shared, default=(0.0, ALONE))
        if most > 0:
            found[place] = found[other] = other
    return found
