"""Reports of Nsight Systems as SQLite files, with the NVTX ranges of sail-sg's Zero Bubble runtime.

``nsys export --type sqlite report.nsys-rep`` writes such a file. The runtime names its ranges
``F{microbatch}.{chunk}.{slice}``, ``B…`` and ``W…``, and every iteration ``iter_{rank}_{number}``.
A backward with a W is one for the input. The ranges are the host's: an action lasts from its
first to its last kernel, as in traces of PyTorch's profiler.
"""

from __future__ import annotations

import functools
import math
import re
import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from debubble.core.errors import FormatError
from debubble.diagnosis.cancellation import check_cancelled
from debubble.diagnosis.observed import ALONE, Observed
from debubble.diagnosis.readers.chunks import (
    Calls,
    is_v_shaped,
    placed,
    stage_of,
    with_split_backwards,
)
from debubble.diagnosis.readers.collected import NAN, Collected
from debubble.diagnosis.readers.kineto_file import LATEST, MAX_EVENTS, KinetoFile
from debubble.diagnosis.readers.kineto_rank import UNKNOWN, RankTrace, trace_of
from debubble.diagnosis.readers.pool import read_each
from debubble.diagnosis.readers.stream import LeftOut

NAME = "nsys"
MARKS: tuple[bytes, ...] = ()
MAGIC = b"SQLite format 3\0"
NANOSECONDS = 1e-9

_RANGE = re.compile(r"(F|B|W|BW)(\d{1,6})\.(\d{1,3})(?:\.(\d{1,4}))?", re.ASCII)
_SHARDED = re.compile(r"[ST]\d{1,6}\.\d{1,3}(?:\.\d{1,4})?", re.ASCII)
_ITERATION = re.compile(r"iter_(\d{1,7})_(\d{1,9})", re.ASCII)
_RANK = re.compile(r"rank[-_ ]?(\d{1,7})", re.IGNORECASE | re.ASCII)

NVTX, KERNELS, RUNTIME = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"

