"""Colors of pictures: hue and lightness stand for the kind, shades for the chunk.

Forward work is cool and backward work warm, which the common color vision deficiencies keep
apart. For gray prints every kind has a range of lightness of its own, from the light W to the dark
OPT, and all shades of its chunks lie within: no chunk of one kind looks like a chunk of another.
R and S lie between two others and carry a stripe, as do W and T. The table of kinds has the colors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from debubble.core.errors import ParameterError, check_type, did_you_mean
from debubble.core.kinds import COMPUTE_KINDS, KINDS, TRANSFER_KINDS, Kind

NAMES = {kind: KINDS[kind].title for kind in COMPUTE_KINDS}
"""Legend titles of the kinds drawn as bars, in legend order."""

STREAM_COLOR = "#8791a1"
"""Color of copies and collectives, in all shades."""


@dataclass(frozen=True, eq=False)
class Palette:
    """Colors of the kinds, ``#rrggbb``."""

    name: str
    ramps: Mapping[Kind, tuple[str, str, str]]
    """Lightest, middle and darkest shade of each kind that is drawn as bars."""
    stripes: Mapping[Kind, str]
    """Stripe color of each kind in :data:`STRIPES`."""

    @cache  # noqa: B019 - palettes are few, and live as long as the process
    def shade(self, kind: Kind, index: int = 0, count: int = 1) -> str:
        """Return one of `count` shades of a kind, lightest first; a single one is the middle."""
        light, middle, dark = self.ramps.get(kind) or self._derived(kind)
        place = index / (count - 1) if count > 1 else 0.5
        if place <= 0.5:
            return _mix(light, middle, 2 * place)
        return _mix(middle, dark, 2 * place - 1)

    def _derived(self, kind: Kind) -> tuple[str, str, str]:
        """Return the shades of a kind without a ramp; a transfer has those of the kind it moves."""
        spec = KINDS[kind]
        if kind in TRANSFER_KINDS:
            moved = spec.needs[0].kinds[0]
            return self.ramps.get(moved) or self._derived(moved)
        return _ramp(spec.color) if spec.color else (STREAM_COLOR,) * 3


def _around(middle: str) -> tuple[str, str, str]:
    """Return a lighter color, the color, and a darker one."""
    return _mix(middle, PAPER, 0.3), middle, _mix(middle, "#000000", 0.25)


def _ramp(colors: str) -> tuple[str, str, str]:
    """Return three shades from the table's entry, which has one color or all three."""
    light, *darker = colors.split()
    return (light, darker[0], darker[1]) if darker else _around(light)


STACKED = (Kind.F, Kind.R, Kind.S, Kind.T, Kind.I, Kind.B, Kind.W, Kind.OPT)
"""Order of kinds within a column that many actions share; others follow."""

_STRIPES = {spec.kind: spec.stripe.split() for spec in KINDS if spec.stripe}

STRIPES = {kind: edge for kind, (edge, _) in _STRIPES.items()}
"""Edge with the stripe, ``"top"`` or ``"bottom"``: dark on the light W and R, light on S and T."""


def _gray(color: str) -> str:
    """Return the gray with the same luminance as a color."""
    level = luminance(color)
    # The inverse of _linear: the sRGB transfer function.
    channel = 12.92 * level if level <= 0.0031308 else 1.055 * level ** (1 / 2.4) - 0.055
    return "#" + 3 * f"{round(255 * channel):02x}"


