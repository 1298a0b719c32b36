"""Reading traces: bytes per second, unpacked, and how much memory it takes.

    python benchmarks/trace_speed.py [--processes N] [megabytes] [format ...]

Makes a trace of 200 MB with two ranks, of which a part of the events are kernels and their
launches as on a GPU, another operators and Python frames, and reads it plain and compressed; and
one in each of the other formats. In those nearly all that is written counts. They are read in
as many processes as such a trace is read in otherwise, or in N, the first one included.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import debubble as db
from debubble.interchange.trace_events import run_trace, write_trace

MEGABYTE = 1_000_000
STEPS, MICROBATCHES, RANKS = 4, 16, 8
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [],
  "distributedInfo": {"backend": "nccl", "rank": %d, "world_size": 2},
  "host_name": "a",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
EVENT = """  {{
    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      {args}
    }}
  }}"""
OPERATOR = ('"External id": 4711,"Record function id": 0, "Sequence number": 90, '
            '"Fwd thread id": 0, "Ev Idx": 4711')  # fmt: skip
FRAME = '"Python parent id": 4711, "Python id": 4712, "Python module id": 3, "Ev Idx": 4713'
KERNEL = ('"External id": 4711, "queued": 0, "device": 0, "context": 1, "stream": 7, '
          '"correlation": {at}, "registers per thread": 32, "shared memory": 0, '
          '"blocks per SM": 1.5, "warps per SM": 6, "grid": [162, 1, 1], "block": [128, 1, 1], '
          '"est. achieved occupancy %": 9')  # fmt: skip
LAUNCH = '"External id": 4711, "cbid": 211, "correlation": {at}'
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_128x128_nn>(Params)"


def write(path: Path, rank: int, size: int) -> None:
    """One rank's file of about `size` bytes."""
    order = [(f"{rank}{kind}{unit}") for unit in range(MICROBATCHES) for kind in "FB"]
    # An action takes as many rounds of events as fill the file.
    rounds = max(size // (STEPS * len(order) * 2_700), 1)
    at, now = 100, 1e6
    with open(path, "w") as file:
        file.write(HEAD % rank)
        events = []
        for _ in range(STEPS):
            for name in order:
                begin = now
                for _ in range(rounds):
                    at += 1
                    now += 10
                    events += [
                        EVENT.format(cat="cpu_op", name="aten::addmm", pid=1, tid=1, ts=now,
                                     dur=8.0, args=OPERATOR)
                        for _ in range(5)
                    ]  # fmt: skip
                    events += [
                        EVENT.format(cat="python_function", name="nn.Module: Linear_0", pid=1,
                                     tid=1, ts=now, dur=8.0, args=FRAME)
                        for _ in range(3)
                    ]  # fmt: skip
                    events += [
                        EVENT.format(cat="cuda_runtime", name="cudaLaunchKernel", pid=1, tid=1,
                                     ts=now, dur=4.0, args=LAUNCH.format(at=at)),
                        EVENT.format(cat="kernel", name=GEMM, pid=0, tid=7, ts=now + 3e3,
                                     dur=9.0, args=KERNEL.format(at=at)),
                    ]  # fmt: skip
                events.append(
                    EVENT.format(cat="user_annotation", name=f"PP:{name}", pid=1, tid=1,
                                 ts=begin, dur=now - begin + 5, args=OPERATOR)
                )  # fmt: skip
                now += 20
                file.write(",\n".join(events) + ",\n")
                events = []
        file.write(
            EVENT.format(cat="cpu_op", name="end", pid=1, tid=1, ts=now, dur=1.0, args=FRAME)
        )
        file.write('\n  ],\n  "traceName": "x"\n}\n')


def write_ndtimeline(path: Path, size: int) -> int:
    """A file of about `size` bytes, compact as the writer has it; how many actions it has."""
    ranks = 4
    found, actions, step = [], 0, 0
    with open(path, "w") as file:
        file.write("[")
        while file.tell() < size:
            at = step * 1e6
            for rank in range(ranks):
                for unit in range(MICROBATCHES):
                    for half, word in enumerate(("forward", "backward")):
                        begin = at + 1e5 * half + 1e3 * (unit + rank) + 0.123456789
                        rows = [("compute", 0, unit), ("recv", -1, -1), ("send", -1, -1)]
                        edge = (0, ranks - 1)
                        if rank == edge[half]:
                            del rows[1]
                        if rank == edge[1 - half]:
                            del rows[-1]
                        for kind, chunk, number in rows:
                            args = {"step": step, "model_chunk": chunk, "mb_id": number,
                                    "seq_id": unit}  # fmt: skip
                            name = f"{word}-{kind}"
                            found.append({
                                "name": name, "cat": name, "pid": 0, "tid": rank, "ts": begin,
                                "dur": 812.3456789, "ph": "X", "args": args,
                            })  # fmt: skip
                        found.append({
                            "name": "optimizer", "cat": "optimizer", "pid": 0, "tid": rank,
                            "ts": begin, "dur": 1.5, "ph": "X", "args": {"step": step},
                        })  # fmt: skip
                        actions += 1
            step += 1
            text = json.dumps(found, separators=(",", ":"))[1:-1]
            file.write(text + ",")
            found = []
        names = [
            {"name": "thread_name", "pid": 0, "tid": rank, "ph": "M",
             "args": {"name": f"PP rank {rank}, TP rank 0, compute"}}
            for rank in range(ranks)
        ]  # fmt: skip
        file.write(json.dumps(names, separators=(",", ":"))[1:-1] + "]")
    return actions


def planned(size: int, each: int) -> Iterator[tuple[int, list[tuple[int, int, str, float, float]]]]:
    """Steps of 1F1B with about `size` bytes at `each` an action: rank, unit, kind, start, end."""
    schedule = db.make("1f1b", ranks=RANKS, microbatches=64)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2))
    actions = [(rank, action) for rank, program in enumerate(schedule) for action in program]
    begin = timeline.start * 1.0123456789
    end = begin + timeline.duration
    rows = [
        (rank, action.microbatch, action.kind.name, start, over)
        for (rank, action), start, over in zip(actions, begin, end, strict=True)
    ]
    for step in range(size // (each * len(rows))):
        at = step * 1.1 * timeline.makespan
        yield step, [(rank, unit, kind, at + a, at + b) for rank, unit, kind, a, b in rows]


def write_table(folder: Path, size: int) -> int:
    """A line for every action, with when its input was there, and for both ends of its message."""
    count = 0
    with open(folder / "run.csv", "w") as file:
        file.write("step,copy,rank,action,start,end,waited,host\n")
        for step, rows in planned(size, 120):
            for rank, unit, kind, start, end in rows:
                file.write(
                    f"{step},0,{rank},{rank}{kind}{unit},{start:.9f},{end:.9f},{start:.9f},n1\n"
                )
                if kind == "F" and rank < RANKS - 1:
                    file.write(f"{step},0,{rank},{rank}SEND_F{unit},{end:.9f},{end:.9f},,n1\n")
                count += 1
    return count


def write_own(folder: Path, size: int) -> int:
    """Files of single steps, as 'debubble run' writes them."""
    schedule = db.make("1f1b", ranks=RANKS, microbatches=2000)
    timeline = db.simulate(schedule, db.Costs(F=1, B=2))
    times = timeline.start * 1e-3, (timeline.start + timeline.duration) * 1e-3
    number = total = 0
    while total < size:
        path = folder / f"step{number}.json"
        write_trace(run_trace(schedule, {"predicted": times, "measured": times}), path)
        total += path.stat().st_size
        number += 1
    return number * len(schedule)


def write_primus(folder: Path, size: int) -> int:
    """Files of all ranks with lists of times by iteration."""
    runs: list[dict[str, Any]] = [{} for _ in range(RANKS)]
    count = 0
    for step, rows in planned(size, 50):
        for rank, run in enumerate(runs):
            one = run[str(step + 1)] = {"total": rows[-1][-1], "memory": 1.0}
            for name, letter in (("fwd", "F"), ("bwd", "B"), ("wgrad", "W")):
                mine = [row for row in rows if row[0] == rank and row[2] == letter]
                one |= {
                    f"{name}_start": [row[3] for row in mine],
                    f"{name}_end": [row[4] for row in mine],
                    f"{name}_minibatch": [row[1] for row in mine],
                    f"{name}_chunk": [0] * len(mine),
                }
        count += len(rows)
    for rank, run in enumerate(runs):
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(run))
    return count


