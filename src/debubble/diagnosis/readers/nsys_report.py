"""Processes in reports of Nsight Systems: ranges of NVTX, launches and kernels."""

from __future__ import annotations

import functools
import re
import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from debubble.core.errors import FormatError
from debubble.diagnosis.cancellation import check_cancelled
from debubble.diagnosis.readers.action_names import actions_named
from debubble.diagnosis.readers.kineto_file import (
    EVALUATION,
    LATEST,
    MAX_EVENTS,
    IntRows,
    KinetoFile,
    rank_named,
)
from debubble.diagnosis.readers.kineto_unnamed import actions_recorded
from debubble.diagnosis.readers.stream import LeftOut
from debubble.diagnosis.readers.unnamed_order import UnnamedAction

STAGED = "PP:"
"""Beginning of names with stages."""

_RANGE = re.compile(r"(F|B|W|BW)(\d{1,6})\.(\d{1,3})(?:\.(\d{1,4}))?", re.ASCII)
_SHARDED = re.compile(r"[ST]\d{1,6}\.\d{1,3}(?:\.\d{1,4})?", re.ASCII)
_ITERATION = re.compile(r"iter_(\d{1,7})_(\d{1,9})", re.ASCII)
_OPERATOR = re.compile(r"(.{1,300}?), (?:seq = (\d{1,18})|op_id = )", re.ASCII | re.DOTALL)
_MOVES = ("c10d::send", "c10d::recv_", "ncclSend", "ncclRecv")

NVTX, KERNELS, RUNTIME = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"

NO_TABLES = f"files without the tables {NVTX} and {KERNELS}"
NO_RANGES = "processes without ranges called like actions, such as F0.0.0 or PP:0F0"
NO_RANK = "processes without a rank, in a range iter_0_1 or in the file's name"
SHARDED = "ranges S and T of a sharded output layer"
CLEARED = "ranges W_clear, which do not say whose backwards for weights they are"


def processes(
    path: Path, left_out: LeftOut
) -> Iterator[tuple[KinetoFile, list[UnnamedAction]]]:  # fmt: skip
    """Yield the events of every process of a report, and actions without names if it has none."""
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    base = sqlite3.connect(uri, uri=True)
    base.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        found = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {str(name) for (name,) in found}
        if not {NVTX, KERNELS, RUNTIME} <= tables:
            left_out[NO_TABLES] += 1
            return
        files = _ranges(base, tables, path, left_out)
        named = any(file.numbers for file in files.values())
        runs = {} if named else _unnamed_ranges(base, tables)
        _kernels(base, files)
        zero, host = _session(base, tables)
        for process, file in files.items():
            file.base, file.host = zero, host
            staged = any(name.startswith(STAGED) for name in file.numbers)
            if not file.numbers and not runs.get(process):
                left_out[NO_RANGES] += 1
            elif file.numbers and file.rank < 0 and not staged:
                left_out[NO_RANK] += 1
            else:
                yield file, runs.get(process, [])
    finally:
        base.close()


def _named_ranges(
    base: sqlite3.Connection, tables: set[str]
) -> Iterator[tuple[int, str, int, int]]:  # fmt: skip
    """Yield process, name, start and end of every range that has them."""
    columns = _columns(base, NVTX)
    text, join = "e.text" if "text" in columns else "NULL", ""
    if "textId" in columns and "StringIds" in tables:
        text, join = f"COALESCE({text}, s.value)", "LEFT JOIN StringIds s ON s.id = e.textId"
    rows = base.execute(
        f"SELECT e.start, e.end, e.globalTid, {text} FROM {NVTX} e {join} WHERE e.end IS NOT NULL"
    )
    for start, end, thread, name in rows:
        if isinstance(name, str) and _are_times(start, end, thread):
            yield thread >> 24, name, start, end


def _ranges(
    base: sqlite3.Connection, tables: set[str], path: Path, left_out: LeftOut
) -> dict[int, KinetoFile]:
    """Return ranges by process: those named like actions, and iterations, which have the rank."""
    found: dict[int, KinetoFile] = defaultdict(lambda: KinetoFile(path))
    for process, name, start, end in _named_ranges(base, tables):
        file = found[process]
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
    for file in found.values():
        if file.rank < 0 and len(found) == 1:
            file.rank = rank_named(path)
    return found


def _unnamed_ranges(
    base: sqlite3.Connection, tables: set[str]
) -> dict[int, list[UnnamedAction]]:  # fmt: skip
    """Return forwards and backwards by process, from ranges of operators (``emit_nvtx``)."""
    events: dict[int, tuple[IntRows, IntRows, IntRows]] = defaultdict(
        lambda: (IntRows(3), IntRows(3), IntRows(1))
    )
    for process, name, start, end in _named_ranges(base, tables):
        evaluated, recorded, moved = events[process]
        operator, number = _operator(name)
        if operator in _MOVES:
            moved.add(start)
        elif operator.startswith(EVALUATION):
            evaluated.add(start, end, number)
        elif number >= 0:
            recorded.add(start, end, number)
        if evaluated.full or recorded.full:
            break
    return {
        process: actions_recorded(evaluated.sorted(), recorded.sorted(), moved.sorted()[0])
        for process, (evaluated, recorded, moved) in events.items()
    }


@functools.lru_cache(maxsize=1 << 16)
def _operator(name: str) -> tuple[str, int]:
    """Return operator and autograd's number of a range, −1 for none: ``aten::mm, seq = 12``."""
    match = _OPERATOR.match(name)
    if match is None:
        return name, -1
    return match[1], int(match[2] or -1)


@functools.lru_cache(maxsize=1 << 16)
def _parsed(name: str) -> tuple[int, int] | str | None:
    """Parse a name: rank and number of an iteration, an action, or the reason to leave it out."""
    iteration = _ITERATION.fullmatch(name)
    if iteration is not None:
        return int(iteration[1]), int(iteration[2])
    if name.startswith(STAGED):
        return name if actions_named(name) else None
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
