"""Streams of trace files: plain or compressed, complete or truncated, never all in memory."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from debubble.core.errors import FormatError
from debubble.diagnosis.cancellation import check_cancelled

T = TypeVar("T")

CHUNK = 1 << 20
"""Size of the pieces of a stream, in bytes."""

HEAD = 1 << 16
"""Size of the beginning by which a format is recognized, in bytes."""

SEARCHED = 1 << 28
"""Size of the beginning in which a format is looked for behind other text, in bytes."""

MAX_UNPACKED = 1 << 36
"""Maximum size of one unpacked file, in bytes; the size in a gzip file may be wrong."""

GZIP = b"\x1f\x8b"

CUT = "files whose compressed data ends early (read as far as they go)"
DAMAGED = "files whose compressed data is damaged (read as far as they go)"
UNREADABLE = "files that are no JSON"
TOO_LONG = f"files of more than {MAX_UNPACKED >> 30} GiB unpacked (the rest of them)"

LeftOut = Counter[str]
"""Numbers of unused things, by the reason in words."""


def chunks(path: Path, left_out: LeftOut, size: int = CHUNK) -> Iterator[bytes]:
    """Yield the content of a file, unpacked if it is packed, in pieces of about `size` bytes.

    A damaged file is read up to the damage, and counted in `left_out`. Raise FormatError when it
    cannot be read at all.
    """
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            total = 0
            for piece in _unpacked(file, size, left_out) if packed else _plain(file, size):
                check_cancelled()
                total += len(piece)
                if total > MAX_UNPACKED:
                    left_out[TOO_LONG] += 1
                    return
                yield piece
    except OSError as error:
        raise _unreadable(path, error) from None


def _plain(file: BinaryIO, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        yield piece


def _unpacked(file: BinaryIO, size: int, left_out: LeftOut) -> Iterator[bytes]:
    """Yield pieces of a gzip file, which may have several members."""
    reader = zlib.decompressobj(wbits=31)
    whole = False
    while packed := file.read(size // 8):
        while packed:
            before = reader.copy()
            try:
                piece = reader.decompress(packed, size)
            except zlib.error:
                # Bytes after the last member, often zeros that fill a block, do no harm.
                if not whole or packed.strip(b"\0"):
                    left_out[DAMAGED] += 1
                    yield from _undamaged(before, packed)
                return
            if piece:
                whole = False
                yield piece
            packed = reader.unconsumed_tail
            if reader.eof:
                whole = True
                packed = reader.unused_data
                reader = zlib.decompressobj(wbits=31)
    if not whole:
        left_out[CUT] += 1


def _undamaged(reader: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """Yield the content of packed bytes up to the damage."""
    try:
        for at in range(0, len(packed), 64):
            yield reader.decompress(packed[at : at + 64])
    except zlib.error:
        return


def head(path: Path) -> bytes:
    """Return the beginning of a file, unpacked."""
    try:
        with open(path, "rb", buffering=0) as file:
            begin = file.read(HEAD)
    except OSError as error:
        raise _unreadable(path, error) from None
    return next(chunks(path, LeftOut(), HEAD), b"")[:HEAD] if begin[:2] == GZIP else begin


def found_later(path: Path, marks: Sequence[bytes]) -> bytes:
    """Return the text from the first of some marks on, of up to HEAD bytes; empty for none."""
    longest = max(map(len, marks), default=1)
    rest, searched = b"", 0
    for piece in chunks(path, LeftOut()):
        text = rest + piece
        places = [at for mark in marks if (at := text.find(mark)) >= 0]
        if places:
            return text[min(places) :][:HEAD]
        searched += len(piece)
        if searched > SEARCHED:
            break
        rest = text[-longest:]
    return b""


def whole(path: Path, limit: int, left_out: LeftOut) -> bytes:
    """Return a file's content in one piece; raise FormatError for more than `limit` bytes."""
    found: list[bytes] = []
    size = 0
    for piece in chunks(path, left_out):
        found.append(piece)
        size += len(piece)
        if size > limit:
            raise FormatError(f"{path}: more than {limit:,} bytes, the limit for such a file")
    return b"".join(found)


def _unreadable(path: Path, error: OSError) -> FormatError:
    return FormatError(f"cannot read '{path}': {error.strerror or error}")


def json_object(path: Path, limit: int, left_out: LeftOut) -> dict[str, Any]:
    """Return the object of a small JSON file; count anything else, and return an empty one.

    Raise FormatError for a file of more than `limit` bytes.
    """
    text = whole(path, limit, left_out)
    try:
        data = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # Python's decoder takes NaN, Infinity and control characters, too.
        try:
            data = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            data = None
    if not isinstance(data, dict):
        left_out[UNREADABLE] += 1
        return {}
    return data


def listed(value: Any, type_: type[T]) -> list[T]:
    """Return a list of values of a type; empty for anything else."""
    try:
        return msgspec.convert(value, list[type_])  # type: ignore[valid-type]
    except (msgspec.ValidationError, OverflowError):
        return []


def lines(path: Path, left_out: LeftOut, longest: int = HEAD) -> Iterator[bytes]:
    """Yield a text file in pieces of whole lines; of a line, at least `longest` bytes are kept."""
    rest = b""
    for piece in chunks(path, left_out):
        end = piece.rfind(b"\n") + 1
        if end:
            yield b"".join((rest, memoryview(piece)[:end]))
            rest = b""
        rest = (rest + piece[end:])[: max(longest, len(piece) - end)]
    if rest:
        yield rest
