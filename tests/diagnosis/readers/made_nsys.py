"""Reports of Nsight Systems, exported as SQLite files."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from debubble import Kind
from tests.diagnosis.readers.made import MadeRun

PUSH_POP, MARK, DOMAIN = 59, 34, 75
"""Types of NVTX events."""


def write(
    run: MadeRun, path: Path, ranks: list[int], *, base: int, texts: bool = False, pid: bool = True,
    stride: int = 1, names: str = "chunks",
) -> None:  # fmt: skip
    """A report of some ranks as Nsight Systems exports it, with sail-sg's ranges.

    With `names` of "stages" it has those of ``debubble.megatron``, and with "operators" those of
    PyTorch's ``emit_nvtx`` around Megatron's own.

    Kernels run 2 ms behind their launches; `texts` writes names beside the ranges and not as
    numbers of strings, `pid` tells the process of kernels; of the job every `stride`-th rank is one
    of the pipeline. Tables have the columns that the exporter's documentation names.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    strings: dict[str, int] = {}
    lead = 2_000_000
    zero = min(one.start for one in run.done) - 1
    with contextlib.closing(sqlite3.connect(path)) as base_file:
        base_file.executescript(f"""
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE NVTX_EVENTS (
                start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
                category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
                endGlobalTid INTEGER, textId INTEGER REFERENCES StringIds(id), domainId INTEGER,
                uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
                int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
                start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
                globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
                returnValue INTEGER NOT NULL, callchainId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
                start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
                contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
                {"globalPid INTEGER," if pid else ""} demangledName INTEGER NOT NULL,
                shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
                registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, graphNodeId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
                start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
                contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
                globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (
                utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({base}, '2026', '2026');
            CREATE TABLE TARGET_INFO_SYSTEM_ENV (
                globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL,
                nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
            INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'State', 'Hostname', 3, 'node-1');
        """)

        def insert(table: str, **row: int | str | None) -> None:
            marks = ", ".join("?" * len(row))
            base_file.execute(
                f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values())
            )

        def nvtx(name: str, start: int, end: int | None, thread: int, sort: int = PUSH_POP) -> None:
            number = strings.setdefault(name, len(strings) + 1)
            insert(
                "NVTX_EVENTS", start=start, end=end, eventType=sort, globalTid=thread, domainId=0,
                text=name if texts else None, textId=None if texts else number,
            )  # fmt: skip

        for rank in ranks:
            process = (0x1000000 + 500 + rank) << 24
            thread = process | (500 + rank)
            mine = run.of(rank)
            stages = sorted({one.stage for one in mine})
            seen: dict[tuple[int, int, int], int] = {}
            for number, one in enumerate(sorted(mine, key=lambda one: one.start)):
                start, end = (round((time - zero) * 1e9) for time in (one.start, one.end))
                letter = "B" if one.kind == Kind.I else one.kind.name
                name = f"{letter}{one.microbatch}.{stages.index(one.stage)}.0"
                if names == "stages":
                    name = f"PP:{one.name}"
                begin, last = start - lead, start - lead + 50_000
                if names != "operators":
                    nvtx(name, begin, last, thread)
                elif letter == "F":
                    seen[one.step, one.stage, one.microbatch] = 2 * len(seen) + 1
                    nvtx(f"aten::linear, seq = {2 * len(seen) - 1}, op_id = 4", begin, last, thread)
                else:
                    at = seen[one.step, one.stage, one.microbatch]
                    for part in (0, 1):
                        title = f"autograd::engine::evaluate_function: MmBackward0, seq = {at}"
                        half = begin + 25_000 * part
                        nvtx(f"{title}, op_id = 9", half, half + 25_000, thread + 1)
                        at -= 1
                nvtx("c10d::send, op_id = 12", last + 100, last + 200, thread)
                launched = start - lead + 10_000
                gemm = strings.setdefault("gemm", len(strings) + 1)
                call = strings.setdefault("cudaLaunchKernel_v7000", len(strings) + 1)
                insert(
                    "CUPTI_ACTIVITY_KIND_RUNTIME", start=launched, end=launched + 5_000,
                    eventClass=0, globalTid=thread + (letter != "F"), correlationId=number,
                    nameId=call, returnValue=0,
                )  # fmt: skip
                owner = {"globalPid": process} if pid else {}
                insert(
                    "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, deviceId=0, contextId=1,
                    streamId=7, correlationId=number, demangledName=gemm, shortName=gemm,
                    registersPerThread=32, gridX=1, **owner,
                )  # fmt: skip
                # What has no part in an action: NCCL's own ranges, calls without a kernel, copies.
                nvtx("ncclSend", launched, launched + 1_000, thread)
                insert(
                    "CUPTI_ACTIVITY_KIND_RUNTIME", start=launched + 6_000, end=launched + 7_000,
                    eventClass=0, globalTid=thread, correlationId=100_000 + number, nameId=call,
                    returnValue=0,
                )  # fmt: skip
                insert(
                    "CUPTI_ACTIVITY_KIND_MEMCPY", start=end, end=end + 1_000, deviceId=0,
                    contextId=1, streamId=13, correlationId=100_000 + number, globalPid=process,
                    bytes=8, copyKind=2,
                )  # fmt: skip
            nvtx("NCCL", 0, None, thread, DOMAIN)
            nvtx("F0.0.0", 1, None, thread, MARK)
            for step in [] if names != "chunks" else sorted({one.step for one in mine}):
                begin, end = (
                    round(
                        (edge(getattr(one, name) for one in mine if one.step == step) - zero) * 1e9
                    )
                    for edge, name in ((min, "start"), (max, "end"))
                )
                nvtx(f"iter_{rank * stride}_{step}", begin - 2 * lead, end - 2 * lead, thread)
        base_file.executemany("INSERT INTO StringIds VALUES (?, ?)",
                              [(number, name) for name, number in strings.items()])  # fmt: skip
        base_file.commit()