def write_victarry(folder: Path, size: int) -> int:
    """Folders of single iterations with keys and times."""
    count = 0
    for step, rows in planned(size, 75):
        (folder / f"step{step}").mkdir()
        for rank in range(RANKS):
            times = {}
            for _, unit, kind, start, end in (row for row in rows if row[0] == rank):
                word = "forward" if kind == "F" else "backward"
                times |= {f"{word}-{unit}-start": start, f"{word}-{unit}-end": end}
            name = f"event_times_PP{RANKS}_VPP1_TPxCPxDP_rank_0_pp_rank_{rank}_rank_{rank}.json"
            (folder / f"step{step}" / name).write_text(json.dumps(times))
        count += len(rows)
    return count


def write_megatron(folder: Path, size: int) -> int:
    """A log of sums of all ranks, with the timers of level 2."""
    names = (
        "forward-backward",
        "forward-compute",
        "backward-compute",
        "forward-recv",
        "backward-send",
        "optimizer-inner-step",
        "optimizer",
    )
    ranks = "".join(f"     rank {rank:>2}: {1234.5 + rank:.2f}\n" for rank in range(64))
    text = "".join(f"    {name} ......:\n{ranks}" for name in names)
    with open(folder / "train.log", "w") as file:
        for name, value in (
            ("pipeline_model_parallel_size", 8),
            ("micro_batch_size", 1),
            ("global_batch_size", 64),
            ("data_parallel_size", 1),
            ("world_size", 64),
        ):
            file.write(f"  {name} {'.' * 20} {value}\n")
        step = 0
        while file.tell() < size:
            step += 1
            file.write(
                f" [2026-01-01] iteration {step:>8}/ 1000 | elapsed time (ms): 1234.5 |\n"
                f"times across ranks (ms):\n{text}"
            )
    return 0