DAMAGED = "files that are no SQLite database, or a damaged one"
NO_TABLES = f"files without the tables {NVTX} and {KERNELS}"
NO_RANGES = "processes without ranges called like actions, such as F0.0.0"
NO_RANK = "processes without a rank, in a range iter_0_1 or in the file's name"
SHARDED = "ranges S and T of a sharded output layer"
CLEARED = "ranges W_clear, which do not say whose backwards for weights they are"
NO_KERNELS = "processes whose ranges launched no kernel"


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    return head.startswith(MAGIC)


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the reports of all ranks; one may have several processes.

    Raise FormatError when no process has a rank, ranges named like actions, and kernels.
    """
    ranks: dict[int, _Rank] = {}
    for _, found in read_each(_read_file, files, left_out):
        for each in found:
            ranks.setdefault(each.rank, each)
    if not ranks:
        counted = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise FormatError(
            f"{where}: no rank's actions ({counted}); profile with nsys -t nvtx,cuda and export "
            "with --type sqlite"
        )
    stride = _stride(list(ranks))
    ranks = {rank // stride: each for rank, each in ranks.items()}
    return _observed(where, ranks, stride, left_out)


class _Rank(NamedTuple):
    """Actions of a process; times in nanoseconds since `base`."""

    rank: int
    base: int
    host: str
    rows: NDArray[np.int64]
    """Step, kind, chunk, microbatch, slice, start, end, issued and busy of every action."""

    @classmethod
    def of(cls, trace: RankTrace) -> _Rank:
        """Return the actions of a trace."""
        rows = [
            (step, *part, one.start, one.end, one.issued, one.busy)
            for step, (computed, _) in zip(
                trace.numbers or range(len(trace.steps)), trace.steps, strict=True
            )
            for one in computed for part in one.parts
        ]  # fmt: skip
        return cls(trace.file.rank, trace.file.base, trace.file.host, np.array(rows, np.int64).T)


def _read_file(path: Path, left_out: LeftOut) -> list[_Rank]:
    """Read the processes of a report, up to its damage if it is damaged."""
    found = []
    try:
        for file in _processes(path, left_out):
            trace = trace_of(file, left_out)
            if trace.on_device and trace.steps:
                found.append(_Rank.of(trace))
            else:
                left_out[NO_KERNELS] += 1
    except (sqlite3.Error, UnicodeDecodeError):
        # The second occurs if an error of SQLite quotes bytes that are not text.
        left_out[DAMAGED] += 1
    return found


def _stride(ranks: Sequence[int]) -> int:
    """Return the distance in the job between two ranks of the pipeline.

    Ranges have the rank in the job. With tensor or data parallelism, the ranks of one pipeline are
    equally spaced, and a folder has the reports of one pipeline.
    """
    return math.gcd(*ranks) if len(ranks) > 1 and 0 in ranks else 1


def _observed(where: str, found: dict[int, _Rank], stride: int, left_out: LeftOut) -> Observed:
    ranks = 1 + max(found)
    origin = min(each.base + int(each.rows[5, 0]) for each in found.values())
    counts = [each.rows.shape[1] for each in found.values()]
    rank = np.repeat(list(found), counts)
    bases = np.repeat([each.base - origin for each in found.values()], counts)
    rows = np.concatenate([each.rows for each in found.values()], axis=1)
    step, kind, chunk, microbatch, piece, *times, busy = rows
    start, end, issued = (
        np.where(time == UNKNOWN, NAN, (bases + time) * NANOSECONDS) for time in times
    )
    calls = Calls(step, rank, kind, chunk, microbatch, start, end)
    v_shaped = is_v_shaped(calls, ranks)
    collected = Collected(where, left_out)
    collected.many(
        "actions", step, 0, rank, with_split_backwards(calls, piece),
        stage_of(rank, chunk, ranks, v_shaped), microbatch, piece, ALONE, start, end, issued, NAN,
        busy * NANOSECONDS,
    )  # fmt: skip
    hosts = {(0, rank): each.host for rank, each in found.items()}
    return collected.observed(
        NAME,
        {
            "rank": "ranges iter_… or the file's name; " + (
                f"one in {stride} of the job's ranks is of the pipeline" if stride > 1
                else "all ranks are one pipeline"
            ),
            "stage": f"chunk and rank, {placed(v_shaped)}",
            "microbatch": "names of ranges",
            "step": "ranges iter_…, or where an action comes again",
            "clock": "of every host, since 1970",
            "times": "kernels, by where they were launched",
        },
        ranks=ranks, hosts=hosts,
        clocks="one" if all(hosts.values()) and len(set(hosts.values())) == 1 else "hosts",
    )  # fmt: skip


def _processes(path: Path, left_out: LeftOut) -> Iterator[KinetoFile]:
    """Yield the events of every process of a report."""
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    base = sqlite3.connect(uri, uri=True)
    base.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        found = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {str(name) for (name,) in found}
        if not {NVTX, KERNELS, RUNTIME} <= tables:
            left_out[NO_TABLES] += 1
            return
        files = _ranges(base, path, tables, left_out)
        _kernels(base, files)
        zero, host = _session(base, tables)
        for file in files.values():
            file.base, file.host = zero, host
            if not file.numbers:
                left_out[NO_RANGES] += 1
            elif file.rank < 0:
                left_out[NO_RANK] += 1
            else:
                yield file
    finally:
        base.close()


def _ranges(
    base: sqlite3.Connection, path: Path, tables: set[str], left_out: LeftOut
) -> dict[int, KinetoFile]:
    """Return ranges by process: those named like actions, and iterations, which have the rank."""
    columns = _columns(base, NVTX)
    text = "e.text" if "text" in columns else "NULL"
    join = ""
    if "textId" in columns and "StringIds" in tables:
        text, join = f"COALESCE({text}, s.value)", "LEFT JOIN StringIds s ON s.id = e.textId"
    found: dict[int, KinetoFile] = defaultdict(lambda: KinetoFile(path))
    rows = base.execute(
        f"SELECT e.start, e.end, e.globalTid, {text} FROM {NVTX} e {join} WHERE e.end IS NOT NULL"
    )
    for start, end, thread, name in rows:
        if not isinstance(name, str) or not _are_times(start, end, thread):
            continue
        file = found[thread >> 24]
        parsed = _parsed(name)
        if parsed is None:
            continue
        if isinstance(parsed, tuple):
            file.rank, number = parsed
            file.named_by = "iter"
            file.steps.add(start, end, number)
        elif parsed in (CLEARED, SHARDED):
            left_out[parsed] += 1
        else:
            if file.ranges.full:
                raise FormatError(f"{path}: too many NVTX ranges; export fewer iterations")
            file.add_range(parsed, start, end)
    by_name = _RANK.findall(path.name)
    for file in found.values():
        if file.rank < 0 and by_name and len(found) == 1:
            file.rank = int(by_name[-1])
    return found


@functools.lru_cache(maxsize=1 << 16)
def _parsed(name: str) -> tuple[int, int] | str | None:
    """Parse a name: rank and number of an iteration, an action, or the reason to leave it out."""
    iteration = _ITERATION.fullmatch(name)
    if iteration is not None:
        return int(iteration[1]), int(iteration[2])
    if name.startswith("W_clear"):
        return CLEARED
    if _SHARDED.fullmatch(name) is not None:
        return SHARDED
    match = _RANGE.fullmatch(name)
    if match is None:
        return None
    kind = "B" if match[1] == "BW" else match[1]
    return f"{int(match[3])}{kind}{match[2]}.{match[4] or 0}"


def _kernels(base: sqlite3.Connection, files: dict[int, KinetoFile]) -> None:
    """Add launches and kernels to their processes; NCCL's kernels are found by name."""
    columns = _columns(base, KERNELS)
    name = "shortName" if "shortName" in columns else "demangledName"
    if not files:
        return
    alone = "OR k.globalPid IS NULL" if len(files) == 1 else ""
    mine = f"(k.globalPid >> 24 = :process {alone})" if "globalPid" in columns else f"{alone != ''}"
    launches = _Query(
        ("correlationId", "start", "0"), RUNTIME, "globalTid >> 24 = :process",
        ("start", "globalTid", "correlationId"),
    )  # fmt: skip
    times = "k.correlationId", "k.start", "k.end", "k.streamId"
    sort = f"CASE {_names(base, f'k.{name}')} ELSE 0 END"
    kernels = _Query((*times, sort), f"{KERNELS} k", mine, times)
    for process, file in files.items():
        for rows, query in ((file.launches, launches), (file.kernels, kernels)):
            check_cancelled()
            query.add(base, process, rows.values)


