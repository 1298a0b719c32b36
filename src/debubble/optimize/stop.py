"""Limits of a search: a fixed amount of work, a time limit, or a request to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 0.2
"""Seconds between looks at Ctrl-C while searches run."""


@dataclass(frozen=True)
class WorkLimit:
    """Effort, seed and threads of a search."""

    effort: float = 1.0
    """Multiplies the fixed amount of work; infinite to use all the time there is."""
    seed: int = 0
    """Of everything random."""
    workers: int = 1
    """Threads."""

    def share(self, part: float) -> WorkLimit:
        """Return a part of the effort."""
        return WorkLimit(self.effort * part, self.seed, self.workers)


class Stop:
    """Limit of a search, checked between its steps from any thread.

    It counts from now, infinite without one. A parent stops it, too, and lends its work.
    """

    def __init__(
        self,
        seconds: float = float("inf"),
        parent: Stop | None = None,
        work: WorkLimit | None = None,
    ) -> None:
        self.work: WorkLimit = work or (parent.work if parent else WorkLimit())
        self._end = time.monotonic() + seconds
        self._parent = parent
        self._asked = threading.Event()
        self._running: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.asked or self.left <= 0

    @property
    def asked(self) -> bool:
        """True after a request to stop, however much time is left."""
        return self._asked.is_set() or bool(self._parent and self._parent.asked)

    @property
    def left(self) -> float:
        """Seconds left, infinite without a limit."""
        own = max(self._end - time.monotonic(), 0.0)
        return min(own, self._parent.left) if self._parent else own

    def ask(self) -> None:
        """Stop everything now."""
        self._asked.set()
        with self._lock:
            for end in self._running:
                end()

    @contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` when the time is up, and by :meth:`ask`, while this is open.

        For searches that cannot ask themselves, or too seldom.
        """
        left = self.left
        timer = threading.Timer(left, end) if left < float("inf") else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            with self._asking(end):
                yield
        finally:
            if timer is not None:
                timer.cancel()

    @contextmanager
    def _asking(self, end: Callable[[], object]) -> Iterator[None]:
        if self._parent:
            with self._parent._asking(end):
                yield
            return
        with self._lock:
            self._running.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(end)


def run_heard(search: Callable[[], T], stop: Stop, until: Callable[[], bool] | None) -> T:
    """Run a search in another thread, and ask it to stop after Ctrl-C or once `until` is true."""
    interrupted = False
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(search)
        while not running.done():
            try:
                wait([running], PATIENCE)
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
            if interrupted or (until is not None and until()):
                interrupted = True
                # Again and again: a solver that was about to start has not heard the first.
                stop.ask()
        return running.result()


def time_left(limit: float | None, began: float) -> float:
    """Return the seconds that are left of a limit, infinite without one."""
    return float("inf") if limit is None else max(limit - (time.monotonic() - began), 0.0)
