"""Files of measured times, which say how the time of one thing varies."""

from __future__ import annotations

import math

from debubble.core.errors import FormatError
from debubble.core.units import read_number
from debubble.engine.jitter import LONGEST_TIMES
from debubble.interchange.text import plain, read_text

MAX_BYTES = 1 << 28
"""Most bytes of a file of measured times."""


def read_times(path: str) -> list[float]:
    """The numbers in a text file, apart by blanks, commas or lines; ``#`` begins a comment.

    Raises
    ------
    FormatError
        With the line and the text of the first thing that is no number.
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
