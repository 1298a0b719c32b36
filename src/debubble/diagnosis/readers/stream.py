"""Bytes of trace files as a stream: plain or compressed, whole or cut off, never all in memory."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from debubble.core.errors import FormatError
from debubble.diagnosis.cancellation import check_cancelled

CHUNK = 1 << 20
"""Bytes that are worked on at a time."""

HEAD = 1 << 16
"""Bytes by which a file's format is recognized."""

MAX_UNPACKED = 1 << 36
"""Bytes of one unpacked file that are read; a gzip file may claim to be small and is not."""

GZIP = b"\x1f\x8b"

CUT = "files whose compressed data ends early (read as far as they go)"
DAMAGED = "files whose compressed data is damaged (read as far as they go)"
UNREADABLE = "files that are no JSON"
TOO_LONG = f"files of more than {MAX_UNPACKED >> 30} GiB unpacked (the rest of them)"

LARGE = 31 << 20
"""Bytes of a piece of memory from which on the C library of Linux gives it back at once."""

LeftOut = Counter[str]
"""How many things were not used, by the reason in words."""


def chunks(path: Path, left_out: LeftOut, size: int = CHUNK) -> Iterator[bytes]:
    """The content of a file, unpacked where it is packed, in pieces of about `size` bytes.

    A file that cannot be unpacked to its end is read as far as that goes, which `left_out` counts.

    Raises
    ------
    FormatError
        When it cannot be read at all.
    """
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == GZIP
            file.seek(0)
            total = 0
            large = os.fstat(file.fileno()).st_size > CHUNK
            unpack = _unpacked_ahead if large else _unpacked
            for piece in unpack(file, size, left_out) if packed else _plain(file, size):
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
    """Pieces of a gzip file, which may have several members."""
    reader = zlib.decompressobj(wbits=31)
    whole = False
    while packed := file.read(size // 8):
        while packed:
            before = reader.copy()
            try:
                piece = reader.decompress(packed, size)
            except zlib.error:
                # Bytes behind the last member, often zeros that fill a block, do no harm.
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


def _unpacked_ahead(file: BinaryIO, size: int, left_out: LeftOut) -> Iterator[bytes]:
    """The same; while a piece is worked on, another thread unpacks the next."""
    counted = LeftOut()
    pieces = _unpacked(file, size, counted)
    with ThreadPoolExecutor(1) as aside:
        try:
            # Once the main thread is over, or a limit is reached, no other one can start.
            coming = aside.submit(next, pieces, None)
        except RuntimeError:
            yield from _unpacked(file, size, left_out)
            return
        while (piece := coming.result()) is not None:
            left_out.update(counted)
            counted.clear()
            coming = aside.submit(next, pieces, None)
            yield piece
    left_out.update(counted)


def _undamaged(reader: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """What comes of packed bytes before those that are damaged."""
    try:
        for at in range(0, len(packed), 64):
            yield reader.decompress(packed[at : at + 64])
    except zlib.error:
        return


def keep_freed_memory() -> None:
    """Have the C library keep what is freed, as much as a block of a trace takes to be read.

    The library of Linux learns by what is freed; at first it gives back all of a block's memory,
    and asks for as much for the next, which takes up to half of the time of reading. Nothing is
    written to the piece here, so that it takes none.
    """
    bytes(LARGE)


def head(path: Path) -> bytes:
    """The beginning of a file, unpacked."""
    try:
        with open(path, "rb", buffering=0) as file:
            begin = file.read(HEAD)
    except OSError as error:
        raise _unreadable(path, error) from None
    return next(chunks(path, LeftOut(), HEAD), b"")[:HEAD] if begin[:2] == GZIP else begin


def whole(path: Path, limit: int, left_out: LeftOut) -> bytes:
    """The content of a file whose format is read in one piece.

    Raises
    ------
    FormatError
        When it has more than `limit` bytes.
    """
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


def as_object(text: bytes, left_out: LeftOut) -> dict[str, Any]:
    """The object of a small JSON file; empty where it is none, which is counted."""
    try:
        data = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        left_out[UNREADABLE] += 1
        return {}
    return data


def blocks(
    path: Path, left_out: LeftOut, between: re.Pattern[bytes], size: int = CHUNK
) -> Iterator[bytes]:
    """A file in pieces of about `size` bytes that end where one thing ends and the next begins.

    Parameters
    ----------
    between
        What stands between two things and is left out; it begins with a closing brace.
    """
    rest = b""
    for piece in chunks(path, left_out, size):
        rest += piece
        at = rest.rfind(b"}")
        while at >= 0:
            match = between.match(rest, at)
            if match is not None:
                yield rest[:at]
                rest = rest[match.end() :]
                break
            at = rest.rfind(b"}", 0, at)
    yield rest


def lines(path: Path, left_out: LeftOut, longest: int = HEAD) -> Iterator[bytes]:
    """A text file in pieces of whole lines; of a line, at least `longest` bytes are kept."""
    rest = b""
    for piece in chunks(path, left_out):
        end = piece.rfind(b"\n") + 1
        if end:
            yield b"".join((rest, memoryview(piece)[:end]))
            rest = b""
        rest = (rest + piece[end:])[: max(longest, len(piece) - end)]
    if rest:
        yield rest