def write_nsys(folder: Path, size: int) -> int:
    """A report of every rank."""
    return sum(write_report(folder / f"rank{rank}.sqlite", rank, size) for rank in range(RANKS))


def write_report(path: Path, rank: int, size: int) -> int:
    """A report with ten kernels and their launches to an action; `size` is that of all ranks'."""
    count = correlation = 0
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            INSERT INTO StringIds VALUES (1, 'gemm');
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, globalTid INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
                correlationId INTEGER, nameId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
                contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
                demangledName INTEGER, shortName INTEGER, mangledName INTEGER, launchType INTEGER,
                cacheConfig INTEGER, registersPerThread INTEGER, gridX INTEGER, gridY INTEGER,
                gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER,
                staticSharedMemory INTEGER, dynamicSharedMemory INTEGER,
                localMemoryPerThread INTEGER, localMemoryTotal INTEGER, gridId INTEGER,
                sharedMemoryExecuted INTEGER, graphNodeId INTEGER);
        """)
        process = 500 << 24
        for step, rows in planned(size, 1200):
            launches, kernels = [], []
            mine = [row for row in rows if row[0] == rank]
            first, last = int(mine[0][3] * 1e9), int(mine[-1][4] * 1e9)
            base.execute(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?)",
                (first, last, f"iter_{rank}_{step}", process),
            )
            for _, unit, kind, start, end in mine:
                a, b = int(start * 1e9), int(end * 1e9)
                base.execute(
                    "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?)",
                    (a, b, f"{kind}{unit}.0.0", process),
                )
                for part in range(10):
                    correlation += 1
                    begin = a + (b - a) * part // 10
                    launches.append((begin, begin + 5000, process, correlation, 1))
                    shape = (
                        1,
                        1,
                        1,
                        0,
                        2,
                        168,
                        4096,
                        1,
                        1,
                        384,
                        1,
                        1,
                        1024,
                        166_000,
                        0,
                        125_000_000,
                    )
                    kernels.append((begin, begin + (b - a) // 11, 0, 1, 7, correlation, process,
                                    *shape, correlation, 233_472, None))  # fmt: skip
            base.executemany(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", launches
            )
            base.executemany(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 26)})", kernels
            )
            count += len(mine)
        base.commit()
    return count


def write_kineto(folder: Path, size: int) -> int:
    """A file of each of two ranks."""
    for rank in range(2):
        write(folder / f"rank{rank}.json", rank, size // 2)
    return STEPS * MICROBATCHES * 4


def write_packed(folder: Path, size: int) -> int:
    """The same, compressed."""
    count = write_kineto(folder, size)
    for path in list(folder.iterdir()):
        with open(path, "rb") as plain, gzip.open(f"{path}.gz", "wb", 1) as file:
            shutil.copyfileobj(plain, file, MEGABYTE)
        path.unlink()
    return count


WRITERS: dict[str, Callable[[Path, int], int]] = {
    "kineto": write_kineto, "kineto, gzip": write_packed,
    "ndtimeline": lambda folder, size: write_ndtimeline(folder / "timeline.json", size),
    "nsys": write_nsys, "debubble": write_own, "table": write_table, "primus": write_primus,
    "victarry": write_victarry, "megatron-timers": write_megatron,
}  # fmt: skip
"""By format what writes a trace of about so many bytes; they return how many actions it has."""


def unpacked(path: Path) -> int:
    """Bytes of a file, unpacked."""
    if path.suffix != ".gz":
        return path.stat().st_size
    with gzip.open(path, "rb") as file:
        return sum(map(len, iter(lambda: file.read(MEGABYTE), b"")))


def most_memory() -> float:
    """Most memory that this process had so far, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1e3


