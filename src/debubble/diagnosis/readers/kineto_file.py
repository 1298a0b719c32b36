"""One file of PyTorch's profiler (Kineto): the events that tell of a pipeline, as columns.

Times stay whole nanoseconds: a float of microseconds since 1970 has a grain of 0.2 µs. What is
wanted of an event is found in its text by patterns, which is several times as fast as JSON and
does not mind a quote that a kernel's name forgot to escape.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from debubble.diagnosis.observed import PAUSES
from debubble.diagnosis.readers.action_names import actions_named
from debubble.diagnosis.readers.scan import Scan, whole
from debubble.diagnosis.readers.stream import LeftOut

Times = NDArray[np.int64]

MAX_EVENTS = 1 << 24
"""Kernels of one file, and likewise launches and ranges."""

WHOLE_NANOSECONDS = 10**17
"""A time of this and more is in nanoseconds; in microseconds it would be in the year 5138."""

LATEST = 1 << 62
"""Nanoseconds that no time reaches: in the year 2116."""

NO_TIME = "events without a time"
TOO_MANY = f"files with more than {MAX_EVENTS:,} kernels or launches (the rest of them)"

CPU, GPU, LAUNCH = range(3)
_CATEGORIES = {
    b"cpu_op": CPU, b"user_annotation": CPU, b"Operator": CPU, b"python_function": CPU,
    b"kernel": GPU, b"Kernel": GPU, b"gpu_memcpy": GPU, b"Memcpy": GPU, b"gpu_memset": GPU,
    b"Memset": GPU, b"cuda_runtime": LAUNCH, b"cuda_driver": LAUNCH, b"Runtime": LAUNCH,
    b"async_gpu": GPU,
}  # fmt: skip
_CATEGORY = re.compile(rb'"cat"\s*:\s*"(' + b"|".join(_CATEGORIES) + rb')"', re.ASCII)
_NAME = re.compile(
    rb'"name"\s*:\s*"((?:[A-Z]+:[\d(]|(?:Forward|Backward) \d|ProfilerStep#|gloo:recv|c10d::send'
    rb'|c10d::recv_|<built-in function collect>|Python GC)[^"]{0,200})"'
)
_TIME = re.compile(rb'"ts"\s*:\s*(\d{1,20})(?:\.(\d*))?')
_LENGTH = re.compile(rb'"dur"\s*:\s*(\d{1,20})(?:\.(\d*))?')
_USUAL = re.compile(
    rb'"tid": (\d{1,18}),\s*"ts": (\d{1,15})\.(\d{3}), "dur": (\d{1,15})\.(\d{3}),', re.ASCII
)
"""Thread, time and length as the profiler writes them, which is faster than one by one."""

_THREAD = re.compile(rb'"tid"\s*:\s*(?:"stream )?(\d{1,18})')
_CORRELATION = re.compile(rb'"correlation"\s*:\s*(\d{1,18})')
_ALLOCATES = re.compile(rb'"name"\s*:\s*"(?:cuda|hip|cu)(?:Malloc|Free|Mem(?:Alloc|Free|Create))')
_RANK = re.compile(r"rank[-_ ]?(\d{1,7})", re.IGNORECASE | re.ASCII)
_MICROBATCH = re.compile(r"(Forward|Backward) (\d{1,7})", re.ASCII)


@dataclass(eq=False)
class Rows:
    """Numbers of many events: rows of as many values each."""

    width: int
    values: array[int] = field(default_factory=lambda: array("q"))

    def add(self, *row: int) -> None:
        """Add a row."""
        self.values.extend(row)

    @property
    def full(self) -> bool:
        """Whether there is no room for more."""
        return len(self.values) >= MAX_EVENTS * self.width

    def sorted(self) -> Times:
        """The rows as columns, sorted by the first; shape ``(width, n)``."""
        rows = np.frombuffer(self.values, np.int64).reshape(-1, self.width)
        return rows[np.argsort(rows[:, 0], kind="stable")].T if len(rows) else rows.T


@dataclass(eq=False)
class KinetoFile:
    """What one file tells; times in nanoseconds.

    Attributes
    ----------
    rank
        Of the whole job, −1 where nothing says it; `named_by` says what told it.
    world
        Ranks of the whole job, 0 where nothing says it.
    groups
        Process groups that the rank is in, as names with their ranks.
    ranges
        Start and end of what is called like an action, and the number of its name.
    numbers
        Names of ranges by their numbers.
    steps
        Start, end and number of the profiler's steps.
    sends, receives, arrivals
        Starts of c10d's sends and receives on the host, start and end of gloo's receives.
    launches
        Correlation, time, and whether it is one of a kernel.
    kernels
        Correlation, start, end, stream, and whether it is a collective (1) or a p2p (2).
    """

    path: Path
    rank: int = -1
    named_by: str = ""
    world: int = 0
    backend: str = ""
    host: str = ""
    groups: Sequence[tuple[str, tuple[int, ...]]] = ()
    numbers: dict[str, int] = field(default_factory=dict)
    ranges: Rows = field(default_factory=lambda: Rows(3))
    steps: Rows = field(default_factory=lambda: Rows(3))
    sends: Rows = field(default_factory=lambda: Rows(1))
    receives: Rows = field(default_factory=lambda: Rows(1))
    arrivals: Rows = field(default_factory=lambda: Rows(2))
    launches: Rows = field(default_factory=lambda: Rows(3))
    kernels: Rows = field(default_factory=lambda: Rows(5))
    pauses: Rows = field(default_factory=lambda: Rows(3))
    base: int = 0

    def _note(self, name: str, start: int, end: int) -> None:
        """Sort an event of the host by its name."""
        if name.startswith("gloo:recv"):
            self.arrivals.add(start, end)
        elif name.startswith("c10d::send"):
            self.sends.add(start)
        elif name.startswith("c10d::recv_"):
            self.receives.add(start)
        elif name.startswith("ProfilerStep#"):
            number = name[13:].strip()
            if number.isdecimal() and len(number) < 10:
                self.steps.add(start, end, int(number))
        elif name.startswith(("<built-in", "Python GC")):
            self.pauses.add(start, end, PAUSES.index("garbage-collection"))
        elif actions_named(name) or _MICROBATCH.fullmatch(name):
            self.add_range(name, start, end)

    def add_range(self, name: str, start: int, end: int) -> None:
        """Add a range that is called like an action."""
        self.ranges.add(start, end, self.numbers.setdefault(name, len(self.numbers)))

    @property
    def names(self) -> list[str]:
        """What ranges are called, by their numbers."""
        return list(self.numbers)

    def forget(self) -> None:
        """Drop all events, of which there may be millions."""
        for name in ("ranges", "steps", "sends", "receives", "arrivals", "launches", "kernels"):
            setattr(self, name, Rows(getattr(self, name).width))


def recognizes(head: bytes) -> bool:
    """Whether this is such a file, by its beginning."""
    if b'"otherData"' in head:
        return False
    marks = (b'"schemaVersion"', b'"baseTimeNanoseconds"', b'"distributedInfo"')
    trace = b'"traceEvents"' in head and any(mark in head for mark in marks)
    return trace or _CATEGORY.search(head) is not None


def read_file(path: Path, left_out: LeftOut) -> KinetoFile:
    """Scan a file."""
    scan = Scan(path, left_out)
    found = KinetoFile(path)
    for texts in scan.events():
        if found.kernels.full or found.launches.full or found.ranges.full:
            left_out[TOO_MANY] += 1
            break
        for text in texts:
            category = _CATEGORY.search(text)
            if category is None:
                continue
            kind = _CATEGORIES[category[1]]
            if kind == CPU:
                name = _NAME.search(text)
                if name is not None:
                    start, end = times(text)
                    if start < 0:
                        left_out[NO_TIME] += 1
                    else:
                        found._note(name[1].decode("utf-8", "replace"), start, end)
            elif kind == LAUNCH:
                _launch(found, text)
            else:
                _kernel(found, text, left_out)
    _about(found, scan)
    return found


def _launch(found: KinetoFile, text: bytes) -> None:
    correlation, time = _CORRELATION.search(text), _TIME.search(text)
    if correlation is None or time is None:
        return
    launches = b"LaunchKernel" in text
    found.launches.add(int(correlation[1]), _nanoseconds(time), launches)
    if _ALLOCATES.search(text) is not None:
        start, end = times(text)
        found.pauses.add(start, end, PAUSES.index("memory"))


def _kernel(found: KinetoFile, text: bytes, left_out: LeftOut) -> None:
    correlation = _CORRELATION.search(text)
    if correlation is None:
        return
    usual = _USUAL.search(text)
    if usual is not None:
        thread, time, part, length, rest = usual.groups()
        start = int(time + part)
        end = start + int(length + rest)
    else:
        stream = _THREAD.search(text)
        if stream is None:
            return
        thread = stream[1]
        start, end = times(text)
    # The profiler writes 0 where the device told it no time.
    if start <= 0:
        left_out[NO_TIME] += 1
        return
    sort = (2 if b"SendRecv" in text else 1) if b"nccl" in text else 0
    found.kernels.add(int(correlation[1]), start, end, int(thread), sort)


def times(text: bytes) -> tuple[int, int]:
    """Start and end of an event's text in nanoseconds, −1 where it has none."""
    time, length = _TIME.search(text), _LENGTH.search(text)
    if time is None or length is None:
        return -1, -1
    start = _nanoseconds(time)
    lasts = int(length[1]) if len(time[1]) > 17 else max(_nanoseconds(length), 0)
    return start, min(start + lasts, LATEST)


