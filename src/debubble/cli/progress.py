"""Progress of commands that take longer than people like to wait without any."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from debubble.core.signals import on_signal

PATIENCE = 2.0
"""Seconds before the bar appears."""


class Phases:
    """A bar with the phase that a command is in, shown when the command takes long."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = -1
        self.text = ""
        self._bar: Any = None
        self._over = False
        self._began = time.monotonic()
        # A timer shows the bar in a thread of its own.
        self._lock = threading.Lock()
        self.timer = threading.Timer(PATIENCE, self._appear)
        self.timer.daemon = True

    def __call__(self, text: str) -> None:
        """Begin the next phase."""
        with self._lock:
            self.done += 1
            self.text = text
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self.done, description=text)

    def stop(self) -> None:
        """Remove the bar, or keep it from appearing."""
        self.timer.cancel()
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar.stop()

    def _appear(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._over:
                return
            self._bar = Progress(
                SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(20),
                TimeElapsedColumn(), console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.add_task(self.text, total=self.total, completed=max(self.done, 0))
            self._bar.tasks[0].start_time = self._began
            self._bar.start()


@contextmanager
def phases(total: int) -> Iterator[Phases]:
    """Phases with a bar on standard error, if that is a terminal and they take over two seconds."""
    found = Phases(total)
    if sys.stderr.isatty():
        found.timer.start()
    try:
        yield found
    finally:
        found.stop()


EVERY = 10.0
"""Seconds between lines where they are not written over."""


@contextmanager
def overwritten_line(*, every: float | None = None) -> Iterator[Callable[[str], None]]:
    """A line on standard error that is written over, if that is a terminal.

    Elsewhere, as in a pipe or a log, nothing; or, if `every` is given, a new line whenever so many
    seconds have passed.
    """
    if not sys.stderr.isatty():
        last = time.monotonic()

        def add(text: str) -> None:
            nonlocal last
            now = time.monotonic()
            if every is not None and now >= last + every:
                last = now
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()

        yield add
        return

    def show(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        show("")


def stopped_kindly() -> AbstractContextManager[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that the best so far is shown."""

    def stop(number: int, frame: Any) -> None:  # noqa: ARG001 - as signals call it
        raise KeyboardInterrupt

    return on_signal(signal.SIGTERM, stop)
