"""Files and folders of a run, whatever wrote them: recognize the format and read it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from debubble.core.errors import FormatError
from debubble.core.units import counted
from debubble.diagnosis.observed import Observed
from debubble.diagnosis.readers import (
    kineto,
    megatron_timers,
    ndtimeline,
    nsys,
    own,
    primus,
    table,
    victarry,
)
from debubble.diagnosis.readers.pool import Workers, workers_for
from debubble.diagnosis.readers.stream import LeftOut, head, keep_freed_memory
from debubble.interchange.text import plain, shown

MAX_FILES = 20_000
"""Files of a folder and its folders that are looked at."""

MAX_DEPTH = 6
"""Folders in folders that are looked into."""

GROUP = 64
"""Files whose formats are told at a time."""

NAMED = 3
"""Reasons that a refusal names."""

UNKNOWN = "files of no format that is known here"
EMPTY = "empty files"
NO_ACCESS = "files that cannot be read"
REPORTS = (".nsys-rep", ".qdrep")
NOT_EXPORTED = "reports of Nsight Systems; 'nsys export --type sqlite' makes readable files of them"


_NUMBERS = re.compile(r"(\d{1,18})", re.ASCII)


class Reader(Protocol):
    """A module that reads a format."""

    @property
    def NAME(self) -> str:
        """What the format is called."""

    def recognizes(self, head: bytes) -> bool:
        """Whether a file is of this format, by its first bytes, unpacked."""

    def read(
        self, where: str, files: Sequence[Path], left_out: LeftOut, workers: Workers
    ) -> Observed:
        """What the files of one run tell; `where` is their folder, for messages."""


READERS: tuple[Reader, ...] = (
    own,
    kineto,
    ndtimeline,
    primus,
    victarry,
    nsys,
    table,
    megatron_timers,
)
"""Formats. Of a folder with files of several, those of the first here that tell of a run are
read."""


def read(path: str | os.PathLike[str], *, format: str | None = None) -> Observed:
    """Read the trace of a run.

    Parameters
    ----------
    path
        A file, or a folder with the files of all ranks, also in folders of it.
    format
        Name of the format, one of those in :data:`READERS`; None to tell it by the files. Of a
        folder, the files that look like it are read, and all where none does.

    Raises
    ------
    FormatError
        When nothing there can be read; the message says what was found.
    """
    where = str(path)
    known = {reader.NAME: reader for reader in READERS}
    if format is not None and format not in known:
        raise FormatError(f"there is no format {shown(format)}; known: {', '.join(known)}")
    keep_freed_memory()
    left_out: LeftOut = Counter()
    files = _files(Path(path), where, left_out)
    with workers_for(files) as workers:
        found: dict[str, list[Path]] = {}
        groups = [files[at : at + GROUP] for at in range(0, len(files), GROUP)]
        for _, group in workers.each(_by_format, groups, left_out):
            for name, some in group.items():
                found.setdefault(name, []).extend(some)
        if format is not None and files and format not in found:
            found, left_out = {format: files}, Counter()
        if not found:
            raise FormatError(_nothing(where, files, left_out, list(known)))
        refusals = []
        for name in filter(found.__contains__, known if format is None else [format]):
            counted = left_out.copy()
            for other, some in found.items():
                if other != name:
                    counted[f"files of the format {other} beside those of {name}"] += len(some)
            try:
                return known[name].read(where, found[name], counted, workers)
            except FormatError as error:
                refusals.append(_with_reasons(str(error), counted))
        raise FormatError(refusals[0])


def _with_reasons(text: str, left_out: LeftOut) -> str:
    """A refusal with what could not be used, as far as it does not say that."""
    more = [f"{count:,} × {reason}" for reason, count in left_out.items() if reason not in text]
    if not more:
        return text
    rest = f" and {len(more) - NAMED} more" if len(more) > NAMED else ""
    return f"{text}; not used: {', '.join(more[:NAMED])}{rest}"


def _by_format(paths: Sequence[Path], left_out: LeftOut) -> dict[str, list[Path]]:
    """Files by the names of their formats, without those of none."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        if name := _format(path, left_out):
            found.setdefault(name, []).append(path)
    return found


def _format(path: Path, left_out: LeftOut) -> str:
    """The name of a file's format; empty, and counted, where it is none."""
    try:
        begin = head(path)
    except FormatError:
        left_out[NO_ACCESS] += 1
        return ""
    if not begin:
        left_out[EMPTY] += 1
        return ""
    if path.suffix in REPORTS:
        left_out[NOT_EXPORTED] += 1
        return ""
    for reader in READERS:
        if reader.recognizes(begin):
            return reader.NAME
    left_out[UNKNOWN] += 1
    return ""


def _files(path: Path, where: str, left_out: LeftOut) -> list[Path]:
    """The file, or those of the folder and its folders, in order of the numbers in their names."""
    try:
        if path.is_file():
            return [path]
        if not path.exists():
            raise FormatError(f"there is no file or folder '{where}'")
        # Of thousands of small files a trace may consist; as text their names take less time.
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
    """A key that sorts rank2 before rank10."""
    parts = _NUMBERS.split(path)
    return [(-1, part) if place % 2 == 0 else (int(part), "") for place, part in enumerate(parts)]


def _nothing(where: str, files: Sequence[Path], left_out: LeftOut, known: Sequence[str]) -> str:
    if not files and not left_out:
        return f"{where}: an empty folder; give the folder with the traces of a run"
    reasons = ", ".join(f"{count:,} × {reason}" for reason, count in left_out.items())
    first = f"; the first is {plain(files[0].name)}" if files else ""
    number = counted(left_out.total(), "file")
    return f"{where}: no trace in {number} ({reasons}{first}); known formats: {', '.join(known)}"
