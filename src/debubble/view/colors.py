"""Colours of the pictures: hue and lightness say the kind, shades say the chunk.

Forward work is cool and backward work warm, which the common colour vision deficiencies keep
apart. For grey prints every kind has a range of lightness of its own, from the light W to the dark
OPT, and all shades of its chunks lie within: no chunk of one kind looks like a chunk of another.
R and S lie between two others and carry a stripe, as do W and T. The table of kinds has them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from debubble.core.errors import ParameterError, check_type, did_you_mean
from debubble.core.kinds import COMPUTE_KINDS, KINDS, TRANSFER_KINDS, Kind

NAMES = {kind: KINDS[kind].title for kind in COMPUTE_KINDS}
"""Legend titles of the kinds drawn as bars, in the order of the legend."""

STREAM_COLOR = " ".join(("#8791a1",) * 3)
"""Copies and collectives, in all shades."""


@dataclass(frozen=True, eq=False)
class Palette:
    """Colours of the kinds."""

    name: str
    """Name of the palette."""
    ramps: Mapping[Kind, tuple[str, str, str]]
    """Lightest, middle and darkest shade of kinds that are bars, ``#rrggbb``."""
    stripes: Mapping[Kind, str]
    """Colour of the stripe of the kinds in :data:`STRIPES`."""

    @cache  # noqa: B019 - palettes are few, and live as long as the process
    def shade(self, kind: Kind, index: int = 0, count: int = 1) -> str:
        """Colour of a kind, ``#rrggbb``: one of `count` shades, lightest first.

        A single one is the middle of the ramp.
        """
        light, middle, dark = self.ramps.get(kind) or self._derived(kind)
        place = index / (count - 1) if count > 1 else 0.5
        if place <= 0.5:
            return _mix(light, middle, 2 * place)
        return _mix(middle, dark, 2 * place - 1)

    def _derived(self, kind: Kind) -> tuple[str, str, str]:
        """Shades of a kind that has none here: a transfer has those of what it moves."""
        spec = KINDS[kind]
        if kind in TRANSFER_KINDS:
            moved = spec.needs[0].kinds[0]
            return self.ramps.get(moved) or self._derived(moved)
        return _ramp(spec.color or STREAM_COLOR)


def _around(middle: str) -> tuple[str, str, str]:
    """A lighter colour, the colour, and a darker one."""
    return _mix(middle, PAPER, 0.3), middle, _mix(middle, "#000000", 0.25)


def _ramp(colors: str) -> tuple[str, str, str]:
    """Three shades from the colour of a kind, or its three, as the table has them."""
    light, *darker = colors.split()
    return (light, darker[0], darker[1]) if darker else _around(light)


STACKED = (Kind.F, Kind.R, Kind.S, Kind.T, Kind.I, Kind.B, Kind.W, Kind.OPT)
"""The order of kinds in a column that many actions share; others follow."""

_STRIPES = {spec.kind: spec.stripe.split() for spec in KINDS if spec.stripe}

STRIPES = {kind: edge for kind, (edge, _) in _STRIPES.items()}
"""Edge along which a kind carries a stripe, ``"top"`` or ``"bottom"``: dark on the light W and R,
light on dark S and T."""


def _grey(color: str) -> str:
    """The grey that is as light as a colour."""
    level = luminance(color)
    channel = 12.92 * level if level <= 0.0031308 else 1.055 * level ** (1 / 2.4) - 0.055
    return f"#{round(255 * channel):02x}" + f"{round(255 * channel):02x}" * 2


def palette_of(wanted: str | Mapping[str, str] | Palette) -> Palette:
    """A palette by what it is called, or with colours of one's own.

    That is ``"color"``, ``"grey"``, or colours of kinds in ``#rrggbb``, as ``{"F": "#4169e1"}`` or
    as text, ``"F=#4169e1,B=#90ee90"``; kinds that are left out keep theirs. Chunks are shades of
    the colour that is given. Raises ParameterError when there is no such palette, kind or colour.
    """
    if isinstance(wanted, Palette):
        return wanted
    check_type("palette", wanted, (str, Mapping), "give 'color', 'grey' or {'F': '#4169e1'}")
    if isinstance(wanted, str) and "=" not in wanted:
        if wanted not in PALETTES:
            raise ParameterError(
                f"palette is '{wanted}'; {did_you_mean(wanted, PALETTES)}, or colours of your own "
                "such as F=#4169e1,B=#90ee90"
            )
        return PALETTES[wanted]
    pairs = (
        [part.partition("=")[::2] for part in wanted.split(",")]
        if isinstance(wanted, str)
        else list(wanted.items())
    )
    ramps = dict(COLOR.ramps)
    for key, color in pairs:
        name = str(key).strip()
        kinds = {kind.name: kind for kind in NAMES}
        if name not in kinds:
            raise ParameterError(f"palette: no kind '{name}' is drawn; {did_you_mean(name, kinds)}")
        if not re.fullmatch(r"\s*#[0-9a-fA-F]{6}\s*", str(color)):
            raise ParameterError(f"palette: {name} is '{color}'; give a colour such as #4169e1")
        middle = str(color).strip().lower()
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
"""The ramps in the cube of 256-colour terminals, where the nearest colours have wrong hues."""

_LEVELS = (0, 95, 135, 175, 215, 255)
"""Levels of red, green and blue in that cube."""

INK = "#1f2530"
FAINT = "#5d6675"
IDLE = "#f2f4f7"
PAPER = "#ffffff"
MEMORY = "#8791a1"
LIMIT = "#c2185b"


def shade(kind: Kind, index: int = 0, count: int = 1) -> str:
    """Colour of a kind in the usual palette, as :meth:`Palette.shade`."""
    return COLOR.shade(kind, index, count)


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
    if kind in _XTERM:
        return _XTERM[kind][3 * (2 * index + 1) // (2 * count)]
    red, green, blue = (
        min(range(6), key=lambda at: abs(_LEVELS[at] - channel))
        for channel in rgb(shade(kind, index, count))
    )
    return 16 + 36 * red + 6 * green + blue


def xterm_rgb(code: int) -> str:
    """RGB of a colour in the 6 × 6 × 6 cube of 256-colour terminals."""
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
    {
        kind: (
            _grey(COLOR.shade(kind, 0, 3)), _grey(COLOR.shade(kind, 1, 3)),
            _grey(COLOR.shade(kind, 2, 3)),
        )
        for kind in Kind
    },
    {kind: _grey(color) for kind, color in COLOR.stripes.items()},
)  # fmt: skip

PALETTES = {palette.name: palette for palette in (COLOR, _GREY)}
"""Palettes by name. ``grey`` has the lightness of the colours: what a grey print shows of them."""
