"""Machine code made in a second process, so that this one goes on interpreting meanwhile.

Numba keeps the code on disk, from where this process and every later one loads it. The process is
started for the first kernel that is worth it and ends when there has been nothing to do for a
while; it goes on when this process ends, for the sake of the next. Nothing of it is ever reported:
where it cannot start, or fails, kernels are compiled here.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import Empty, Queue
from threading import Lock, Thread
from typing import Any

SWITCH = "DEBUBBLE_BACKGROUND"
"""Environment variable that forbids the second process with ``0``."""

IDLE = 2.0
"""Seconds without a request after which the process ends."""

_lock = Lock()
_asked: set[tuple[object, ...]] = set()
_process: subprocess.Popen[bytes] | None = None
_failed = False


def compile_in_background(module: str, name: str, types: tuple[Any, ...]) -> bool:
    """Ask for the machine code of a kernel, once; returns False where it cannot be had this way.

    `types` are numba's types of its arguments.
    """
    global _failed
    if _failed or not is_allowed():
        return False
    request = (module, name, types)
    with _lock:
        running = _is_running()
        if not running and request in _asked:
            # It has ended without making this.
            _failed = True
        elif request not in _asked:
            _asked.add(request)
            try:
                _send(pickle.dumps(request), running)
            except Exception:  # a system without processes raises anything
                _failed = True
        return not _failed


def is_allowed() -> bool:
    """Return whether a second process may be started here."""
    return os.environ.get(SWITCH) != "0" and is_python()


def is_python() -> bool:
    """Return whether ``sys.executable`` is Python, and not a program with a Python in it."""
    named = "python" in Path(sys.executable or "").name.lower()
    return named and not getattr(sys, "frozen", False)


def _is_running() -> bool:
    """Return whether the process is there; one that has ended is no zombie from here on."""
    return _process is not None and _process.poll() is None


def _send(request: bytes, running: bool) -> None:
    """Write a request to the process, after it is started where there is none."""
    global _process
    if running:
        # It may end at this very moment.
        with suppress(OSError):
            _write(request)
            return
    _process = _start()
    _write(request)


def _write(request: bytes) -> None:
    assert _process is not None
    assert _process.stdin is not None
    _process.stdin.write(request)
    _process.stdin.flush()


def _start() -> subprocess.Popen[bytes]:
    """Start a process that finds the same modules and the same cache."""
    import numba

    # Without -P Python would look for modules in the working directory first.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    cache: str = getattr(numba.config, "CACHE_DIR", "")
    if cache:
        environment["NUMBA_CACHE_DIR"] = cache
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@atexit.register
def _let_go() -> None:
    """Leave the process to itself: it sees that its input ends."""
    if _process is not None and _is_running():
        with suppress(OSError):
            assert _process.stdin is not None
            _process.stdin.close()
        # Else Python warns of a process that is still running.
        _process.returncode = 0


def serve() -> None:
    """Compile what is asked for on standard input, until that ends or nothing comes for a while."""
    requests: Queue[Any] = Queue()
    Thread(target=_read, args=(requests,), daemon=True).start()
    with suppress(Empty):
        while (request := requests.get(timeout=IDLE)) is not None:
            module, name, types = request
            getattr(import_module(module), name).compiled.compile(types)


def _read(requests: Queue[Any]) -> None:
    """Queue all requests, and None after the last."""
    request: Any = ()
    while request is not None:
        try:
            request = pickle.load(sys.stdin.buffer)
        except (EOFError, OSError):
            request = None
        requests.put(request)


if __name__ == "__main__":
    serve()
