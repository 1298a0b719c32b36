"""One file of PyTorch's profiler (Kineto): the events of a pipeline, as columns.

Times stay whole nanoseconds: a float of microseconds since 1970 has a grain of 0.2 µs. Some
profilers do not escape a quote in a kernel's name. A block with such an event is not JSON, so its
events are read by patterns.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from debubble.diagnosis.observed import PAUSES
from debubble.diagnosis.readers.action_names import PASSES, Named, actions_named
from debubble.diagnosis.readers.events import EventFile, whole
from debubble.diagnosis.readers.stream import LeftOut

Nanoseconds = NDArray[np.int64]

MAX_EVENTS = 1 << 24
"""Maximum number of kernels of one file, and likewise of launches and ranges."""

WHOLE_NANOSECONDS = 10**17
"""Minimum time that is in nanoseconds; in microseconds it would be in the year 5138."""

LATEST = 1 << 62
"""Exclusive limit of times in nanoseconds: in the year 2116."""

MOST = 10**18
"""Exclusive limit of correlation, stream and sequence numbers."""

UNKNOWN = -1
"""Unknown time, or unknown stage of a range with only a microbatch."""

NO_TIME = "events without a time"
TOO_MANY = f"files with more than {MAX_EVENTS:,} kernels or launches (the rest of them)"

CPU, GPU, LAUNCH = range(3)
CATEGORIES = {
    "cpu_op": CPU, "user_annotation": CPU, "Operator": CPU, "python_function": CPU,
    "kernel": GPU, "Kernel": GPU, "gpu_memcpy": GPU, "Memcpy": GPU, "gpu_memset": GPU,
    "Memset": GPU, "cuda_runtime": LAUNCH, "cuda_driver": LAUNCH, "Runtime": LAUNCH,
    "async_gpu": GPU,
}  # fmt: skip

_CATEGORY = re.compile(rb'"cat"\s*:\s*"(' + "|".join(CATEGORIES).encode() + rb')"')
_HOST_NAME = re.compile(
    r"(?:(?P<ranges>[A-Z]+:[\d(]|(?:Forward|Backward) \d)|(?P<steps>ProfilerStep#)"
    r"|(?P<arrivals>gloo:recv)|(?P<sends>c10d::send)|(?P<receives>c10d::recv_)"
    r'|(?P<pauses><built-in function collect>|Python GC))[^"]{0,200}', re.ASCII
)  # fmt: skip
"""Names of used events of the host, by the columns that they are for."""

_ALLOCATES = re.compile(r"(?:cuda|hip|cu)(?:Malloc|Free|Mem(?:Alloc|Free|Create))")
_TIME = re.compile(rb"(\d{1,20})(?:\.(\d*))?")
_STREAM = re.compile(r"stream (\d{1,18})", re.ASCII)
_RANK = re.compile(r"rank[-_ ]?(\d{1,7})", re.IGNORECASE | re.ASCII)
_MICROBATCH = re.compile(r"(Forward|Backward) (\d{1,7})", re.ASCII)

NOTHING = msgspec.Raw()


class Arguments(msgspec.Struct, gc=False):
    """Used arguments of an event."""

    correlation: Any = None
    sequence: Any = msgspec.field(default=None, name="Sequence number")


class Event(msgspec.Struct, gc=False):
    """An event of the profiler; times as text."""

    cat: str = ""
    name: str = ""
    tid: Any = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: Arguments | None = None

    @property
    def correlation(self) -> int:
        """Correlation number, shared by a kernel and its launch; −1 for none."""
        return -1 if self.args is None else whole(self.args.correlation, MOST)

    @property
    def sequence(self) -> int:
        """Autograd's sequence number; −1 for none."""
        return -1 if self.args is None else whole(self.args.sequence, MOST)

    @property
    def times(self) -> tuple[int, int]:
        """Start and end in nanoseconds; −1 for none."""
        text = bytes(self.ts)
        start, lasts = _nanoseconds(text), _nanoseconds(bytes(self.dur))
        if lasts is None or start is None:
            return -1, -1
        if start >= 0 and len(text.partition(b".")[0]) > 17:
            # The duration is in nanoseconds, too.
            lasts = int(bytes(self.dur).partition(b".")[0])
        return start, min(start + max(lasts, 0), LATEST)


