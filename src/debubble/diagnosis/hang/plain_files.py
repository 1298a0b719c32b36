"""Files of a folder, and the plain data in them: JSON or pickles, of which nothing is executed."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from debubble.core.errors import FormatError
from debubble.diagnosis.readers.stream import GZIP
from debubble.interchange.text import plain

PACKAGES = frozenset(["build_intlist", "build_doublelist", "build_boollist", "build_tensorlist"])
"""Functions of ``torch.jit._pickle`` that return the list they are given."""


def walk_files(path: str) -> Iterator[Path]:
    """Yield a file, or the files of a folder and its subfolders."""
    if os.path.isfile(path):
        yield Path(path)
    elif not os.path.isdir(path):
        raise FormatError(f"there is no file or folder '{path}'")
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, texts and numbers, and refuses everything that runs code."""

    where = ""

    def find_class(self, module: str, name: str) -> Any:
        """Return a function that is harmless; refuse any other by its name."""
        if module == "torch.jit._pickle" and name in PACKAGES:
            return list
        raise FormatError(
            f"{self.where}: asks for {plain(f'{module}.{name}')}, and a dump has plain data alone; "
            "it is not read"
        )

    def persistent_load(self, pid: Any) -> Any:
        """Refuse objects from elsewhere."""
        raise FormatError(f"{self.where}: refers to {plain(str(pid))}; a dump has plain data alone")


def plain_data(data: bytes, where: str) -> Any:
    """Return the data of a file, a pickle or JSON; `where` is its name, for messages."""
    if data[:1] == b"\x80":
        reader = _PlainUnpickler(io.BytesIO(data))
        reader.where = where
        try:
            return reader.load()
        except FormatError:
            raise
        except Exception as error:
            raise FormatError(f"{where}: a damaged pickle: {plain(str(error))}") from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: damaged JSON: {plain(str(error))}") from None


def first_bytes(file: Path, most: int) -> bytes:
    """Return the unpacked beginning of a file."""
    try:
        with open(file, "rb") as stream:
            data = stream.read(most)
    except OSError as error:
        raise FormatError(f"cannot read '{file}': {error.strerror or error}") from None
    if data[:2] != GZIP:
        return data
    try:
        return zlib.decompressobj(31).decompress(data, most)
    except zlib.error as error:
        raise FormatError(f"{file}: damaged gzip: {error}") from None


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the garbage collector from walking millions of objects that all stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
