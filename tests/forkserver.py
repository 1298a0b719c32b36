"""Processes for tests: copies of a clean one that has loaded PyTorch are there at once.

A fork of pytest's own process would copy the locks of its threads. Python has one such server in a
process, which is started with the first of its processes, whoever begins that one.
"""

from __future__ import annotations

import multiprocessing
import pkgutil
from functools import cache
from typing import Any

import debubble.schedules as families

forked: Any = multiprocessing.get_context("forkserver")
"""Begins processes; tests of modules that name it run on one worker, with one server."""

LOADED = [
    "pytest", "debubble.cli.app", "debubble.cli.run", "debubble.torch.run.run",
    "debubble.torch.pytorch.engine", "tests.torch.loop", "tests.pairs",
    *(module.name for module in pkgutil.iter_modules(families.__path__, "debubble.schedules.")),
]  # fmt: skip

forked.set_forkserver_preload(LOADED)


@cache
def serve(*more: str) -> None:
    """Have the server load everything, which takes seconds and is no part of what a fork takes.

    It loads `more` modules when it is not there yet; its processes load them otherwise.
    """
    forked.set_forkserver_preload([*LOADED, *more])
    process = forked.Process(target=int)
    process.start()
    process.join()
