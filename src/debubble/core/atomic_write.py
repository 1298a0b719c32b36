"""Atomic writes: a file is there as a whole or not at all, however the program ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when all is written, and only then.

    Devices and pipes are written to as they are, and so is a file in a folder where nothing can be
    made. A link goes on to lead where it leads. After an OSError `path` is as it was before.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        with open(target, "wb") as file:
            yield file
        return
    target = Path(os.path.realpath(target))
    if target.exists():
        # What its owner has protected stays, though its folder would let it be replaced.
        open(target, "r+b").close()
    part = target.with_name(f".{target.name[:40]}.{os.urandom(4).hex()}.part")
    try:
        file = open(part, "xb")  # noqa: SIM115 - closed before it is renamed
    except PermissionError:
        if not target.exists():
            raise
        with open(target, "wb") as file:
            yield file
        return
    try:
        with file:
            yield file
        if target.exists():
            os.chmod(part, target.stat().st_mode & 0o7777)
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file as a whole, see :func:`atomic_file`."""
    with atomic_file(path) as file:
        file.write(content)
