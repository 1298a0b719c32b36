"""Events of a Trace Event JSON file as a stream: most are skipped by their bytes, few are decoded.

Between two events of such a file stand a closing and an opening brace and a quote; in a string
the quote would be escaped. So a file is cut into events without reading JSON, and what a reader
has no use for is never decoded. What surrounds the list of events is kept as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from debubble.diagnosis.readers.stream import CUT, DAMAGED, LeftOut, chunks

LONGEST = 1 << 24
"""Bytes of an event from which on it is skipped."""

KEPT = 1 << 20
"""Bytes before the first event, and of the file's end, that are kept."""

WINDOW = 1 << 14
"""Bytes at a text's end in which the last event is looked for first."""

FINITE = 1e21
"""Least number that is no time."""

TOO_LONG = f"events of more than {LONGEST >> 20} MiB"
ENDS_EARLY = "files that end within an event (read as far as they go)"
NO_JSON = "events that are no JSON"

_BETWEEN = re.compile(rb'\}\s*,\s*\{\s*(?=")')
_BEGIN = re.compile(rb'(?:\A\s*|"traceEvents"\s*:\s*)\[\s*(?:\{\s*(?=")|\])')
_DECODER = json.JSONDecoder(strict=False)


@dataclass(eq=False)
class Scan:
    """The events of one file.

    Parameters
    ----------
    path
        The file.
    left_out
        Where to count what cannot be used.

    Attributes
    ----------
    head, tail
        What stands before the events, and the end of the file; complete when all are read.
    size
        Bytes that were read, unpacked.
    """

    path: Path
    left_out: LeftOut
    head: bytes = b""
    tail: bytes = b""
    size: int = field(default=0)

    def events(self) -> Iterator[list[bytes]]:
        """Events as lists of texts, each without its outer braces."""
        for block in self.blocks():
            yield events_of(block)

    def blocks(self) -> Iterator[bytes]:
        """Texts of whole events each, without the outer braces of the first and the last."""
        rest = b""
        begun = False
        torn = self.left_out[CUT] + self.left_out[DAMAGED]
        for chunk in chunks(self.path, self.left_out):
            self.size += len(chunk)
            self.tail = chunk[-KEPT:] if len(chunk) >= KEPT else (self.tail + chunk)[-KEPT:]
            rest += chunk
            if not begun:
                begin = _BEGIN.search(rest)
                if begin is None and len(rest) < KEPT:
                    continue
                begun = True
                self.head = rest[: begin.start() if begin else KEPT]
                rest = rest[begin.end() if begin else KEPT :]
            last = _last(rest)
            if last is not None:
                yield rest[: last.start()]
                rest = rest[last.end() :]
            if len(rest) > LONGEST:
                self.left_out[TOO_LONG] += 1
                rest = b""
        complete = self.tail.rstrip().removesuffix(b",").endswith((b"}", b"]"))
        if not complete and torn == self.left_out[CUT] + self.left_out[DAMAGED]:
            self.left_out[ENDS_EARLY] += 1
        if begun and rest:
            yield rest
        elif not begun:
            self.head = rest[:KEPT]

    def about(self, key: str) -> Any:
        """The value of a key beside the list of events; None where there is none."""
        pattern = re.compile(rb'"' + re.escape(key.encode()) + rb'"\s*:\s*')
        for text in (self.head, self.tail):
            for match in pattern.finditer(text):
                try:
                    value, _ = _DECODER.raw_decode(text[match.end() :].decode("utf-8", "replace"))
                except (ValueError, RecursionError):
                    continue
                return value
        return None


def decode_all(texts: Sequence[bytes], left_out: LeftOut) -> list[dict[str, Any]]:
    """The events of texts, all at once where all of them are JSON."""
    joined = b"},{".join(texts).decode("utf-8", "replace")
    try:
        values: list[Any] = _DECODER.decode(f"[{{{joined}}}]")
    except (ValueError, RecursionError):
        values = []
    if len(values) == len(texts) and all(isinstance(value, dict) for value in values):
        return values
    return [_decoded(text, left_out) for text in texts]


def _decoded(text: bytes, left_out: LeftOut) -> dict[str, Any]:
    """The event of a text; empty where it is no JSON, which is counted."""
    try:
        value, _ = _DECODER.raw_decode("{" + text.decode("utf-8", "replace") + "}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        left_out[NO_JSON] += 1
        return {}
    return value


def events_of(block: bytes) -> list[bytes]:
    """The events of a text of whole ones."""
    return _BETWEEN.split(block)


def _last(text: bytes) -> re.Match[bytes] | None:
    """The last place between two events."""
    window = WINDOW
    while True:
        begin = max(len(text) - window, 0)
        found = list(_BETWEEN.finditer(text, begin))
        if found or not begin:
            return found[-1] if found else None
        window *= 8


def number(value: Any) -> float:
    """A finite number of an event, or NaN."""
    if type(value) in (int, float) and abs(value) < FINITE:
        return float(value)
    return float("nan")


def whole(value: Any, most: int = 1 << 31) -> int:
    """A whole number of an event that is not negative, or −1."""
    return value if type(value) is int and 0 <= value < most else -1
