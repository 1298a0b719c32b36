"""A progress bar for commands that take longer than people like to wait without one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 2.0
"""Seconds before the bar appears."""


class Phases:
    """The phases of a command: says which one runs, when it takes long and a terminal shows it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._done = -1
        self._text = ""
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._over = False
        self._began = 0.0
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE, self._appear)
        self._timer.daemon = True

    def __call__(self, text: str) -> None:
        """Begin the next phase."""
        with self._lock:
            self._done += 1
            self._text = text
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, completed=self._done, description=text)

    def start(self) -> None:
        """Begin to wait."""
        self._began = time.monotonic()
        self._timer.start()

    def stop(self) -> None:
        """Remove the bar."""
        self._timer.cancel()
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
            self._task = self._bar.add_task(
                self._text, total=self.total, completed=max(self._done, 0)
            )
            self._bar.tasks[0].start_time = self._began
            self._bar.start()


@contextmanager
def phases(total: int) -> Iterator[Phases]:
    """Phases with a bar on standard error, if that is a terminal and they take over two seconds."""
    found = Phases(total)
    if sys.stderr.isatty():
        found.start()
    try:
        yield found
    finally:
        found.stop()


@contextmanager
def overwritten_line() -> Iterator[Callable[[str], None]]:
    """A line on standard error that is written over, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None  # noqa: ARG005 - nobody looks
        return

    def show(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        show("")
