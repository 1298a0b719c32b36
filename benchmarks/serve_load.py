"""The playground under mixed load: calm clients, slow ones, rude ones, and huge requests.

``python benchmarks/serve_load.py --minutes 10``: of a hundred clients, each at an address of its
own on the loopback network, most ask what pages ask, some send a byte now and then, some go away in
the middle, and some send more than anybody may. Says how long calm clients waited, which
answers there were, and what memory the server took over the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve import NAMES, memory, state

PATIENCE = 90.0
"""Seconds after which a client gives up."""

ALLOWED = {200, 304, 404, 405, 408, 410, 413, 415, 422, 429, 503}
"""Answers that are in order, whatever was asked for."""


@dataclass
class Seen:
    """What clients saw."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


@dataclass
class Client:
    """One client with its address and its own random choices."""

    number: int
    port: int
    seen: Seen
    random: random.Random

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection."""
        # Every client has an address of its own, as behind a proxy that tells them apart.
        own = (f"127.0.{1 + self.number // 200}.{1 + self.number % 200}", 0)
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=own)

    def head(self, path: str, length: int, kind: str = "application/json") -> bytes:
        """The head of a request whose body has a length."""
        method = "POST" if length else "GET"
        return (
            f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
            f"content-length: {length}\r\nconnection: close\r\n\r\n"
        ).encode()

    async def ask(self, path: str, body: bytes = b"", name: str = "") -> tuple[int, bytes]:
        """A whole request and its answer, which is counted."""
        began = time.monotonic()
        reader, writer = await self.connected()
        try:
            writer.write(self.head(path, len(body)) + body)
            content = await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()
        self.seen.seconds[name or path].append(time.monotonic() - began)
        return self.answered(name or path, content)

    def answered(self, name: str, content: bytes) -> tuple[int, bytes]:
        """Status and body of an answer, which is counted."""
        head, _, body = content.partition(b"\r\n\r\n")
        words = head.split(None, 2)
        status = int(words[1]) if len(words) > 1 else 0
        self.seen.answers[f"{name} {status}"] += 1
        if status not in ALLOWED and content:
            self.seen.wrong.append(f"{name} {status}: {body[:200]!r}")
        return status, body


def encoded(data: Any) -> bytes:
    return json.dumps(data).encode()


async def calm(client: Client) -> None:
    """What a page asks for."""
    rng = client.random
    match rng.randrange(8):
        case 0:
            await client.ask(rng.choice(("/", "/main.js", "/playground.css", "/timeline.js")))
        case 1:
            await client.ask("/api/schedules")
        case 2:
            body = {"state": state(rng), "format": rng.choice(("json", "chrome-trace", "html"))}
            await client.ask("/api/export", encoded(body))
        case 3:
            text = "times: {F: 1, I: 1.5, W: 1}\nranks: 4\n"
            await client.ask("/api/upload", encoded({"name": "costs.yaml", "text": text}))
        case 4 if rng.random() < 0.2:
            await searched(client)
        case _:
            status, body = await client.ask("/api/simulate", encoded(state(rng)))
            if status == 200 and not json.loads(body)["cards"]:
                client.seen.wrong.append("an answer without cards")
    await asyncio.sleep(rng.uniform(0, 1))


async def searched(client: Client) -> None:
    """A plan or a faster order, asked after until it is there."""
    if client.random.random() < 0.5:
        question = {"model": "llama-3.2-1b", "gpu": "h100", "gpus": 4, "batch": 8, "sequence": 2048,
                    "schedule": "1f1b"}  # fmt: skip
        status, body = await client.ask("/api/plan", encoded(question))
    else:
        small = {"schedules": [{"name": NAMES[0]}], "ranks": 2, "microbatches": 4}
        status, body = await client.ask("/api/optimize", encoded(small))
    if status != 200:
        return
    look = {"search": json.loads(body)["search"]}
    done = False
    while not done:
        await asyncio.sleep(1)
        status, body = await client.ask("/api/search", encoded(look))
        done = status != 200 or json.loads(body)["done"]


async def slow(client: Client) -> None:
    """A byte now and then, of the head or of the body; the server ends that at some time."""
    reader, writer = await client.connected()
    body = encoded(state(client.random))
    head = client.head("/api/simulate", len(body))
    text = head[:40] + b"x" * 400
    began = time.monotonic()
    try:
        if client.random.random() < 0.5:
            writer.write(head)
            text = body
        for byte in text:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.5)
            if reader.at_eof() or time.monotonic() - began > PATIENCE:
                break
        content = await asyncio.wait_for(reader.read(), PATIENCE)
    finally:
        writer.close()
    client.seen.seconds["until a slow one is ended"].append(time.monotonic() - began)
    client.answered("slow", content)


async def rude(client: Client) -> None:
    """Goes away in the middle of its request, or of the answer."""
    _, writer = await client.connected()
    body = encoded(state(client.random))
    text = client.head("/api/simulate", len(body)) + body
    writer.write(text[: client.random.choice((len(text), len(text) // 2, 30))])
    await writer.drain()
    await asyncio.sleep(client.random.uniform(0, 0.3))
    writer.transport.abort()
    client.seen.answers["gone away"] += 1
    await asyncio.sleep(client.random.uniform(0, 1))


async def huge(client: Client) -> None:
    """As much as is allowed and more: long bodies, large orders, wrong types."""
    rng = client.random
    match rng.randrange(4):
        case 0:
            await client.ask("/api/upload", b"x" * (13 << 20), "too long a body")
        case 1:
            body = encoded({"name": "x.json", "text": "[" * (1 << 20)})
            await client.ask("/api/upload", body, "a deep file")
        case 2:
            asked = {"schedules": [{"name": name} for name in NAMES], "ranks": 64,
                     "microbatches": 640}  # fmt: skip
            await client.ask("/api/simulate", encoded(asked), "a large order")
        case _:
            asked = {"schedules": [{"name": "1f1b"}], "ranks": 512, "microbatches": 65536}
            await client.ask("/api/simulate", encoded(asked), "too large an order")
    await asyncio.sleep(rng.uniform(0, 5))


SORTS: dict[str, tuple[int, Callable[[Client], Awaitable[None]]]] = {
    "calm": (80, calm), "slow": (8, slow), "rude": (8, rude), "huge": (4, huge),
}  # fmt: skip
"""Shares of a hundred clients, and what they do."""


async def go_on(client: Client, act: Callable[[Client], Awaitable[None]], until: float) -> None:
    while time.monotonic() < until:
        try:
            await act(client)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError) as error:
            client.seen.answers[f"{act.__name__}: {type(error).__name__}"] += 1
            await asyncio.sleep(0.1)


async def watch(process: int, seen: Seen, until: float) -> None:
    while time.monotonic() < until:
        seen.memory.append(memory(process, "VmRSS"))
        await asyncio.sleep(5)


def processor(process: int) -> float:
    """Seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(process: int, port: int, clients: int, seconds: float) -> Seen:
    seen, until = Seen(), time.monotonic() + seconds
    tasks = [watch(process, seen, until)]
    number = 0
    for share, act in SORTS.values():
        for _ in range(round(clients * share / 100)):
            tasks.append(go_on(Client(number, port, seen, random.Random(number)), act, until))
            number += 1
    await asyncio.gather(*tasks)
    return seen


def report(seen: Seen) -> None:
    for name, times in sorted(seen.seconds.items()):
        cuts = statistics.quantiles(times, n=100) if len(times) > 1 else times * 99
        print(f"{name:<28}{len(times):>7,}  median {cuts[49]:6.2f} s, p95 {cuts[94]:6.2f} s, "
              f"p99 {cuts[98]:6.2f} s, most {max(times):6.2f} s")  # fmt: skip
    print("; ".join(f"{name}: {count:,}" for name, count in sorted(seen.answers.items())))
    quarter = max(len(seen.memory) // 4, 1)
    parts = [seen.memory[at : at + quarter] for at in range(0, len(seen.memory), quarter)]
    means = ", ".join(f"{statistics.mean(part):.0f}" for part in parts)
    print(f"memory of the server, quarter by quarter: {means} MiB; most {max(seen.memory):.0f} MiB")
    print(f"{len(seen.wrong)} wrong answers", *seen.wrong[:5], sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=100)
    given = parser.parse_args()
    command = [sys.executable, "-m", "debubble", "serve", "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert server.stderr is not None
    port = int(server.stderr.readline().split()[3].rstrip("/").rpartition(":")[2])
    time.sleep(10)  # compiled kernels are loaded behind the first page
    seen = asyncio.run(load(server.pid, port, given.clients, 60 * given.minutes))
    alive = server.poll() is None
    busy = processor(server.pid) if alive else float("nan")
    server.send_signal(signal.SIGINT)
    _, said = server.communicate(timeout=30)
    print(f"{given.clients} clients for {given.minutes:g} minutes; the server "
          f"{'ran to the end' if alive else 'died'}, took {busy:.0f} s of processor time, and "
          f"printed {len(said)} characters")  # fmt: skip
    print(said[:2000])
    report(seen)
    return int(bool(seen.wrong) or not alive)


if __name__ == "__main__":
    sys.exit(main())
