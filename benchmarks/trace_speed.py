"""Reading traces of PyTorch's profiler: bytes per second, unpacked, and how much memory it takes.

    python benchmarks/trace_speed.py [megabytes]

Makes a trace of 200 MB with two ranks, of which a part of the events are kernels and their
launches as on a GPU, another operators and Python frames, and reads it plain and compressed.
"""

from __future__ import annotations

import gzip
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


def measure(folder: Path) -> None:
    """Read a folder in this process, and print what it took."""
    from debubble.diagnosis.readers.folder import read

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, work = time.perf_counter(), time.process_time()
    found = read(folder)
    wall, work = time.perf_counter() - begin, time.process_time() - work
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    assert len(found.actions) == 2 * STEPS * MICROBATCHES * 2, found.left_out
    print(wall, work, grown)


def main(size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        for form in ("plain", "gzip"):
            folder = Path(name, form)
            folder.mkdir()
        total = 0
        for rank in range(2):
            path = Path(name, "plain", f"rank{rank}.json")
            write(path, rank, size // 2)
            total += path.stat().st_size
            packed = Path(name, "gzip", f"{path.name}.gz")
            with open(path, "rb") as plain, gzip.open(packed, "wb", 1) as file:
                shutil.copyfileobj(plain, file, MEGABYTE)
        print(f"{total / MEGABYTE:.0f} MB on 2 ranks, {STEPS * MICROBATCHES * 4} actions")
        for form in ("plain", "gzip"):
            output = subprocess.run(
                [sys.executable, __file__, "--read", str(Path(name, form))],
                check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
            wall, work, grown = (float(value) for value in output.split())
            print(
                f"{form:6} {total / MEGABYTE / wall:6.0f} MB/s  ({total / MEGABYTE / work:.0f} MB "
                f"per second of processor time), memory grows by {grown:.0f} MB"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        measure(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) * MEGABYTE if sys.argv[1:] else 200 * MEGABYTE)
