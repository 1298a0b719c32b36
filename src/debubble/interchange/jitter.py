"""Texts of options about what varies from step to step, and files of measured times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from debubble.core.errors import FormatError, ParameterError
from debubble.core.options import Whole
from debubble.core.units import read_number
from debubble.engine.jitter import DISTRIBUTIONS, JITTER_OPTIONS, LONGEST_TIMES, MAX_SAMPLES, Jitter
from debubble.interchange.files import is_file_name
from debubble.interchange.text import plain, read_text

MAX_BYTES = 1 << 28
"""Most bytes of a file of measured times."""


def read_jitter(texts: Mapping[str, Any]) -> Jitter | None:
    """Read the texts of :data:`JITTER_OPTIONS`, by name; None where nothing varies."""
    times, slow = texts.get("jitter"), texts.get("slow")
    counts = {
        row.name: row for row in JITTER_OPTIONS
        if isinstance(row.type, Whole) and texts.get(row.name) is not None
    }  # fmt: skip
    if times is None and slow is None:
        for name, row in counts.items():
            raise ParameterError(
                f"{row.flag} is {texts[name]}, and nothing varies; add --jitter normal:3%, or "
                "--slow"
            )
        return None
    given = {name: row.type.read(row.flag, texts[name]) for name, row in counts.items()}
    if "replicas" in given:
        # Fewer samples say little about the slowest copy.
        given.setdefault("samples", min(max(1000, 10 * given["replicas"]), MAX_SAMPLES))
    return Jitter(_distribution(times), slow=_slow(slow or []), **given)


def _distribution(text: str | None) -> Any:
    """Return a distribution as it is; the times in a file for any other text."""
    if text is None or text.partition(":")[0].strip() in DISTRIBUTIONS:
        return text
    looks_like_a_file = "/" in text or "." in text or is_file_name(text)
    return read_times(text) if looks_like_a_file else text


def _slow(pairs: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for piece in (piece for pair in pairs for piece in pair.split(",")):
        where, equals, factor = (word.strip() for word in piece.partition("="))
        number = read_number(factor)
        if not equals or math.isnan(number):
            raise ParameterError(
                f"--slow is '{piece}'; give what is slow, and how many times as long it takes: "
                "rank2=1.2"
            )
        if where in found:
            raise ParameterError(f"--slow: {where} is there twice; give it once")
        found[where] = number
    return found


def read_times(path: str) -> list[float]:
    """Read numbers from a text file, separated by blanks, commas or lines; ``#`` begins a comment.

    Raises FormatError with the line and the text of the first thing that is no number.
    """
    found: list[float] = []
    for line, text in enumerate(read_text(path, MAX_BYTES).splitlines(), 1):
        for word in text.partition("#")[0].replace(",", " ").split():
            number = read_number(word)
            if math.isnan(number):
                raise FormatError(
                    f"{path}, line {line}: '{plain(word)}' is no time; give numbers, apart by "
                    "blanks, commas or lines"
                )
            found.append(number)
        if len(found) > LONGEST_TIMES:
            raise FormatError(f"{path}: more than {LONGEST_TIMES:,} times; give fewer")
    return found
