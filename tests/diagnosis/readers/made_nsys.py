"""Reports of Nsight Systems, exported as SQLite files."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from debubble import Kind
from tests.diagnosis.readers.made import MadeRun


def write(
    run: MadeRun, path: Path, ranks: list[int], *, base: int, texts: bool = False, pid: bool = True
) -> None:
    """A report of some ranks as Nsight Systems exports it, with sail-sg's ranges.

    Kernels run 2 ms behind their launches; `texts` writes names beside the ranges and not as
    numbers of strings, `pid` tells the process of kernels.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    strings: dict[str, int] = {}
    lead = 2_000_000
    zero = min(one.start for one in run.done) - 1
    with contextlib.closing(sqlite3.connect(path)) as base_file:
        base_file.executescript(f"""
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            CREATE TABLE NVTX_EVENTS (
                start INTEGER, end INTEGER, globalTid INTEGER, text TEXT, textId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
                start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
                start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
                correlationId INTEGER, shortName INTEGER{", globalPid INTEGER" if pid else ""});
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({base});
            CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
            INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'node-1');
        """)

        def nvtx(name: str, start: int, end: int, thread: int) -> None:
            number = strings.setdefault(name, len(strings) + 1)
            row = (start, end, thread, name if texts else None, None if texts else number)
            base_file.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", row)

        for rank in ranks:
            process = (0x1000000 + 500 + rank) << 24
            thread = process | (500 + rank)
            mine = run.of(rank)
            stages = sorted({one.stage for one in mine})
            for number, one in enumerate(sorted(mine, key=lambda one: one.start)):
                start, end = (round((time - zero) * 1e9) for time in (one.start, one.end))
                letter = "B" if one.kind == Kind.I else one.kind.name
                name = f"{letter}{one.microbatch}.{stages.index(one.stage)}.0"
                nvtx(name, start - lead, start - lead + 50_000, thread)
                launched = start - lead + 10_000
                gemm = strings.setdefault("gemm", len(strings) + 1)
                base_file.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)",
                    (launched, launched + 5_000, thread + (letter != "F"), number),
                )
                row = (start, end, 0, 7, number, gemm, process)[: 7 if pid else 6]
                base_file.execute(
                    f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(row))})",
                    row,
                )
            for step in sorted({one.step for one in mine}):
                begin, end = (
                    round(
                        (edge(getattr(one, name) for one in mine if one.step == step) - zero) * 1e9
                    )
                    for edge, name in ((min, "start"), (max, "end"))
                )
                nvtx(f"iter_{rank}_{step}", begin - 2 * lead, end - 2 * lead, thread)
        base_file.executemany("INSERT INTO StringIds VALUES (?, ?)",
                              [(number, name) for name, number in strings.items()])  # fmt: skip
        base_file.commit()