def _nanoseconds(match: re.Match[bytes]) -> int:
    """Whole nanoseconds of microseconds as text; 18 digits and more are nanoseconds already.

    −1 for a time that is no time.
    """
    value = int(match[1])
    if value < WHOLE_NANOSECONDS:
        fraction = match[2]
        value *= 1000
        if fraction:
            value += int(fraction if len(fraction) == 3 else (fraction + b"000")[:3])
    return value if value < LATEST else -1


def _about(found: KinetoFile, scan: Scan) -> None:
    """What the file says of itself: rank, host, groups, and what its times count from."""
    info = scan.about("distributedInfo")
    info = info if isinstance(info, dict) else {}
    found.rank, found.named_by = whole(info.get("rank"), 1 << 24), "distributedInfo.rank"
    if found.rank < 0:
        numbers = _RANK.findall(found.path.name)
        if numbers:
            found.rank, found.named_by = int(numbers[-1]), "number in the file's name"
    found.world = max(whole(info.get("world_size"), 1 << 24), 0)
    found.backend = str(info.get("backend", ""))[:100]
    host = scan.about("host_name")
    found.host = host[:200] if isinstance(host, str) else ""
    base = scan.about("baseTimeNanoseconds")
    found.base = base if type(base) is int and 0 <= base < 1 << 62 else 0
    config = info.get("pg_config")
    found.groups = [
        (f"{one.get('pg_desc', '')} {one.get('pg_name', '')}".lower()[:200], _ranks(one["ranks"]))
        for one in (config if isinstance(config, list) else [])[:1000]
        if isinstance(one, dict) and one.get("ranks")
    ]


def _ranks(value: Any) -> tuple[int, ...]:
    """Ranks of a group: a list, or its text."""
    if isinstance(value, str):
        return tuple(int(number) for number in re.findall(r"\d{1,7}", value))
    return tuple(v for v in value if type(v) is int) if isinstance(value, list) else ()