def events_of(path: Path, left_out: LeftOut) -> EventFile[Event]:
    """Return the events of a file."""
    return EventFile(path, Event, left_out, by_pattern=_by_pattern)


_PATTERNS = {
    "name": re.compile(rb'"name"\s*:\s*"(.*?)"\s*[,}]', re.DOTALL),
    "stream": re.compile(rb'"tid"\s*:\s*(?:"stream )?(\d{1,18})'),
    "ts": re.compile(rb'"ts"\s*:\s*(\d{1,20}(?:\.\d*)?)'),
    "dur": re.compile(rb'"dur"\s*:\s*(\d{1,20}(?:\.\d*)?)'),
    "correlation": re.compile(rb'"correlation"\s*:\s*(\d{1,18})'),
    "sequence": re.compile(rb'"Sequence number"\s*:\s*(\d{1,18})'),
}


def _by_pattern(text: bytes) -> Event:
    """Return the event of a text that is not JSON; empty if its category is not used."""
    category = _CATEGORY.search(text)
    if category is None:
        return Event()
    found = {key: pattern.search(text) for key, pattern in _PATTERNS.items()}
    texts = {key: match[1] if match else b"" for key, match in found.items()}
    stream, correlation, sequence = (
        int(texts[key]) if texts[key] else None for key in ("stream", "correlation", "sequence")
    )
    return Event(
        category[1].decode(), texts["name"].decode("utf-8", "replace"), stream,
        msgspec.Raw(texts["ts"]), msgspec.Raw(texts["dur"]), Arguments(correlation, sequence),
    )  # fmt: skip


def _nanoseconds(text: bytes) -> int | None:
    """Return whole nanoseconds from text in microseconds, or in nanoseconds from 18 digits on.

    The result is None if the text is not a number, and −1 if the time is out of range.
    """
    # The profiler writes three digits after the point.
    digits = text[:-4] + text[-3:]
    if text[-4:-3] == b"." and digits.isdigit() and len(digits) < 19:
        return int(digits)
    match = _TIME.match(text)
    if match is None:
        return None
    value = int(match[1])
    if value < WHOLE_NANOSECONDS:
        value = value * 1000 + int(((match[2] or b"") + b"000")[:3])
    return value if value < LATEST else -1


@dataclass(eq=False)
class IntRows:
    """Numbers of many events: rows of equal length."""

    width: int
    values: array[int] = field(default_factory=lambda: array("q"))

    def add(self, *row: int) -> None:
        """Add a row."""
        self.values.extend(row)

    @property
    def full(self) -> bool:
        """True if there is no room for more rows."""
        return len(self.values) >= MAX_EVENTS * self.width

    def sorted(self) -> Nanoseconds:
        """Return the rows as columns, sorted by the first; shape ``(width, n)``."""
        rows = np.frombuffer(self.values, np.int64).reshape(-1, self.width)
        return rows[np.argsort(rows[:, 0], kind="stable")].T if len(rows) else rows.T


