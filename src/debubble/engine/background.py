"""Machine code made in other processes, so that this one goes on interpreting meanwhile.

Numba keeps the code on disk, from where this process and every later one loads it. A process is
started for the first kernels that are worth it, as far as there are processors, and begins with the
kernel that has run most; it ends when there has been nothing to do for a while, and goes on when
this process ends, for the sake of the next. Nothing of it is ever reported: where it cannot start,
or fails, kernels are compiled here.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

SWITCH = "DEBUBBLE_BACKGROUND"
"""Environment variable that forbids other processes with ``0``."""

MOST = max(1, min(3, (os.cpu_count() or 1) - 1))
"""Maximum number of processes: each loads numba, and the sweep takes as long as all other kernels
that a simulation needs."""

_lock = Lock()
_processes: list[subprocess.Popen[bytes]] = []
_asked: dict[tuple[object, ...], subprocess.Popen[bytes]] = {}
_failed = False


def compile_in_background(module: str, name: str, types: tuple[Any, ...], work: int = 0) -> bool:
    """Ask for the machine code of a kernel, once; returns False where it cannot be had this way.

    `types` are numba's types of its arguments, and `work` what it has run: the most is made first.
    """
    global _failed
    if _failed or not is_allowed():
        return False
    request = (module, name, types)
    with _lock:
        if request not in _asked:
            try:
                _asked[request] = _send(pickle.dumps((-work, pickle.dumps(request))))
            except Exception:  # a system without processes raises anything
                _failed = True
        elif _asked[request].poll() is not None:
            # It has ended without making this.
            _failed = True
        return not _failed


def is_allowed() -> bool:
    """Return whether another process may be started here."""
    return os.environ.get(SWITCH) != "0" and is_python()


def is_python() -> bool:
    """Return whether ``sys.executable`` is Python, and not a program with a Python in it."""
    named = "python" in Path(sys.executable or "").name.lower()
    return named and not getattr(sys, "frozen", False)


def _send(request: bytes) -> subprocess.Popen[bytes]:
    """Write a request to the process with the fewest, or a new one; return the process."""
    running = [process for process in _processes if process.poll() is None]
    asked = list(_asked.values())
    least = min(running, key=asked.count, default=None)
    if least is not None and (least not in asked or len(running) >= MOST):
        # It may end at this very moment.
        with suppress(OSError):
            _write(least, request)
            return least
    process = _start()
    _processes.append(process)
    _write(process, request)
    return process


def _write(process: subprocess.Popen[bytes], request: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(request)
    process.stdin.flush()


def _start() -> subprocess.Popen[bytes]:
    """Start a process that finds the same modules and the same cache."""
    import numba

    # Without -P Python would look for modules in the working directory first.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    cache: str = getattr(numba.config, "CACHE_DIR", "")
    if cache:
        environment["NUMBA_CACHE_DIR"] = cache
    # A program of its own: nothing here imports it.
    program = f"{__package__}.compiler_process"
    return subprocess.Popen(
        [sys.executable, "-P", "-m", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@atexit.register
def _let_go() -> None:
    """Leave the processes to themselves: they see that their input ends."""
    for process in _processes:
        if process.poll() is None:
            with suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
            # Else Python warns of a process that is still running.
            process.returncode = 0
