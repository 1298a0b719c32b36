"""Reading traces: bytes per second, unpacked, and how much memory it takes.

    python benchmarks/trace_speed.py [megabytes]

Makes a trace of 200 MB with two ranks, of which a part of the events are kernels and their
launches as on a GPU, another operators and Python frames, and reads it plain and compressed; and
one of NDTimeline, in which two thirds of the events are actions and transfers.
"""

from __future__ import annotations

import gzip
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MEGABYTE = 1_000_000
STEPS, MICROBATCHES = 4, 16
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


def measure(folder: Path) -> None:
    """Read a folder in this process, and print what it took."""
    from debubble.diagnosis.readers.folder import read

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, work = time.perf_counter(), time.process_time()
    found = read(folder)
    wall, work = time.perf_counter() - begin, time.process_time() - work
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    print(wall, work, grown, len(found.actions))


def main(wanted: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        expected = {"plain": STEPS * MICROBATCHES * 4, "gzip": STEPS * MICROBATCHES * 4}
        for form in (*expected, "ndtimeline"):
            Path(name, form).mkdir()
        total = 0
        for rank in range(2):
            path = Path(name, "plain", f"rank{rank}.json")
            write(path, rank, wanted // 2)
            total += path.stat().st_size
            packed = Path(name, "gzip", f"{path.name}.gz")
            with open(path, "rb") as plain, gzip.open(packed, "wb", 1) as file:
                shutil.copyfileobj(plain, file, MEGABYTE)
        timeline = Path(name, "ndtimeline", "timeline.json")
        expected["ndtimeline"] = write_ndtimeline(timeline, total)
        sizes = {"plain": total, "gzip": total, "ndtimeline": timeline.stat().st_size}
        for form, actions in expected.items():
            output = subprocess.run(
                [sys.executable, __file__, "--read", str(Path(name, form))],
                check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
            wall, work, grown, read = (float(value) for value in output.split())
            size = sizes[form] / MEGABYTE
            assert read == actions, (form, read, actions)
            print(
                f"{form:10} {size:.0f} MB, {actions:,} actions: {size / wall:.0f} MB/s  "
                f"({size / work:.0f} MB per second of processor time), memory grows by "
                f"{grown:.0f} MB"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        measure(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) * MEGABYTE if sys.argv[1:] else 200 * MEGABYTE)
