"""Process pool to read the files of a large trace, with a share of the files each.

For few bytes, a single file, or on a busy machine, everything is read in this process. Otherwise
new Python processes (``python -m debubble.diagnosis.readers.pool``) read a share each while this
one reads its own. They are started, not forked, which is safe with threads, and unlike those of
:mod:`multiprocessing` never import the program's ``__main__``, which need not have a guard. If one
dies or raises, this process reads its files instead. All are killed at the end of the reading.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from debubble.diagnosis.cancellation import check_cancelled
from debubble.diagnosis.readers.stream import LeftOut
from debubble.engine.background import is_python

A = TypeVar("A")
R = TypeVar("R")

FEWEST_BYTES = 100_000_000
"""Minimum size of files, in bytes, at which several processes save their start-up time."""

PACKED = 8
"""Approximate ratio of unpacked to packed bytes of a compressed trace."""

MOST = 8
"""Maximum number of processes: more would wait for this one, which merges their results."""

PATIENCE = 0.1
"""Seconds between two checks whether the reading is cancelled."""


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "process_cpu_count"):
        return int(os.process_cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processes_for(files: Sequence[Path]) -> int:
    """Return the suitable number of processes for some files, this one included."""
    size = 0
    for path in files:
        with suppress(OSError):
            size += path.stat().st_size * (PACKED if path.suffix == ".gz" else 1)
    if size < FEWEST_BYTES or not is_python():
        return 1
    busy = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0
    idle = math.ceil(processors() * max(1 - busy, 0.0))
    return max(min(idle, MOST, len(files)), 1)


def read_each(
    read: Callable[[A, LeftOut], R],
    tasks: Sequence[A],
    left_out: LeftOut,
    files: Sequence[Path] | None = None,
) -> Iterator[tuple[A, R]]:
    """Yield the tasks in sequence, with the result of `read` for each.

    `read` is a function of a module without side effects, except on the counts it is given, which
    are added to `left_out` when a task is yielded. `files` are those that all tasks read, if the
    tasks are no files.
    """
    count = processes_for(files if files is not None else [Path(str(task)) for task in tasks])
    count = min(count, len(tasks))
    with ExitStack() as stack:
        others = [
            stack.enter_context(_Process(read, tasks[first::count])) for first in range(1, count)
        ]
        # While this process reads its share, the others read theirs.
        mine = [_attempt(read, task) for task in tasks[::count]] if others else []
        shares = [mine, *(other.results() for other in others)]
    for at, task in enumerate(tasks):
        share = shares[at % max(count, 1)]
        found = share[at // count] if share else None
        if found is None:
            check_cancelled()
            yield task, read(task, left_out)
        else:
            left_out.update(found[1])
            yield task, found[0]


def _attempt(read: Callable[[A, LeftOut], R], task: A) -> tuple[R, LeftOut] | None:
    """Return the result and counts of a task; None if it raises, as it will again."""
    check_cancelled()
    counts = LeftOut()
    try:
        return read(task, counts), counts
    except Exception:
        return None


class _Process:
    """A process that reads a share of the tasks while a ``with`` is open."""

    def __init__(self, read: Callable[[A, LeftOut], R], tasks: Sequence[A]) -> None:
        self._files = ExitStack()
        self._work = (read, tasks)
        self._replies: IO[bytes]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Process:
        # It has this process's import path, without its own folder.
        path = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)
        environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
        with suppress(OSError):
            questions = self._files.enter_context(tempfile.TemporaryFile())
            self._replies = self._files.enter_context(tempfile.TemporaryFile())
            pickle.dump(self._work, questions)
            questions.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=questions, stdout=self._replies, stderr=subprocess.DEVNULL, env=environment,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )  # fmt: skip
        return self

    def results(self) -> list[tuple[Any, LeftOut] | None]:
        """Wait for the results; None for each task that was not done, empty if none was."""
        if self._process is None:
            return []
        while True:
            check_cancelled()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
                break
        self._replies.seek(0)
        try:
            found: list[tuple[Any, LeftOut] | None] = pickle.load(self._replies)
        except (pickle.UnpicklingError, EOFError, ValueError):
            # It died, or is no Python that has debubble.
            return []
        return found

    def __exit__(self, *raised: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._files.close()


def work() -> None:
    """Do the tasks from standard input and write their results to standard output."""
    # Ctrl-C means the process that started this one, which kills it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What anything prints must not get among the results.
    with contextlib.redirect_stdout(sys.stderr):
        read, tasks = pickle.load(sys.stdin.buffer)
        found = [_attempt(read, task) for task in tasks]
    pickle.dump(found, sys.__stdout__.buffer, protocol=5)  # type: ignore[union-attr]


if __name__ == "__main__":
    work()
