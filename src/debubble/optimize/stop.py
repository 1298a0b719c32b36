"""When to stop looking: after some time, or when somebody asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stop:
    """Asked by every search between its steps, from any thread.

    Parameters
    ----------
    seconds
        Time limit from now, infinite for none.
    parent
        Stops this one, too.
    """

    def __init__(self, seconds: float = float("inf"), parent: Stop | None = None) -> None:
        self._end = time.monotonic() + seconds
        self._parent = parent
        self._asked = threading.Event()
        self._running: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def __call__(self) -> bool:
        """Whether to stop."""
        return self._asked.is_set() or self.left <= 0 or bool(self._parent and self._parent())

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
        """While this is open, :meth:`ask` calls `end`, for searches that cannot ask themselves."""
        if self._parent:
            with self._parent.ending(end):
                yield
            return
        with self._lock:
            self._running.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(end)
