"""Colours of the pictures: hue and lightness say the kind, shades say the chunk.

Forward work is cool and backward work warm, which the common colour vision deficiencies keep
apart. The kinds also differ in lightness, from the light W to the dark OPT, so that a grey print
still reads, and W, R and S carry a stripe (see :data:`STRIPES`).
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from debubble.core.actions import Kind

NAMES = {
    Kind.F: "forward",
    Kind.I: "backward for input",
    Kind.W: "backward for weights",
    Kind.B: "full backward",
    Kind.R: "recompute",
    Kind.OPT: "optimizer step",
    Kind.S: "output layer, first pass",
    Kind.T: "output layer, second pass",
}
"""What a legend calls the kinds that are drawn, in the order it lists them."""

_RAMPS = {
    Kind.F: ("#70bcfd", "#2193d7", "#03699e"),
    Kind.I: ("#fec6a1", "#eb8f4b", "#ba6622"),
    Kind.W: ("#fff3cd", "#f8e37e", "#d5c15e"),
    Kind.B: ("#cf7161", "#a54537", "#771b14"),
    Kind.R: ("#eef6fd", "#a1cff4", "#75a3c7"),
    Kind.OPT: ("#694e81", "#43285d", "#1e0537"),
    Kind.S: ("#65877f", "#5c7e76", "#53756e"),
    Kind.T: ("#4f48bf", "#4338ae", "#38279d"),
}
"""Lightest, middle and darkest shade of every kind."""

_XTERM = {
    Kind.F: (75, 32, 25),
    Kind.I: (216, 208, 130),
    Kind.W: (230, 228, 185),
    Kind.B: (174, 131, 88),
    Kind.R: (195, 153, 110),
    Kind.OPT: (97, 54, 53),
    Kind.S: (109, 66, 23),
    Kind.T: (62, 61, 19),
}
"""The same ramps in the cube of 256-colour terminals, where the nearest colours have wrong hues."""

STRIPES: dict[Kind, tuple[Literal["top", "bottom"], str]] = {
    Kind.W: ("bottom", "#8a7420"),
    Kind.R: ("top", "#3a6d97"),
    Kind.S: ("top", "#b5d3cb"),
}
"""Edge along which a kind carries a stripe, and its colour: the light kinds and the grey S would be
the first to merge with others in a grey print or on a bad projector."""

INK = "#1f2530"
FAINT = "#5d6675"
IDLE = "#e8ebef"
PAPER = "#ffffff"
MEMORY = "#8791a1"
LIMIT = "#c2185b"


@cache
def shade(kind: Kind, index: int = 0, count: int = 1) -> str:
    """Colour of a kind, ``#rrggbb``.

    Parameters
    ----------
    kind
        A kind with an entry in :data:`NAMES`.
    index, count
        Which of how many shades, lightest first; a single one is the middle of the ramp.
    """
    light, middle, dark = _RAMPS[kind]
    place = (index + 0.5) / count
    if place <= 0.5:
        return _mix(light, middle, 2 * place)
    return _mix(middle, dark, 2 * place - 1)


@cache
def text_color(background: str) -> str:
    """Black or white, whichever reads better on a background; the contrast is at least 4.5."""
    black, white = "#000000", "#ffffff"
    return max((black, white), key=lambda ink: contrast(ink, background))


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21, as defined by WCAG 2.2."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    """Relative luminance of an sRGB colour, 0 to 1."""
    red, green, blue = (_linear(channel / 255) for channel in rgb(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def rgb(color: str) -> tuple[int, int, int]:
    """Red, green and blue of ``#rrggbb``, 0 to 255."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def xterm(kind: Kind, index: int = 0, count: int = 1) -> int:
    """The colour of :func:`shade` on terminals with 256 colours, by its number."""
    return _XTERM[kind][3 * (2 * index + 1) // (2 * count)]


def xterm_rgb(code: int) -> str:
    """What a colour of the 6 × 6 × 6 cube of 256-colour terminals looks like."""
    levels = (0, 95, 135, 175, 215, 255)
    red, green, blue = (levels[(code - 16) // step % 6] for step in (36, 6, 1))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)


def _mix(first: str, second: str, share: float) -> str:
    channels = (round(a + (b - a) * share) for a, b in zip(rgb(first), rgb(second), strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)
