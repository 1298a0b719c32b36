"""Files and folders of a run in any format: recognize it and read them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from debubble.core.errors import FormatError
from debubble.core.units import counted
from debubble.diagnosis.cancellation import check_cancelled
from debubble.diagnosis.observed import Observed
from debubble.diagnosis.readers import (
    debubble_trace,
    deepspeed,
    kineto,
    megatron_app,
    megatron_timers,
    ndtimeline,
    nsys,
    opentelemetry,
    primus,
    table,
    tensorboard,
    victarry,
)
from debubble.diagnosis.readers.refusals import TABLE, reason_unknown, reason_unreadable
from debubble.diagnosis.readers.stream import HEAD, LeftOut, found_later, head
from debubble.interchange.text import plain, shown

MAX_FILES = 20_000
"""Maximum number of files in a folder and its subfolders."""

MAX_DEPTH = 6
"""Maximum depth of subfolders."""

NAMED = 3
"""Maximum number of reasons in an error message."""

EMPTY = "empty files"
NO_ACCESS = "files that cannot be read"

_NUMBERS = re.compile(r"(\d{1,18})", re.ASCII)


class Reader(Protocol):
    """Interface of a module that reads a format."""

    @property
    def NAME(self) -> str:
        """Name of the format."""

    @property
    def MARKS(self) -> Sequence[bytes]:
        """Texts that show the format where they stand behind other text."""

    def recognizes(self, head: bytes) -> bool:
        """Return True if a file has this format, judged by its first unpacked bytes."""

    def read(self, where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
        """Read the files of one run; `where` is their folder, for messages."""


READERS: tuple[Reader, ...] = (
    debubble_trace,
    kineto,
    ndtimeline,
    primus,
    victarry,
    megatron_app,
    opentelemetry,
    nsys,
    table,
    megatron_timers,
    tensorboard,
    deepspeed,
)
"""Readers by priority. In a folder with several formats, only files of the first reader that
finds a run are read."""


def read(path: str | os.PathLike[str], *, format: str | None = None) -> Observed:
    """Read the trace of a run: of a file, or of a folder with the files of all ranks.

    `format` is the name of one of :data:`READERS`, or None to detect it. In a folder, the files
    that look like the format are read, or all files if none does. Raise FormatError with the
    reasons when nothing can be read.
    """
    where = str(path)
    known = {reader.NAME: reader for reader in READERS}
    if format is not None and format not in known:
        raise FormatError(f"there is no format {shown(format)}; known: {', '.join(known)}")
    left_out: LeftOut = Counter()
    files = _files(Path(path), where, left_out)
    found: dict[str, list[Path]] = {}
    for file in files:
        check_cancelled()
        if name := _format(file, left_out):
            found.setdefault(name, []).append(file)
    if format is not None and files and format not in found:
        found, left_out = {format: files}, Counter()
    if not found:
        raise FormatError(_nothing(where, files, left_out, list(known)))
    refusals = []
    for name in filter(found.__contains__, known if format is None else [format]):
        counts = left_out.copy()
        for other, some in found.items():
            if other != name:
                counts[f"files of the format {other} beside those of {name}"] += len(some)
        try:
            return known[name].read(where, found[name], counts)
        except FormatError as error:
            refusals.append(_with_reasons(str(error), counts))
    raise FormatError(refusals[0])


def is_trace(path: Path) -> bool:
    """Return whether a file is of a format of traces, judged by its content."""
    return bool(_format(path, Counter()))


def _with_reasons(text: str, left_out: LeftOut) -> str:
    """Return an error message with the reasons of unused things that it does not contain yet."""
    more = [f"{count:,} × {reason}" for reason, count in left_out.items() if reason not in text]
    if not more:
        return text
    rest = f" and {len(more) - NAMED} more" if len(more) > NAMED else ""
    return f"{text}; not used: {', '.join(more[:NAMED])}{rest}"


def _format(path: Path, left_out: LeftOut) -> str:
    """Return the name of a file's format; count an unknown format, and return an empty name."""
    try:
        begin = head(path)
    except FormatError:
        left_out[NO_ACCESS] += 1
        return ""
    if not begin:
        left_out[EMPTY] += 1
        return ""
    if reason := reason_unreadable(path, begin):
        left_out[reason] += 1
        return ""
    name = _recognized(begin)
    if not name and b"\0" not in begin and len(begin) == HEAD:
        marks = [mark for reader in READERS for mark in reader.MARKS]
        later = found_later(path, marks)
        name = _recognized(begin + later) if later else ""
    if not name:
        left_out[reason_unknown(path, begin)] += 1
    return name


def _recognized(begin: bytes) -> str:
    """Return the name of the format that a text shows, or an empty name."""
    return next((reader.NAME for reader in READERS if reader.recognizes(begin)), "")


def _files(path: Path, where: str, left_out: LeftOut) -> list[Path]:
    """Return the files of a file or folder, sorted by the numbers in their names."""
    try:
        if path.is_file():
            return [path]
        if not path.exists():
            raise FormatError(f"there is no file or folder '{where}'")
        # A trace may have thousands of small files, and names are faster as text than as paths.
        found: list[str] = []
        root = len(path.parts)
        if not path.is_dir():
            raise FormatError(f"'{where}' is neither a file nor a folder; give one of these")
        for folder, folders, names in os.walk(path):
            depth = len(Path(folder).parts) - root
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if depth >= MAX_DEPTH:
                folders.clear()
            found += [os.path.join(folder, name) for name in names if not name.startswith(".")]
            if len(found) > MAX_FILES:
                raise FormatError(
                    f"{where}: more than {MAX_FILES:,} files; give the folder of one run's traces"
                )
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"cannot read '{where}': {getattr(error, 'strerror', error)}") from None
    regular = [file for file in found if os.path.isfile(file)]
    if len(regular) < len(found):
        left_out[NO_ACCESS] += len(found) - len(regular)
    return [Path(file) for file in sorted(regular, key=_natural)]


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a key that sorts rank2 before rank10."""
    parts = _NUMBERS.split(path)
    return [(-1, part) if place % 2 == 0 else (int(part), "") for place, part in enumerate(parts)]


def _nothing(where: str, files: Sequence[Path], left_out: LeftOut, known: Sequence[str]) -> str:
    if not files and not left_out:
        return f"{where}: an empty folder; give the folder with the traces of a run"
    reasons = ", ".join(f"{count:,} × {reason}" for reason, count in left_out.items())
    first = f"; the first is {plain(files[0].name)}" if files else ""
    number = counted(left_out.total(), "file")
    return (
        f"{where}: no trace in {number} ({reasons}{first}); {TABLE}; --format names the format of "
        f"a file that is not recognized: {', '.join(known)}"
    )