def palette_of(wanted: str | Mapping[str, str] | Palette) -> Palette:
    """Return a palette by name, or the usual one with the user's colors.

    That is ``"color"``, ``"grey"``, or colors of kinds in ``#rrggbb``, as ``{"F": "#4169e1"}`` or
    as text, ``"F=#4169e1,B=#90ee90"``; kinds that are left out keep theirs. Chunks are shades of
    the given color. Raises ParameterError when there is no such palette, kind or color.
    """
    if isinstance(wanted, Palette):
        return wanted
    check_type("palette", wanted, (str, Mapping), "give 'color', 'grey' or {'F': '#4169e1'}")
    if isinstance(wanted, str) and "=" not in wanted:
        if wanted not in PALETTES:
            raise ParameterError(
                f"palette is '{wanted}'; {did_you_mean(wanted, PALETTES)}, or colors of your own "
                "such as F=#4169e1,B=#90ee90"
            )
        return PALETTES[wanted]
    pairs = (
        wanted.items()
        if isinstance(wanted, Mapping)
        else (part.partition("=")[::2] for part in wanted.split(","))
    )
    ramps = dict(COLOR.ramps)
    kinds = {kind.name: kind for kind in NAMES}
    for key, color in pairs:
        name, middle = str(key).strip(), str(color).strip().lower()
        if name not in kinds:
            raise ParameterError(f"palette: no kind '{name}' is drawn; {did_you_mean(name, kinds)}")
        if not re.fullmatch("#[0-9a-f]{6}", middle):
            raise ParameterError(f"palette: {name} is '{color}'; give a color such as #4169e1")
        ramps[kinds[name]] = _around(middle)
    return Palette("own", ramps, COLOR.stripes)


_XTERM: dict[Kind, tuple[int, int, int]] = {
    Kind.F: (75, 32, 25),
    Kind.I: (216, 208, 130),
    Kind.W: (230, 228, 185),
    Kind.B: (174, 131, 88),
    Kind.R: (195, 153, 110),
    Kind.OPT: (97, 54, 53),
    Kind.S: (109, 66, 23),
    Kind.T: (62, 61, 19),
}
"""Ramps in the cube of 256-color terminals, chosen by hand: the nearest colors have wrong hues."""

_LEVELS = (0, 95, 135, 175, 215, 255)
"""Levels of red, green and blue in that cube."""

INK = "#1f2530"
FAINT = "#5d6675"
IDLE = "#f2f4f7"
PAPER = "#ffffff"
MEMORY = "#8791a1"
LIMIT = "#c2185b"


def shade(kind: Kind, index: int = 0, count: int = 1) -> str:
    """Return the color of a kind in the usual palette, see :meth:`Palette.shade`."""
    return COLOR.shade(kind, index, count)


@cache
def text_color(background: str) -> str:
    """Return black or white, the one that reads better; the contrast is at least 4.5."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, background))


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colors, 1 to 21, as defined by WCAG 2.2."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    """Return the relative luminance of an sRGB color, 0 to 1 (WCAG 2.2)."""
    red, green, blue = (_linear(channel / 255) for channel in rgb(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def rgb(color: str) -> tuple[int, int, int]:
    """Return red, green and blue of ``#rrggbb``, 0 to 255."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def xterm(kind: Kind, index: int = 0, count: int = 1) -> int:
    """Return the number of a kind's color on terminals with 256 colors."""
    if kind in _XTERM:
        return _XTERM[kind][3 * (2 * index + 1) // (2 * count)]
    red, green, blue = (
        min(range(6), key=lambda at: abs(_LEVELS[at] - channel))
        for channel in rgb(shade(kind, index, count))
    )
    return 16 + 36 * red + 6 * green + blue


def xterm_rgb(code: int) -> str:
    """Return ``#rrggbb`` of a number in the 6 × 6 × 6 cube of 256-color terminals."""
    red, green, blue = (_LEVELS[(code - 16) // weight % 6] for weight in (36, 6, 1))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)


def _mix(first: str, second: str, share: float) -> str:
    channels = (round(a + (b - a) * share) for a, b in zip(rgb(first), rgb(second), strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


COLOR = Palette(
    "color",
    {spec.kind: _ramp(spec.color) for spec in KINDS if spec.color},
    {kind: color for kind, (_, color) in _STRIPES.items()},
)

_GREY = Palette(
    "grey",
    {kind: tuple(_gray(COLOR.shade(kind, index, 3)) for index in range(3)) for kind in Kind},  # type: ignore[misc]
    {kind: _gray(color) for kind, color in COLOR.stripes.items()},
)

PALETTES = {palette.name: palette for palette in (COLOR, _GREY)}
"""Palettes by name; ``grey`` shows what a gray print shows of the colors."""