def measure(path: Path, count: int | None) -> None:
    """Read a folder in this process and those that it starts, and print what it took."""
    from debubble.diagnosis.readers import folder, pool

    if count is not None:
        pool.processes_for = lambda files: min(count, len(files))
    before = most_memory()
    begin, mine = time.perf_counter(), time.process_time()
    found = folder.read(path)
    wall, mine = time.perf_counter() - begin, time.process_time() - mine
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    work = mine + others.ru_utime + others.ru_stime
    memory = most_memory() - before
    print(wall, work, mine, memory, others.ru_maxrss / 1e3, len(found.actions))


def main(wanted: int, formats: Sequence[str], options: Sequence[str]) -> None:
    for form in formats or WRITERS:
        with tempfile.TemporaryDirectory() as name:
            expected = WRITERS[form](Path(name), wanted)
            size = (
                sum(unpacked(path) for path in Path(name).rglob("*") if path.is_file()) / MEGABYTE
            )
            reader = [sys.executable, __file__, "--read", name, *options]
            output = subprocess.run(reader, check=True, capture_output=True, text=True).stdout
            wall, work, mine, grown, largest, read = (float(value) for value in output.split())
            assert read == expected, (form, read, expected)
            print(
                f"{form:15} {size:.0f} MB, {expected:,} actions: {size / wall:.0f} MB/s  "
                f"({size / work:.0f} MB per second of processor time, {size / mine:.0f} of that of "
                f"the first process), memory grows by {grown:.0f} MB, and the largest process "
                f"that it starts has {largest:.0f} MB", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    words, options = sys.argv[1:], []
    if "--processes" in words:
        at = words.index("--processes")
        options = words[at : at + 2]
        del words[at : at + 2]
    if words[:1] == ["--read"]:
        measure(Path(words[1]), int(options[1]) if options else None)
    else:
        main(int(words[0]) * MEGABYTE if words else 200 * MEGABYTE, words[1:], options)
