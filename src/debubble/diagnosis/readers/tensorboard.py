"""TensorBoard scalars of Megatron-LM's timers (``--timing-log-level 2 --tensorboard-dir``).

Megatron writes ``forward-compute-time`` and ``backward-compute-time`` of the slowest rank, in
seconds per iteration, and its arguments as texts. A file is a series of records: length, checksum,
an ``Event`` of protocol buffers, checksum (tensorflow/core/util/event.proto, summary.proto).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from debubble.core.errors import FormatError
from debubble.diagnosis.observed import Observed
from debubble.diagnosis.readers.megatron_timers import (
    ALL,
    MAX_ITERATIONS,
    TIMERS,
    TOO_MANY,
    observed_sums,
)
from debubble.diagnosis.readers.stream import LeftOut, chunks

NAME = "tensorboard"
MARKS: tuple[bytes, ...] = ()
VERSION = b"brain.Event:"
MILLISECONDS_OF_SECOND = 1e3
MAX_RECORD = 1 << 26
"""Maximum size of a record, in bytes."""

TEXT = "/text_summary"
SCALARS = {f"{timer}-time": kind for timer, kind in TIMERS.items()}

# Numbers of fields.
STEP, SUMMARY, VALUE, TAG, SIMPLE, TENSOR, STRING = 2, 5, 1, 1, 2, 8, 8
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

DAMAGED = "files that are no records of TensorBoard, or damaged (read as far as they go)"


def recognizes(head: bytes) -> bool:
    """Return True if a file begins like one of this format."""
    return VERSION in head[:64]


def read(where: str, files: Sequence[Path], left_out: LeftOut) -> Observed:
    """Read the event files of one run.

    Raise FormatError without sums of forwards and backwards, or the number of microbatches.
    """
    arguments: dict[str, int] = {}
    times: dict[str, dict[int, float]] = defaultdict(dict)
    for path in files:
        for step, tag, number, text in _values(path, left_out):
            if (kind := SCALARS.get(tag)) is not None and number is not None:
                if len(times[kind]) < MAX_ITERATIONS:
                    times[kind][step] = number * MILLISECONDS_OF_SECOND
                else:
                    left_out[TOO_MANY] += 1
            elif tag.endswith(TEXT) and text.isascii() and text.isdigit() and len(text) < 10:
                arguments.setdefault(tag.removesuffix(TEXT), int(text))
    if len(times) < len(SCALARS):
        raise FormatError(
            f"{where}: no scalars {' and '.join(SCALARS)}; train with --timing-log-level 2 and "
            "--log-timers-to-tensorboard"
        )
    sums = {kind: {ALL: np.array([*each.values()])} for kind, each in times.items()}
    return observed_sums(
        NAME, where, arguments, sums, left_out, iterations=max(map(len, times.values())),
        files=files, source="the texts; give the whole folder of event files",
    )  # fmt: skip


def _values(path: Path, left_out: LeftOut) -> Iterator[tuple[int, str, float | None, str]]:
    """Yield the values of a file: step, tag, number (None without one) and text."""
    for record in _records(path, left_out):
        try:
            event = list(_fields(record))
            step = next((value for field, value in event if field == STEP), 0)
            for field, summary in event:
                if field == SUMMARY and isinstance(summary, bytes):
                    for each, value in _fields(summary):
                        if each == VALUE and isinstance(value, bytes):
                            yield step if isinstance(step, int) else 0, *_value(value)
        except (IndexError, struct.error):
            left_out[DAMAGED] += 1


def _value(data: bytes) -> tuple[str, float | None, str]:
    """Return tag, number and text of a value."""
    tag, number, text = "", None, ""
    for field, value in _fields(data):
        if field == TAG and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif field == SIMPLE and isinstance(value, float) and np.isfinite(value):
            number = value
        elif field == TENSOR and isinstance(value, bytes):
            for each, string in _fields(value):
                if each == STRING and isinstance(string, bytes):
                    text = string.decode("utf-8", "replace")
    return tag, number, text


def _records(path: Path, left_out: LeftOut) -> Iterator[bytes]:
    """Yield the records of a file, up to its damage if it is damaged."""
    rest = b""
    for chunk in chunks(path, left_out):
        rest += chunk
        at = 0
        while len(rest) - at >= 12:
            (size,) = struct.unpack_from("<Q", rest, at)
            if size > MAX_RECORD:
                left_out[DAMAGED] += 1
                return
            if len(rest) - at < size + 16:
                break
            yield rest[at + 12 : at + 12 + size]
            at += size + 16
        rest = rest[at:]
    if rest:
        left_out[DAMAGED] += 1


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield the fields of a message of protocol buffers: number and value.

    Raise IndexError or struct.error when it ends early.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == VARINT:
            number, at = _varint(data, at)
            yield field, number
        elif kind == FIXED32:
            yield field, float(struct.unpack_from("<f", data, at)[0])
            at += 4
        elif kind == FIXED64:
            yield field, float(struct.unpack_from("<d", data, at)[0])
            at += 8
        elif kind == BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise IndexError
            yield field, data[at : at + size]
            at += size
        else:
            raise IndexError


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a whole number of variable length, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError
