"""Run readers on many inputs, each reader in a process with limits, and keep what went wrong.

A process has a board: a file in memory with its counts and its last input, which is there also
when the process was killed.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from tests.fuzz.readers import MEMORY, READERS, accepts, at_home

ROOM = 3 << 30
"""Bytes of addresses that a process may add to what it has when its inputs begin."""
LONGEST = 1 << 22
"""Bytes of an input that the board keeps."""
BLOCK = 500
"""Inputs that are made from one random seed."""
COUNTS = struct.Struct("<qqqqq")
"""Inputs, accepted, failures, length of the input, and its seed."""


class TooLongError(BaseException):
    """An input took more processor time than it may."""


class Board:
    """Counts and last input, in a file."""

    def __init__(self, path: Path) -> None:
        size = COUNTS.size + LONGEST
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(size)
            self.map = mmap.mmap(file.fileno(), size)

    def put(self, inputs: int, accepted: int, failures: int, content: bytes, seed: int) -> None:
        COUNTS.pack_into(self.map, 0, inputs, accepted, failures, len(content), seed)
        kept = content[:LONGEST]
        self.map[COUNTS.size : COUNTS.size + len(kept)] = kept

    def get(self) -> tuple[int, int, int, bytes, int]:
        inputs, accepted, failures, length, seed = COUNTS.unpack_from(self.map)
        return inputs, accepted, failures, self.map[COUNTS.size :][:length], seed


@dataclass
class Found:
    """What a reader did with its inputs."""

    name: str
    inputs: int = 0
    accepted: int = 0
    failures: int = 0
    seconds: float = 0.0
    kinds: int = 0


class Watch:
    """Gives inputs to one reader within limits, counts, and keeps an input of each failure."""

    def __init__(self, name: str, board: Board, kept: Path) -> None:
        self.name, self.reader, self.board, self.kept = name, READERS[name], board, kept
        self.inputs = self.accepted = self.failures = self.seed = 0
        signal.signal(signal.SIGPROF, _too_long)

    def limit(self) -> None:
        """Refuse more memory than this from now on."""
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def give(self, content: bytes) -> None:
        """One input."""
        self.inputs += 1
        self.board.put(self.inputs, self.accepted, self.failures, content, self.seed)
        signal.setitimer(signal.ITIMER_PROF, self.reader.seconds)
        try:
            self.accepted += accepts(self.reader, content)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.failures += 1
            keep(self.kept, self.name, content, error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(number: int, frame: Any) -> None:
    raise TooLongError


def keep(folder: Path, name: str, content: bytes, error: BaseException) -> None:
    """Keep the first, and then shorter, inputs of every kind of failure: where it was raised."""
    place = _place(error.__traceback__)
    title = f"{name}-{type(error).__name__}-{place}"
    path = folder / title.replace("/", "_")
    if path.exists() and path.stat().st_size <= len(content):
        return
    first = not path.exists()
    path.write_bytes(content)
    if first:
        path.with_name(path.name + ".txt").write_text(
            "".join(traceback.format_exception(error)), encoding="utf-8", errors="replace"
        )


def _place(trace: TracebackType | None) -> str:
    """The innermost line of the package, else of anything."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if "debubble/" in frame.filename] or frames
    last = own[-1]
    return f"{Path(last.filename).stem}.py:{last.lineno}"


def work(name: str, board: Path, kept: Path, seed: int, until: float, count: int) -> None:
    """Random inputs in this process, until a time or for a number of them."""
    warnings.simplefilter("ignore")
    at_home()
    watch = Watch(name, Board(board), kept)
    known = watch.reader.seeds()
    for content in known:
        watch.give(content)
    watch.limit()
    while watch.inputs < count if count else time.monotonic() < until:
        random = Random(f"{name} {seed}")
        watch.seed = seed
        for _ in range(BLOCK):
            watch.give(watch.reader.input(random, known))
            if time.monotonic() >= until:
                break
        seed += 1
    watch.board.put(watch.inputs, watch.accepted, watch.failures, b"", seed)


Start = Callable[[str, Path, Path, int, float, int], int]
"""Starts a process that works; its number."""


def load() -> None:
    """Load what most readers need, once for all copies of this process."""
    import debubble.cli.app
    import debubble.diagnosis.diagnose
    import debubble.planner.cost.calibration_files
    import debubble.playground.app
    import debubble.sweeps.chart  # noqa: F401


def forked(name: str, board: Path, kept: Path, seed: int, until: float, count: int) -> int:
    """A copy of this process."""
    child = os.fork()
    if child:
        return child
    try:
        work(name, board, kept, seed, until, count)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def guided(name: str, board: Path, kept: Path, seed: int, until: float, count: int) -> int:
    """A process of atheris, which makes inputs that reach new code."""
    words = [sys.executable, "-m", "tests.fuzz.guided", name, str(board), str(kept), str(seed),
             str(max(1, int(until - time.monotonic()))), str(count)]  # fmt: skip
    null = os.open(os.devnull, os.O_WRONLY)
    actions = [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    child = os.posix_spawn(sys.executable, words, dict(os.environ), file_actions=actions)
    os.close(null)
    return child


ENGINES: dict[str, Start] = {"random": forked, "atheris": guided}


def run(name: str, seconds: float, *, engine: str, seed: int, kept: Path, count: int = 0) -> Found:
    """Run one reader; a process that dies of an input is a failure, and another goes on."""
    found = Found(name)
    began = time.monotonic()
    until = began + seconds
    before = {path.name for path in kept.iterdir()}
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place:
        while found.inputs < count if count else time.monotonic() < until:
            path = Path(place, "board")
            path.unlink(missing_ok=True)
            left = max(count - found.inputs, 0)
            child = ENGINES[engine](name, path, kept, seed, until, left)
            _, status = os.waitpid(child, 0)
            inputs, accepted, failures, content, seed = Board(path).get()
            found.inputs += inputs
            found.accepted += accepted
            found.failures += failures
            if os.waitstatus_to_exitcode(status) != 0 and content:
                found.failures += 1
                code = os.waitstatus_to_exitcode(status)
                (kept / f"{name}-died-{code}").write_bytes(content)
            if not inputs:
                print(f"{name}: the process of {engine} died at once", file=sys.stderr)
                found.failures += 1
                break
            seed += 1
    found.seconds = time.monotonic() - began
    found.kinds = len([p for p in {p.name for p in kept.iterdir()} - before if p[-4:] != ".txt"])
    return found


def replay(name: str, path: Path) -> None:
    """Give one input to a reader, and let what it raises through."""
    at_home()
    print("accepted" if accepts(READERS[name], path.read_bytes()) else "refused")


def report(all_found: list[Found]) -> str:
    """Figures as JSON."""
    return json.dumps({one.name: vars(one) for one in all_found}, indent=1)
