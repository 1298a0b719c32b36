"""Events of a Trace Event JSON file, decoded block by block into typed records.

A file is cut into blocks of whole events at the text between two events: a closing brace, an
opening brace and a quote, which a string would have to escape. So a file may be larger than the
memory, and a truncated file is read up to its end. Text around the list of events is kept for
:meth:`EventFile.about`: its beginning, and the last of it on both sides of the list.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from debubble.diagnosis.readers.stream import CUT, DAMAGED, LeftOut, chunks, found_later

E = TypeVar("E", bound=msgspec.Struct)

LONGEST = 1 << 24
"""Minimum size of skipped events, in bytes."""

KEPT = 1 << 20
"""Size of the text kept before the first event, and of that at the file's end, in bytes."""

WINDOW = 1 << 14
"""Size of a text's end that is searched first for the last event, in bytes."""

FINITE = 1e21
"""Exclusive limit of times."""

TOO_LONG = f"events of more than {LONGEST >> 20} MiB"
ENDS_EARLY = "files that end within an event (read as far as they go)"
NO_JSON = "events that are no JSON"

_BETWEEN = re.compile(rb'\}\s*,\s*\{\s*(?=")')
_LIST = rb'\[\s*(?:\{\s*(?=")|\])'
_KEY = b'"traceEvents"'
_BEGIN = re.compile(rb"(?:\A\s*|%b\s*:\s*)%b" % (_KEY, _LIST))
_BEGINS_LATER = re.compile(rb"%b\s*:\s*%b" % (_KEY, _LIST))
_DECODER = json.JSONDecoder(strict=False)
"""Python's decoder, which accepts NaN, Infinity and control characters, unlike msgspec."""


class EventFile(Generic[E]):
    """The events of one file, as records of a type; a missing or null ``args`` is None in them.

    `by_pattern` parses an event that is not JSON; by default those are counted and skipped. If a
    block as a whole is not JSON, only events with the `wanted` pattern are decoded.
    """

    def __init__(
        self, path: Path, type: type[E], left_out: LeftOut, *,
        by_pattern: Callable[[bytes], E] | None = None, wanted: re.Pattern[bytes] | None = None,
    ) -> None:  # fmt: skip
        self._path, self._type, self.left_out = path, type, left_out
        self._by_pattern, self._wanted = by_pattern, wanted
        self._block = msgspec.json.Decoder(list[type])  # type: ignore[valid-type]
        self._head = self._before = self._tail = b""

    def blocks(self) -> Iterator[list[E]]:
        """Yield the events of the file in blocks."""
        for text in self._texts():
            try:
                yield self._block.decode(b"[{%b}]" % text)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                yield list(self._leniently(text))

    def about(self, key: str) -> Any:
        """Return the value of a key next to the list of events, or None; call after all blocks."""
        pattern = re.compile(rb'"' + re.escape(key.encode()) + rb'"\s*:\s*')
        for text in (self._head, self._before, self._tail):
            for match in pattern.finditer(text):
                value = first_value(text[match.end() :])
                if value is not None:
                    return value
        return None

    def _texts(self) -> Iterator[bytes]:
        """Yield texts of whole events, without the outer braces of the first and the last."""
        rest = b""
        begun = False
        torn = self.left_out[CUT] + self.left_out[DAMAGED]
        for chunk in chunks(self._path, self.left_out):
            self._tail = chunk[-KEPT:] if len(chunk) >= KEPT else (self._tail + chunk)[-KEPT:]
            rest += chunk
            if not begun:
                begin = (_BEGINS_LATER if self._head else _BEGIN).search(rest)
                if begin is None and len(rest) < KEPT:
                    continue
                if begin is None and (self._head or found_later(self._path, [_KEY])):
                    # Before the events stands metadata of any length.
                    self._head = self._head or rest[:KEPT]
                    rest = rest[-KEPT // 2 :]
                    continue
                begun = True
                self._before = rest[: begin.start() if begin else KEPT]
                rest = rest[begin.end() if begin else KEPT :]
            last = _last_gap(rest)
            if last is not None:
                yield rest[: last.start()]
                rest = rest[last.end() :]
            if len(rest) > LONGEST:
                self.left_out[TOO_LONG] += 1
                rest = b""
        complete = self._tail.rstrip().removesuffix(b",").endswith((b"}", b"]"))
        if not complete and torn == self.left_out[CUT] + self.left_out[DAMAGED]:
            self.left_out[ENDS_EARLY] += 1
        if begun and rest:
            yield rest
        elif not begun:
            self._before = rest[:KEPT]

    def _leniently(self, text: bytes) -> Iterator[E]:
        """Yield the events of a text that msgspec rejects.

        The last text of a file includes the text after the list. Others have NaN or damage.
        """
        texts = _BETWEEN.split(text)
        values = first_value(b"[{%b}]" % text)
        if not isinstance(values, list) or len(values) != len(texts):
            texts = [one for one in texts if self._wanted is None or self._wanted.search(one)]
            values = [first_value(b"{%b}" % one) for one in texts]
        for one, value in zip(texts, values, strict=True):
            event = self._typed(value)
            if event is None and self._by_pattern is not None:
                event = self._by_pattern(one)
            if event is not None:
                yield event
            else:
                self.left_out[NO_JSON] += 1

    def _typed(self, value: Any) -> E | None:
        if not isinstance(value, dict):
            return None
        if not isinstance(value.get("args"), dict):
            value["args"] = None
        if not isinstance(value.get("name"), str):
            value["name"] = ""
        try:
            return msgspec.convert(value, self._type)
        except (msgspec.MsgspecError, RecursionError):
            return None


def first_value(text: bytes) -> Any:
    """Return the JSON value at the beginning of a text, or None."""
    try:
        return _DECODER.raw_decode(text.decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return None


def _last_gap(text: bytes) -> re.Match[bytes] | None:
    """Return the last gap between two events."""
    window = WINDOW
    while True:
        begin = max(len(text) - window, 0)
        found = list(_BETWEEN.finditer(text, begin))
        if found or not begin:
            return found[-1] if found else None
        window *= 8


def whole(value: Any, most: int = 1 << 31) -> int:
    """Return a whole number of an event that is not negative, or −1."""
    return value if type(value) is int and 0 <= value < most else -1


def numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """Return the finite numbers of events; NaN for anything else."""
    if not {*map(type, values)} <= {int, float}:
        values = [value if type(value) in (int, float) else math.nan for value in values]
    try:
        found = np.array(values, np.float64)
    except OverflowError:
        found = np.array([max(min(value, FINITE), -FINITE) for value in values])
    return np.where(np.abs(found) < FINITE, found, np.nan)


def wholes(values: Sequence[Any], most: int = 1 << 31) -> NDArray[np.int64]:
    """Return :func:`whole` of each value; `most` is up to 53 bits."""
    if {*map(type, values)} != {int}:
        values = [value if type(value) is int else -1 for value in values]
    found = numbers(values)
    return np.where((found >= 0) & (found < most), found, -1).astype(np.int64)