@dataclass(eq=False)
class KinetoFile:
    """Events of a pipeline in one file; times in nanoseconds."""

    path: Path
    rank: int = -1  # in the whole job, -1 if unknown
    named_by: str = ""  # source of the rank
    world: int = 0  # ranks of the whole job, 0 if unknown
    backend: str = ""
    host: str = ""
    groups: Sequence[tuple[str, tuple[int, ...]]] = ()  # process groups: names and ranks
    base: int = 0  # zero of times
    numbers: dict[str, int] = field(default_factory=dict)  # of the names of ranges
    ranges: IntRows = field(default_factory=lambda: IntRows(3))  # start, end, number of the name
    steps: IntRows = field(default_factory=lambda: IntRows(3))  # start, end, number
    sends: IntRows = field(default_factory=lambda: IntRows(1))  # start on the host
    receives: IntRows = field(default_factory=lambda: IntRows(1))  # start on the host
    arrivals: IntRows = field(default_factory=lambda: IntRows(2))  # start, end of gloo's receives
    launches: IntRows = field(default_factory=lambda: IntRows(3))  # correlation, time, of a kernel
    # Correlation, start, end, stream, and sort: a collective (1) or a p2p (2).
    kernels: IntRows = field(default_factory=lambda: IntRows(5))
    pauses: IntRows = field(default_factory=lambda: IntRows(3))  # start, end, cause
    # Start, end, and whether autograd runs it: operations of the host, if pairs need them.
    operations: IntRows = field(default_factory=lambda: IntRows(3))

    def add_on_host(self, use: str, name: str, start: int, end: int) -> None:
        """Add an event of the host to the columns that :func:`use_of` names."""
        if use == "ranges":
            self.add_range(name, start, end)
        elif use == "arrivals":
            self.arrivals.add(start, end)
        elif use == "steps":
            self.steps.add(start, end, int(name[len(STEP) :]))
        elif use == "pauses":
            self.pauses.add(start, end, PAUSES.index("garbage-collection"))
        elif use:
            getattr(self, use).add(start)

    def add_range(self, name: str, start: int, end: int) -> None:
        """Add a range named like an action."""
        self.ranges.add(start, end, self.numbers.setdefault(name, len(self.numbers)))

    def forget(self) -> None:
        """Drop all events to free memory; there may be millions."""
        for name in ("ranges", "steps", "sends", "receives", "arrivals", "launches", "kernels",
                     "operations"):  # fmt: skip
            setattr(self, name, IntRows(getattr(self, name).width))


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    if b'"otherData"' in head:
        return False
    marks = (b'"schemaVersion"', b'"baseTimeNanoseconds"', b'"distributedInfo"')
    trace = b'"traceEvents"' in head and any(mark in head for mark in marks)
    return trace or _CATEGORY.search(head) is not None


def read_file(path: Path, left_out: LeftOut) -> KinetoFile:
    """Read the events of a pipeline from a file."""
    events = events_of(path, left_out)
    found = KinetoFile(path)
    for block in events.blocks():
        if found.kernels.full or found.launches.full or found.ranges.full:
            left_out[TOO_MANY] += 1
            break
        for event in block:
            kind = CATEGORIES.get(event.cat)
            if kind == CPU:
                use = use_of(event.name)
                if use is not None:
                    start, end = event.times
                    if start < 0:
                        left_out[NO_TIME] += 1
                    else:
                        found.add_on_host(use, event.name, start, end)
            elif kind == LAUNCH:
                _add_launch(found, event)
            elif kind == GPU:
                _add_kernel(found, event, left_out)
    _describe(found, events)
    if len(found.arrivals.values) and not len(found.kernels.values) and _has_pairs(found):
        _add_operations(found)
    return found


def _has_pairs(file: KinetoFile) -> bool:
    return any(len(actions_named(name)) > 1 for name in file.numbers)


def _add_operations(found: KinetoFile) -> None:
    """Add the operations of the host within pairs; a pair waits between its two actions."""
    pairs = [at for name, at in found.numbers.items() if len(actions_named(name)) > 1]
    ranges = found.ranges.sorted()
    begins, ends = ranges[:2, np.isin(ranges[2], pairs)]
    for block in EventFile(found.path, Event, Counter()).blocks():
        some = [event for event in block if event.cat in OPERATIONS]
        times = np.array([event.times for event in some], np.int64).reshape(-1, 2)
        at = np.searchsorted(begins, times[:, 0], side="right") - 1
        inside = (at >= 0) & (times[:, 1] <= ends[np.maximum(at, 0)])
        for place in np.flatnonzero(inside).tolist():
            if not found.operations.full:
                backward = some[place].name.startswith(EVALUATION)
                found.operations.add(*times[place].tolist(), backward)


