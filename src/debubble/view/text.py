"""Text of figures: its sizes, its width, and its lines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import matplotlib
from matplotlib.font_manager import FontProperties, get_font_names
from matplotlib.textpath import TextToPath

from debubble.core.errors import ParameterError, did_you_mean
from debubble.view.options import SMALLEST_FONT, FigureOptions

FAMILY = ["DejaVu Sans", "Verdana"]
_MEASURE = TextToPath()
NARROW = 6.0
"""Inches below which text is a little smaller."""


@dataclass(frozen=True)
class TextSizes:
    """Sizes of a figure's text, in points."""

    title: float
    name: float
    """Names of schedules."""
    text: float
    """Most text."""
    small: float
    """Notes."""


def text_sizes(options: FigureOptions, width: float) -> TextSizes:
    """Return the sizes for a figure `width` inches wide."""
    text = options.font_size or (8.0 if width >= NARROW else 7.0)
    title = (1.5 if width >= NARROW else 1.2) * text
    return TextSizes(title, 1.2 * text, text, max(SMALLEST_FONT, 0.875 * text))


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return the inches that a line of text takes."""
    return _per_point(text, bold, matplotlib.rcParams["font.sans-serif"][0]) * size / 72


@cache
def _per_point(text: str, bold: bool, family: str) -> float:
    font = FontProperties(family=family, size=100, weight="bold" if bold else "normal")
    width, _, _ = _MEASURE.get_text_width_height_descent(text, font, ismath=False)
    # Pixels round letters, mostly up.
    return 1.03 * float(width) / 100


def check_font(name: str | None) -> None:
    """Refuse a font that matplotlib does not find."""
    known = get_font_names()
    if name is not None and name not in known:
        raise ParameterError(f"font is '{name}'; {did_you_mean(name, known)}")


def wrapped(text: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Return text in lines of at most `width` inches; a word that is wider is cut, too."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        while text_width(word, size, bold) > width and len(word) > 1:
            keep = max(1, int(len(word) * width / text_width(word, size, bold)) - 1)
            if line:
                lines.append(line)
                line = ""
            lines.append(word[:keep])
            word = word[keep:]
        longer = f"{line} {word}" if line else word
        if line and text_width(longer, size, bold) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line] if line else lines


def phrases(texts: list[str], size: float, width: float, between: str = "  ·  ") -> list[str]:
    """Return lines of short texts, one after the other, kept whole where a line has room."""
    lines: list[str] = []
    for text in texts:
        longer = f"{lines[-1]}{between}{text}" if lines else text
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            if lines:
                lines[-1] += between.rstrip(" ·")
            lines += wrapped(text, size, width)
    return lines


def clauses(text: str, size: float, width: float) -> list[str]:
    """Return a text in lines that end after commas where they can."""
    return phrases(text.split(", "), size, width, between=", ")
