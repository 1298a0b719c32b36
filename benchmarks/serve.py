"""The playground under load: many clients for a while, every answer checked, memory watched."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

CLIENTS, SECONDS = 100, 60.0
NAMES = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v", "gpipe")


def memory(process: int, field: str) -> float:
    """Memory of a process in MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return float("nan")


def state(rng: random.Random) -> dict[str, Any]:
    """A page's state, nearly always another one."""
    names = rng.sample(NAMES, 3)
    return {
        "schedules": [{"name": name} for name in names],
        "ranks": rng.choice((4, 8)),
        "microbatches": 4 * rng.randint(4, 40),
        "memory": rng.choice((None, 8.0)),
        "costs": {"basis": "rank", "F": round(rng.uniform(1, 2), 3), "I": 1.0, "W": 1.0},
    }


async def client(address: str, seed: int, until: float, times: list[float]) -> list[str]:
    """Ask until the time is over; returns what went wrong."""
    rng, errors = random.Random(seed), []
    async with httpx.AsyncClient(base_url=address, timeout=60) as session:
        while time.monotonic() < until:
            begin = time.monotonic()
            answer = await session.post("/api/simulate", json=state(rng))
            times.append(time.monotonic() - begin)
            if answer.status_code != 200 or not answer.json()["cards"]:
                errors.append(f"{answer.status_code}: {answer.text[:200]}")
    return errors


async def load(address: str) -> tuple[list[float], list[str]]:
    times: list[float] = []
    until = time.monotonic() + SECONDS
    found = await asyncio.gather(*(client(address, k, until, times) for k in range(CLIENTS)))
    return times, [error for errors in found for error in errors]


def main() -> None:
    command = [sys.executable, "-m", "debubble", "serve", "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert server.stderr is not None
    address = server.stderr.readline().split()[3]
    time.sleep(10)  # compiled kernels are loaded behind the first page
    before = memory(server.pid, "VmRSS")
    times, errors = asyncio.run(load(address))
    after, most = memory(server.pid, "VmRSS"), memory(server.pid, "VmHWM")
    one = []
    with httpx.Client(base_url=address, timeout=60) as session:
        for k in range(20):
            body = {
                "schedules": [{"name": "1f1b"}, {"name": "zb-h1"}],
                "ranks": 8,
                "microbatches": 256,
                "costs": {"F": 1 + k / 100},
            }
            begin = time.perf_counter()
            session.post("/api/simulate", json=body).raise_for_status()
            one.append(time.perf_counter() - begin)
    server.send_signal(signal.SIGINT)
    server.wait(20)
    print(f"{CLIENTS} clients, {SECONDS:g} s: {len(times):,} answers, {len(errors)} errors")
    print(f"seconds per answer: median {statistics.median(times):.2f}, most {max(times):.2f}")
    print(f"memory: {before:.0f} MiB before, {after:.0f} MiB after, at most {most:.0f} MiB")
    print(f"one client, 10,240 actions: median {1000 * statistics.median(one):.0f} ms")
    print(*errors[:5], sep="\n")


if __name__ == "__main__":
    main()