def _names(base: sqlite3.Connection, column: str) -> str:
    """Return SQL conditions that find NCCL's kernels by name."""
    found = base.execute(
        "SELECT id, instr(value, 'SendRecv') FROM StringIds "
        "WHERE typeof(value) = 'text' AND instr(value, 'nccl') AND typeof(id) = 'integer'"
    ).fetchall()
    p2p, other = (
        ", ".join(str(name) for name, is_p2p in found if bool(is_p2p) == wanted)
        for wanted in (True, False)
    )
    return f"WHEN {column} IN ({p2p}) THEN 2 WHEN {column} IN ({other}) THEN 1"


class _Query(NamedTuple):
    """Query for rows of whole numbers in a table."""

    columns: tuple[str, ...]
    table: str
    where: str
    fine: tuple[str, ...]
    """Columns that must hold whole numbers that fit."""

    def add(self, base: sqlite3.Connection, process: int, values: array[int]) -> None:
        """Add the rows of a process.

        Nearly all reports have only valid rows; a check by SQLite takes as long as the rest.
        """
        query = f"SELECT {', '.join(self.columns)} FROM {self.table} WHERE {self.where}"
        before = len(values)
        for more in ("", f" AND {_are_fine(*self.fine)}"):
            rows = base.execute(f"{query}{more} LIMIT {MAX_EVENTS}", {"process": process})
            try:
                values.extend(chain.from_iterable(rows))
            except (TypeError, OverflowError):
                pass
            else:
                added = np.frombuffer(values, np.int64)[before:]
                if added.min(initial=0) >= 0 and added.max(initial=0) < LATEST:
                    return
                del added
            del values[before:]


def _are_fine(*columns: str) -> str:
    """Return a SQL condition that columns hold whole numbers within the limit."""
    return " AND ".join(
        f"typeof({each}) = 'integer' AND {each} BETWEEN 0 AND {LATEST - 1}" for each in columns
    )


def _session(base: sqlite3.Connection, tables: set[str]) -> tuple[int, str]:
    """Return the zero of times, in nanoseconds since 1970, and the host."""
    zero, host = 0, ""
    began = "TARGET_INFO_SESSION_START_TIME"
    if began in tables and "utcEpochNs" in _columns(base, began):
        row = base.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
        zero = row[0] if row and _are_times(row[0]) else 0
    if "TARGET_INFO_SYSTEM_ENV" in tables:
        row = base.execute(
            "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
        ).fetchone()
        host = row[0][:200] if row and isinstance(row[0], str) else ""
    return zero, host


def _columns(base: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in base.execute(f"PRAGMA table_info({table})")}


def _are_times(*values: Any) -> bool:
    """Return True if all values are whole numbers within the limit."""
    return all(type(value) is int and 0 <= value < LATEST for value in values)
