"""Speed and memory of generate, check, lower, compile, evaluate and memory; `make bench` runs it.

Every figure is the median of several runs in this process after one run to warm up. Peak memory is
the growth of the process's high-water mark in a process of its own.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numba  # noqa: F401 - loaded first, so that every run is a warm one

# Kernels compile where they are needed first: no figure is of an interpreted run.
os.environ["DEBUBBLE_BACKGROUND"] = "0"

import debubble as db
from debubble.engine.graph import compile_graph
from debubble.interchange.torch_csv import to_csv, with_transfers
from debubble.lowering.sharding import add_sharding
from debubble.lowering.transfers import add_transfers

CASES = [
    # name, ranks, microbatches, chunks
    ("1f1b", 8, 64, None),
    ("1f1b", 16, 320, None),
    ("1f1b", 16, 3_125, None),
    ("1f1b", 16, 31_250, None),
    ("1f1b", 16, 312_500, None),
    ("interleaved-1f1b", 16, 512, 4),
    ("interleaved-1f1b", 64, 4_096, 4),
    ("zb-h1", 16, 20_000, None),
    ("dualpipe", 16, 30_000, None),
    ("dualpipe-v", 16, 10_000, None),
]
LOWERED = [
    ("1f1b", 16, 1_000, None),
    ("1f1b", 16, 10_000, None),
    ("1f1b", 16, 100_000, None),
    ("zb-v", 16, 5_000, None),
    ("interleaved-1f1b", 16, 5_120, 2),
    ("dualpipe", 16, 8_000, None),
]
FILE = ("1f1b", 16, 5_000, None)
COSTS = db.Costs.per_rank(F=10, I=11, W=7, O=25, p2p=0.5)


def median(
    action: Callable[[], object], runs: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    action()
    times = []
    for _ in range(runs):
        begin = clock()
        action()
        times.append(clock() - begin)
    return statistics.median(times)


def processor(action: Callable[[], object], runs: int) -> float:
    return median(action, runs, time.process_time)


def end_to_end(name: str, ranks: int, microbatches: int, chunks: int | None) -> int:
    schedule = db.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    report = db.check(schedule)
    assert report.ok
    timeline = db.simulate(schedule, COSTS)
    assert timeline.makespan > 0
    assert timeline.peak_activation.max() > 0
    return len(schedule)


def check_anew(schedule: db.Schedule) -> None:
    """Check a schedule about which nothing is known yet."""
    assert db.check(replace(schedule)).ok


def lower_and_check(name: str, ranks: int, microbatches: int, chunks: int | None) -> int:
    schedule = db.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
    lowered = add_transfers(schedule)
    check_anew(lowered)
    return len(lowered)


def high_water() -> int:
    """Most memory this process has held so far, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_bytes(run: str, name: str, ranks: int, microbatches: int, chunks: int | None) -> float:
    """Bytes per action that one run adds to a process that has done a small one."""
    code = (
        "import sys; sys.path.insert(0, 'benchmarks'); import speed\n"
        f"speed.{run}({name!r}, 2, 2048, None)\n"
        "before = speed.high_water()\n"
        f"n = speed.{run}({name!r}, {ranks}, {microbatches}, {chunks!r})\n"
        "print((speed.high_water() - before) / n)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def process(*command: str) -> float:
    def run() -> None:
        subprocess.run([sys.executable, *command], capture_output=True, check=True)

    return median(run, 9)


def lowered_table() -> None:
    """Processor time per lowered action to add transfers, and to check with and without them."""
    print("| schedule | p | m | v | lowered actions | lower | check | with FSDP | plain | memory |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, ranks, microbatches, chunks in LOWERED:
        parameters = (name, ranks, microbatches, chunks)
        schedule = db.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
        lowered = add_transfers(schedule)
        sharded = add_sharding(lowered, mode="fsdp")
        n, runs = len(lowered), 3 if len(lowered) > 5 * 10**6 else 7
        times = [
            processor(lambda s=schedule: add_transfers(replace(s)), runs) / n,  # type: ignore[misc]
            processor(lambda s=lowered: check_anew(s), runs) / n,  # type: ignore[misc]
            processor(lambda s=sharded: check_anew(s), runs) / len(sharded),  # type: ignore[misc]
            processor(lambda s=schedule: check_anew(s), runs) / len(schedule),  # type: ignore[misc]
        ]
        size = f"{peak_bytes('lower_and_check', *parameters):.0f} B" if n >= 5 * 10**5 else "–"
        print(
            f"| {name} | {ranks} | {microbatches} | {schedule.chunks} | {n:,} | "
            f"{' | '.join(f'{time * 1e9:.0f} ns' for time in times)} | {size} |",
            flush=True,
        )


def file_line() -> None:
    """Processor time per action to read a CSV with communication, and to check what it says."""
    name, ranks, microbatches, chunks = FILE
    schedule = with_transfers(db.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.csv"
        path.write_text(to_csv(schedule, transfers=True))
        read = processor(lambda: db.load(path), 5) / len(schedule)
        both = processor(lambda: check_anew(db.load(path)), 5) / len(schedule)
    print(
        f"CSV with communication, {len(schedule):,} actions: read {read * 1e9:.0f} ns per action, "
        f"read and check {both * 1e9:.0f} ns"
    )


def main() -> None:
    print("| schedule | p | m | v | actions | end to end | evaluate | 8 at once | memory |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, ranks, microbatches, chunks in CASES:
        parameters = (name, ranks, microbatches, chunks)
        schedule = db.make(name, ranks=ranks, microbatches=microbatches, chunks=chunks)
        n = len(schedule)
        runs = 5 if n > 10**6 else 15
        whole = median(lambda p=parameters: end_to_end(*p), runs)  # type: ignore[misc]
        graph = compile_graph(schedule)
        vector = graph.cost_vector(COSTS.resolve(schedule.placement, schedule.slicing))
        end = graph.evaluate(vector)
        once = median(lambda g=graph, v=vector, e=end: g.evaluate(v, out=e), runs)  # type: ignore[misc]
        many = float("nan")
        if n <= 2 * 10**6:
            rows = vector[None, :].repeat(8, axis=0)
            many = median(lambda g=graph, r=rows: g.makespans(r), runs) / 8  # type: ignore[misc]
        size = f"{peak_bytes('end_to_end', *parameters):.0f} B" if n >= 9 * 10**5 else "–"
        print(
            f"| {name} | {ranks} | {microbatches} | {schedule.chunks} | {n:,} "
            f"| {whole / n * 1e9:.0f} ns ({whole * 1e3:.2f} ms) | {once / n * 1e9:.2f} ns "
            f"| {many / n * 1e9:.2f} ns | {size} |",
            flush=True,
        )
    print()
    lowered_table()
    print()
    file_line()
    print()
    print(f"python -c pass: {process('-c', 'pass'):.3f} s")
    print(f"import debubble: {process('-c', 'import debubble'):.3f} s")
    print(
        "debubble simulate 1f1b -p 8 -m 64: "
        f"{process('-m', 'debubble', 'simulate', '1f1b', '-p', '8', '-m', '64'):.3f} s"
    )


if __name__ == "__main__":
    main()