OPERATIONS = ("cpu_op", "Operator")
"""Categories of operations of the host."""

EVALUATION = "autograd::engine::evaluate_function: "
"""Beginning of the names of autograd's evaluations in a backward."""

STEP = "ProfilerStep#"


@functools.lru_cache(maxsize=1 << 16)
def use_of(name: str) -> str | None:
    """Return the columns of a host event by its name; None for any other name.

    The result is empty for names that only look like one.
    """
    match = _HOST_NAME.fullmatch(name)
    if match is None:
        return None
    number = name[len(STEP) :].strip()
    if match["steps"] and not (number.isdecimal() and len(number) < 10):
        return ""
    return "" if match["ranges"] and not parts_of(name) else match.lastgroup


def parts_of(name: str) -> tuple[Named, ...]:
    """Return the actions of a range; those of GPipe have no stage."""
    match = _MICROBATCH.fullmatch(name)
    if match is None:
        return actions_named(name)
    return (Named(PASSES[match[1].lower()], UNKNOWN, int(match[2]), 0),)


def _add_launch(found: KinetoFile, event: Event) -> None:
    correlation, time = event.correlation, _nanoseconds(bytes(event.ts))
    if correlation < 0 or time is None:
        return
    found.launches.add(correlation, time, "LaunchKernel" in event.name)
    if _ALLOCATES.match(event.name) is not None:
        found.pauses.add(*event.times, PAUSES.index("memory"))


def _add_kernel(found: KinetoFile, event: Event, left_out: LeftOut) -> None:
    correlation, stream, name = event.correlation, event.tid, event.name
    if isinstance(stream, str) and (match := _STREAM.match(stream)):
        stream = int(match[1])
    if correlation < 0 or whole(stream, MOST) < 0:
        return
    start, end = event.times
    # The profiler writes 0 if the device has no time.
    if start <= 0:
        left_out[NO_TIME] += 1
        return
    sort = (2 if "SendRecv" in name else 1) if "nccl" in name else 0
    found.kernels.add(correlation, start, end, stream, sort)


def _describe(found: KinetoFile, events: EventFile[Event]) -> None:
    """Set rank, host, groups and the zero of times from the metadata of a file."""
    info = events.about("distributedInfo")
    info = info if isinstance(info, dict) else {}
    found.rank, found.named_by = whole(info.get("rank"), 1 << 24), "distributedInfo.rank"
    if found.rank < 0 and (number := rank_named(found.path)) >= 0:
        found.rank, found.named_by = number, "number in the file's name"
    found.world = max(whole(info.get("world_size"), 1 << 24), 0)
    found.backend = str(info.get("backend", ""))[:100]
    host = events.about("host_name")
    found.host = host[:200] if isinstance(host, str) else ""
    base = events.about("baseTimeNanoseconds")
    found.base = base if type(base) is int and 0 <= base < 1 << 62 else 0
    config = info.get("pg_config")
    found.groups = [
        (f"{one.get('pg_desc', '')} {one.get('pg_name', '')}".lower()[:200], _ranks(one["ranks"]))
        for one in (config if isinstance(config, list) else [])[:1000]
        if isinstance(one, dict) and one.get("ranks")
    ]


def rank_named(path: Path) -> int:
    """Return the rank in a file's name, −1 for none."""
    return int((_RANK.findall(path.name) or [-1])[-1])


def _ranks(value: Any) -> tuple[int, ...]:
    """Return the ranks of a group from a list, or from its text."""
    if isinstance(value, str):
        return tuple(int(number) for number in re.findall(r"\d{1,7}", value))
    return tuple(v for v in value if type(v) is int) if isinstance(value, list) else ()
