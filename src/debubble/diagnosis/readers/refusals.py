"""Reasons why a file is no readable trace: what it is, and what to do with it."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from pathlib import Path

from debubble.core.units import counted
from debubble.diagnosis.readers.events import first_value
from debubble.diagnosis.readers.kineto_file import CATEGORIES, GPU, events_of
from debubble.diagnosis.readers.stream import LeftOut
from debubble.interchange.text import plain

TABLE = (
    "times of any other program can be given as a table, a CSV with the columns rank, action, "
    "start, end (0,0F3,1.25,1.31; --format table)"
)
"""Way out for every trace of an unknown format."""

UNKNOWN = "files of no format that is known here"
NOT_EXPORTED = "reports of Nsight Systems; 'nsys export --type sqlite' makes readable files of them"

REPORTS = (".nsys-rep", ".qdrep")
NAMED = 3
"""Maximum number of names in a reason."""

BLOCKS = 64
"""Blocks of events of a file, of about a MiB each, that are looked at for a reason."""

_ARCHIVES = (
    (b"PK\x03\x04", "zip archives; unpack them first: unzip FILE"),
    (b"\x28\xb5\x2f\xfd", "files packed by zstd; unpack them first: unzstd FILE"),
    (b"\xfd7zXZ\x00", "files packed by xz; unpack them first: unxz FILE"),
    (b"BZh", "files packed by bzip2; unpack them first: bunzip2 FILE"),
)
_TAR = 257
"""Place of the word ``ustar`` in a tar archive, in bytes."""

_BINARY = (
    (b"PAR1", "Parquet tables; write them as CSV"),
    (b"\x80\x02", "pickles, which are not read here"),
    (b"\x80\x04", "pickles, which are not read here"),
    (b"\x80\x05", "pickles, which are not read here"),
)
_RANGE = re.compile(rb'"ph"\s*:\s*"[XB]"')
_NAME = re.compile(rb'"name"\s*:\s*("(?:[^"\\]|\\.){1,200}")')


def reason_unreadable(path: Path, begin: bytes) -> str:
    """Return the reason why a file cannot be read as it is, by its name and first unpacked bytes.

    The reason is empty for a file that may be of any format.
    """
    if path.suffix in REPORTS:
        return NOT_EXPORTED
    if begin[_TAR : _TAR + 5] == b"ustar":
        return "tar archives; unpack them first: tar xf FILE"
    return next((reason for mark, reason in _ARCHIVES if begin.startswith(mark)), "")


def reason_unknown(path: Path, begin: bytes) -> str:
    """Return the reason why a file has no known format, with what was seen in its first bytes."""
    if path.name.endswith(".xplane.pb"):
        return "profiles of XLA (xplane), which are not read here"
    if begin.startswith(b"SQLite"):
        return UNKNOWN
    if b'"pg_config"' in begin and b'"entries"' in begin:
        return "dumps of NCCL's Flight Recorder, for 'debubble hang'"
    if _RANGE.search(begin) is not None:
        names = Counter(_NAME.findall(begin)).most_common(NAMED)
        texts = [text for name, _ in names if (text := first_value(name)) is not None]
        return (
            "Chrome traces with ranges of other names than ours, such as "
            f"{', '.join(map(plain, texts))}"
        )
    return next((reason for mark, reason in _BINARY if begin.startswith(mark)), UNKNOWN)


def seen_in(path: Path) -> str:
    """Return in words what a trace of PyTorch's profiler has at its beginning."""
    kernels = nccl = 0
    sends = False
    names: Counter[str] = Counter()
    for block in islice(events_of(path, LeftOut()).blocks(), BLOCKS):
        for event in block:
            if CATEGORIES.get(event.cat) == GPU:
                kernels += 1
                nccl += "nccl" in event.name
            elif event.cat == "user_annotation":
                names[event.name] += 1
            sends = sends or event.name.startswith(("c10d::send", "nccl:send", "gloo:send"))
    device = f"{counted(kernels, 'GPU kernel')}, {nccl:,} of NCCL" if kernels else "no GPU kernel"
    ranges = ", ".join(plain(name[:60]) for name, _ in names.most_common(NAMED))
    moves = "sends" if sends else "no send between ranks"
    return f"{device}; {moves}; {f'ranges such as {ranges}' if ranges else 'no named range'}"
