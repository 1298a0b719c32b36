"""Large traces are read in several processes, with what one process would find.

How it works: a reader cuts its work into tasks, such as the files of ranks or pieces of a file, and
gives them to :meth:`Workers.each` with a function that does one. That hands them out to processes
and yields what they return, in order of the tasks. Few bytes, or a single task, it does itself, and
everything where others keep the processors busy.

The processes are Python's own (``python -m debubble.diagnosis.readers.worker``) and talk through
pipes. Nothing is forked, so that threads do no harm, and no module of the user's is imported. A
thread for each waits for its replies. One that dies, for instance for want of memory, or raises
anything, has not happened: this process does that task itself, and after a death all that follow.
All are ended when the reading is; if this process is killed, they find their pipes closed.

Memory: so many tasks and replies are on their way at a time as there are processes, and
:data:`AHEAD` more.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from debubble.diagnosis.cancellation import check_cancelled
from debubble.diagnosis.readers.stream import LeftOut
from debubble.diagnosis.readers.worker import GREETING, receive, send

A = TypeVar("A")
R = TypeVar("R")

FEWEST_BYTES = 100_000_000
"""Bytes of files from which on processes save more time than it takes to start them."""

PACKED = 8
"""Times of its packed bytes that a trace has."""

MOST = 8
"""Processes at most: more would wait for this one, which puts together what they find."""

AHEAD = 2
"""Tasks that are handed out while all processes are busy."""

PATIENCE = 0.1
"""Seconds after which it is asked whether anybody still wants the trace."""


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "process_cpu_count"):
        return int(os.process_cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def workers_for(files: Sequence[Path]) -> Workers:
    """As many workers as reading these files is worth."""
    size = 0
    for path in files:
        with suppress(OSError):
            size += path.stat().st_size * (PACKED if path.suffix == ".gz" else 1)
    # Where a program has Python inside, its name is that of the program.
    is_python = "python" in Path(sys.executable or "").name.lower()
    several = size >= FEWEST_BYTES and is_python and not getattr(sys, "frozen", False)
    count = min(_idle_processors(), MOST) if several else 1
    return Workers(count if count > 1 else 0)


def _idle_processors() -> int:
    """How many processors this process may use that others leave alone, if only in part."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0
    return math.ceil(processors() * max(1 - busy, 0.0))


class Workers:
    """Processes that do tasks while a ``with`` is open; they start when there are two.

    Parameters
    ----------
    count
        How many; 0 to do everything in this process.
    """

    def __init__(self, count: int = 0) -> None:
        self._count = count
        self._started: list[_Worker] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._threads = ThreadPoolExecutor(max(count, 1))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *raised: object) -> None:
        self._count = 0
        for worker in self._started:
            worker.process.kill()
        # Threads that wait for a reply now find that there comes none.
        self._threads.shutdown(cancel_futures=True)
        for worker in self._started:
            worker.close()

    def each(
        self, do: Callable[[A, LeftOut], R], tasks: Iterable[A], left_out: LeftOut
    ) -> Iterator[tuple[A, R]]:
        """The tasks in their order, and what a function returns for each.

        Parameters
        ----------
        do
            A function of a module. It changes nothing but the counts that it is given.
        tasks
            They are made as they are needed, which is before those before them are done.
        left_out
            Where what the function counts is added, task by task.
        """
        tasks = iter(tasks)
        first = list(islice(tasks, 2))
        tasks = chain(first, tasks)
        if len(first) > 1 and self._count and not self._started:
            self._start()
        waiting: deque[tuple[A, Future[tuple[R, LeftOut] | None]]] = deque()
        while len(first) > 1:
            room = self._count + AHEAD - len(waiting) if self._count else 0
            for task in islice(tasks, max(room, 0)):
                waiting.append((task, self._handed_out(do, task)))
            if not waiting:
                break
            task, future = waiting.popleft()
            reply = _result(future)
            if reply is None:
                yield task, do(task, left_out)
            else:
                left_out.update(reply[1])
                yield task, reply[0]
        for task in tasks:
            check_cancelled()
            yield task, do(task, left_out)

    def _handed_out(
        self, do: Callable[[A, LeftOut], R], task: A
    ) -> Future[tuple[R, LeftOut] | None]:
        """What is to come of a task."""
        try:
            return self._threads.submit(self._ask, do, task)
        except RuntimeError:
            # There may be no more threads, and there are none once the main one is over.
            self._count = 0
            nothing: Future[tuple[R, LeftOut] | None] = Future()
            nothing.set_result(None)
            return nothing

    def _start(self) -> None:
        try:
            for _ in range(self._count):
                self._started.append(_Worker())
                self._idle.put(self._started[-1])
        except OSError:
            self._count = 0

    def _ask(self, do: Callable[[A, LeftOut], R], task: A) -> tuple[R, LeftOut] | None:
        """What a worker finds; None where this process has to do it."""
        worker = self._idle.get()
        try:
            reply: tuple[R, LeftOut] | None = worker.ask((do, task))
        except Exception:
            # Of one that died in the middle of a reply the rest must not be taken for the next.
            worker.process.kill()
            self._count = 0
            return None
        finally:
            self._idle.put(worker)
        return reply


class _Worker:
    """A process that does tasks."""

    def __init__(self) -> None:
        # It imports what this process would, and nothing from the folder that it is in.
        path = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "debubble.diagnosis.readers.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )  # fmt: skip
        assert self.process.stdin is not None, "it is a pipe"
        assert self.process.stdout is not None, "it is a pipe"
        self._questions, self._replies = self.process.stdin, self.process.stdout
        self._greeted = False

    def ask(self, question: Any) -> Any:
        """The reply to a question."""
        if not self._greeted and self._replies.read(len(GREETING)) != GREETING:
            raise EOFError
        self._greeted = True
        send(self._questions, question)
        return receive(self._replies)

    def close(self) -> None:
        """Leave nothing of a process that was killed."""
        self.process.wait()
        for pipe in (self._questions, self._replies):
            with suppress(OSError):
                pipe.close()


def _result(future: Future[R]) -> R:
    """What comes of a future, unless meanwhile nobody wants it any more."""
    while True:
        check_cancelled()
        with suppress(TimeoutError):
            return future.result(PATIENCE)
