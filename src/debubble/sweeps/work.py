"""The computation of points, in this process or another one."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from debubble.core.errors import DebubbleError
from debubble.sweeps.commands import COMMANDS, Command, Row
from debubble.sweeps.points import Point
from debubble.sweeps.store import OWN, Result

WATCH_SECONDS = 0.5
"""How often a worker looks whether the process that started it is there."""

LONGEST_ERROR = 2000
"""Characters of an error message that are kept."""


def start_worker(parent: int) -> None:
    """Leave Ctrl-C to the process that started this one, and end with it, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def compute(command: str, files: Mapping[str, Any], points: Sequence[Point]) -> list[Result]:
    """Results of a batch of points; `files` is the content of files that options name."""
    with warnings.catch_warnings():
        # Thousands of the same; what matters is in the results.
        warnings.simplefilter("ignore")
        return [_compute(COMMANDS[command], files, point) for point in points]


def _compute(command: Command, files: Mapping[str, Any], point: Point) -> Result:
    began = time.perf_counter()
    rows: list[Row]
    try:
        rows = [_plain(row) for row in command.run(_filled(point.options, files))]
    except DebubbleError as error:
        rows = [{"error": str(error)[:LONGEST_ERROR]}]
    except MemoryError:
        rows = [{"error": "not enough memory for this size"}]
    except Exception as error:
        # A bug at one point is no reason to lose the others.
        rows = [{"error": f"internal error: {type(error).__name__}: {error}"[:LONGEST_ERROR]}]
    return Result(*point, rows, time.perf_counter() - began)


def _filled(options: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the content of files in place of their names."""
    if not files:
        return dict(options)

    def value(found: Any) -> Any:
        if isinstance(found, list):
            return [value(item) for item in found]
        if not isinstance(found, str):
            return found
        path, colon, function = found.rpartition(":")
        if colon and path in files:
            return f"{files[path]}:{function}"
        return files.get(found, found)

    return {name: value(found) for name, found in options.items()}


def _plain(row: Row) -> Row:
    """A row without numpy's numbers, whose names are no columns of the file itself."""
    assert not (set(row) - {"error"}).intersection(OWN), f"results cannot be called {OWN}"
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in row.items()
    }
