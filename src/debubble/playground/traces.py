"""Traces of a run that the page sends: their files in a temporary folder, and their diagnosis."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field

from debubble.core.errors import DebubbleError
from debubble.diagnosis.cancellation import cancelled_by
from debubble.playground import limits
from debubble.playground.limits import RefusedError
from debubble.playground.searches import Search
from debubble.playground.state import Strict, read

HEAD = 4
"""Bytes of the length of the list of files, which precedes the files."""

_PART = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f]{1,120}")
"""Part of a file's path: no folder above, no sign with a meaning in file systems."""


class SentFile(Strict):
    """File in a request: its path from the opened folder, and its number of bytes."""

    path: Annotated[str, Field(min_length=1, max_length=600)]
    size: Annotated[int, Field(ge=0, le=limits.MAX_TRACE)]


class SentFiles(Strict):
    """All files in a request."""

    parts: Annotated[list[SentFile], Field(min_length=1, max_length=limits.MAX_TRACE_FILES)]


def sent_files(body: bytes) -> list[tuple[tuple[str, ...], bytes]]:
    """Return path and content of every file in a request; no path leads out of its folder."""
    at = HEAD + int.from_bytes(body[:HEAD], "little")
    if not HEAD < at <= min(len(body), limits.MAX_BODY):
        raise RefusedError("these are no files as this page sends them")
    listed: SentFiles = read(SentFiles, body[HEAD:at])
    if sum(part.size for part in listed.parts) != len(body) - at:
        raise RefusedError("the files did not arrive as a whole; send them again")
    found: dict[tuple[str, ...], bytes] = {}
    for part in listed.parts:
        names = tuple(part.path.split("/"))
        if not all(_PART.fullmatch(name) for name in names) or len(names) > limits.MAX_FOLDERS:
            raise RefusedError(
                f"'{part.path[:80]}' is no path of a file in at most {limits.MAX_FOLDERS - 1} "
                "folders; rename it, or open a folder further inside"
            )
        if names in found:
            raise RefusedError(f"'{part.path[:80]}' is there twice; open one folder")
        found[names] = body[at : at + part.size]
        at += part.size
    return list(found.items())


def trace(body: bytes, running: Search) -> dict[str, Any]:
    """Return the diagnosis of the traces in a request, see :func:`trace_view`."""
    parts = sent_files(body)
    with TemporaryDirectory(prefix="debubble-trace-") as name:
        folder = Path(name)
        try:
            for names, content in parts:
                path = folder.joinpath(*names)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        except OSError as error:
            raise RefusedError(f"the files cannot be kept: {error.strerror or error}") from None
        tops = {names[0] for names, _ in parts}
        opened = tops.pop() if len(tops) == 1 else None
        root = folder / opened if opened else folder
        try:
            with cancelled_by(partial(_check_wanted, running)):
                files = [folder.joinpath(*names) for names, _ in parts]
                return _view(root, files, running, opened)
        except DebubbleError as error:
            # The server's folders are not for clients to see.
            text = str(error).replace(f"{folder}/", "").replace(str(folder), "these files")
            raise RefusedError(text) from None


def _check_wanted(running: Search) -> None:
    """Raise when a diagnosis was cancelled or takes too long."""
    if running.unwanted:
        raise RefusedError("cancelled; open the traces again to see them")
    if running.seconds > limits.TRACE_SECONDS:
        raise RefusedError(
            f"not done within {limits.TRACE_SECONDS:g} s; open fewer steps, or use 'debubble "
            "trace --html'"
        )


def _view(root: Path, files: list[Path], running: Search, opened: str | None) -> dict[str, Any]:
    from debubble.diagnosis.costs_only import has_only_costs
    from debubble.diagnosis.diagnose import diagnose
    from debubble.diagnosis.next_command import RUN
    from debubble.diagnosis.readers.folder import read as read_folder
    from debubble.view.trace_view import trace_view

    running.progress = {"doing": "unpacking"}
    _check_unpacked(files)
    running.progress = {"doing": "reading"}
    observed = read_folder(root)
    if has_only_costs(observed):
        raise RefusedError(
            f"{observed.format} has sums of times, which say nothing of causes; 'debubble trace' "
            "makes costs of them"
        )
    size = len(observed.actions)
    if size > limits.MAX_TRACED or observed.ranks > limits.MOST["ranks"]:
        raise RefusedError(
            f"{size:,} actions on {observed.ranks:,} ranks; the limits here are "
            f"{limits.MAX_TRACED:,} and {limits.MOST['ranks']}; open fewer steps, or use 'debubble "
            "trace --html'"
        )
    running.progress = {"doing": f"replaying {size:,} actions"}
    return trace_view(diagnose(observed), path=opened or RUN)


def _check_unpacked(files: list[Path]) -> None:
    """Refuse packed files that are far larger unpacked, before they are read."""
    from debubble.diagnosis.readers.stream import chunks

    total = 0
    for file in files:
        for piece in chunks(file, Counter()):
            total += len(piece)
            if total > limits.MAX_TRACE_UNPACKED:
                raise RefusedError(
                    f"the files have more than {limits.MAX_TRACE_UNPACKED >> 20} MiB unpacked; "
                    "open fewer steps or ranks, or use 'debubble trace --html'"
                )
