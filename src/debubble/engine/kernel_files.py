"""Files of machine code, to which several processes may add at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def add_one_by_one(function: Any) -> None:
    """Make processes add machine code of a compiled function one after the other.

    Numba reads the index of the function's files, adds a file and writes the index. If two
    processes do so at the same time, one entry is lost, or both files get one name, so that a later
    process may load machine code for other types.
    """
    try:
        files = function._cache._cache_file
        folder, save = files._cache_path, files.save
    except AttributeError:  # numba does not publish them
        return

    def save_alone(key: Any, data: Any) -> None:
        with _locked(folder):
            save(key, data)

    files.save = save_alone


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the lock of a folder; no lock where the system or the file system has none."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
