"""Processes for tests that kill many: copies of one that has loaded everything are there at once.

Python has one such server in a process, so it loads what all tests need of it.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

forked: Any = multiprocessing.get_context("forkserver")
"""Begins processes; tests of modules that name it run on one worker, with one server."""

forked.set_forkserver_preload(["tests.preloaded"])


def serve() -> None:
    """Have the server load everything, which takes seconds and is no part of what a fork takes."""
    process = forked.Process(target=int)
    process.start()
    process.join()
