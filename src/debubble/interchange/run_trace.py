"""A real run as Trace Event JSON: predicted and measured times, one group of processes each.

Messages are asynchronous slices of the category ``transfer`` on the last group's processes, two for
each, with ``args.transfer`` for their number and ``args.from`` and ``args.to`` for their ranks:

* on the sender, ``0SEND_F1`` from when the send is posted to when it has been;
* on the receiver, ``1RECV_F1`` from when the receive is posted to when the tensors are there;
  ``args.waited`` is the time when the rank began to wait for them, in microseconds as ``ts``.

``otherData.hosts`` has the host of every rank. Times of several hosts are on the clock of rank 0's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from debubble.core.actions import computes, kinds_of
from debubble.core.schedule import Schedule
from debubble.interchange.trace_events import Tracks, described, document, write

GROUP = 10_000
"""Distance of the process numbers of two groups; more than there are ranks."""

MICROSECONDS = 1e6

Times = Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]


class Transfer(NamedTuple):
    """One message between two ranks; times in seconds, as those of the actions."""

    send: str
    """The action: ``0SEND_F1``."""
    source: int
    send_start: float
    send_end: float
    """End of posting; the send goes on in the background."""
    receive: str
    target: int
    posted: float
    waited: float
    """Time when the receiver began to wait."""
    there: float


def save_run_trace(
    schedule: Schedule,
    times: Times,
    path: str | Path,
    *,
    transfers: Iterable[Transfer] = (),
    hosts: Sequence[str] = (),
) -> None:
    """Write a trace file: the pieces of :func:`run_trace` by :func:`write`."""
    write(run_trace(schedule, times, transfers=transfers, hosts=hosts), path)


def run_trace(
    schedule: Schedule,
    times: Times,
    *,
    transfers: Iterable[Transfer] = (),
    hosts: Sequence[str] = (),
) -> Iterator[str]:
    """Return the trace as pieces of JSON text: computations, waits for results, and messages.

    `times` are start and end of every action in seconds, shape ``(n,)``, by name of the group;
    `transfers` the messages of the last group, and `hosts` the host of every rank.
    """
    about = {**described(schedule), "groups": list(times)}
    if hosts:
        about["hosts"] = list(hosts)
    return document(about, _events(schedule, times, transfers))


def _events(schedule: Schedule, times: Times, transfers: Iterable[Transfer]) -> Iterator[str]:
    shown = computes(kinds_of(schedule.actions))
    arrows = 0
    for number, (name, (start, end)) in enumerate(times.items()):
        tracks = Tracks(
            schedule, start * MICROSECONDS, (end - start) * MICROSECONDS, name, number * GROUP,
            arrows, shown,
        ).in_whole_nanoseconds()  # fmt: skip
        yield from tracks.events()
        arrows = tracks.last_arrow
    first = (len(times) - 1) * GROUP
    for number, one in enumerate(transfers):
        about = {"transfer": number, "from": one.source, "to": one.target}
        waited = {"waited": _microseconds(one.waited)}
        yield from _message(f"s{number}", one.send, first + one.source, one.send_start,
                            one.send_end, about)  # fmt: skip
        yield from _message(f"r{number}", one.receive, first + one.target, one.posted,
                            one.there, about | waited)  # fmt: skip


def _message(
    key: str, name: str, process: int, start: float, end: float, about: Mapping[str, float]
) -> Iterator[str]:
    """Yield an asynchronous slice: those of one rank may overlap."""
    both = {"cat": "transfer", "id": key, "name": name, "pid": process, "tid": 0}
    yield json.dumps({"ph": "b", **both, "ts": _microseconds(start), "args": about})
    yield json.dumps({"ph": "e", **both, "ts": _microseconds(max(start, end))})


def _microseconds(seconds: float) -> float:
    return round(seconds * MICROSECONDS, 3)
