"""Process that compiles kernels for others, see :mod:`debubble.engine.background`."""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from importlib import import_module
from itertools import count
from queue import Empty, PriorityQueue
from threading import Thread
from typing import Any

from debubble.engine.jit import load_compiler

IDLE = 2.0
"""Seconds without a request after which a process ends."""


def serve() -> None:
    """Compile what is asked for on standard input, until that ends or nothing comes for a while."""
    requests: PriorityQueue[Any] = PriorityQueue()
    Thread(target=_read, args=(requests,), daemon=True).start()
    # What kernels need is loaded while more requests arrive.
    load_compiler()
    with suppress(Empty):
        while request := requests.get(timeout=IDLE)[-1]:
            module, name, types = pickle.loads(request)
            getattr(import_module(module), name).compiled.compile(types)


def _read(requests: PriorityQueue[Any]) -> None:
    """Queue all requests by their work, and an empty one after the last.

    They stay packed: numba's types would be imported in two threads at once.
    """
    for number in count():
        try:
            less, request = pickle.load(sys.stdin.buffer)
        except (EOFError, OSError):
            less, request = 1, b""
        requests.put((less, number, request))
        if not request:
            return


if __name__ == "__main__":
    serve()
