"""Kinds can be told apart by people with any color vision, and labels can be read."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from debubble.core.actions import Kind
from debubble.core.errors import ParameterError
from debubble.view.colors import (
    COLOR,
    IDLE,
    NAMES,
    PALETTES,
    STRIPES,
    contrast,
    luminance,
    palette_of,
    rgb,
    shade,
    text_color,
    xterm,
    xterm_rgb,
)

KINDS = tuple(NAMES)
PAIRS = list(combinations(KINDS, 2))

# Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB.
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def seen(color: str, deficiency: str) -> np.ndarray:
    """CIELAB of a color as somebody with a deficiency sees it."""
    channels = np.array(rgb(color)) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    linear = np.clip(DEFICIENCIES[deficiency] @ linear, 0, 1)
    ratio = XYZ @ linear / np.array([0.95047, 1.0, 1.08883])
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(first: str, second: str, deficiency: str) -> float:
    return float(np.linalg.norm(seen(first, deficiency) - seen(second, deficiency)))


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_kinds_differ_for_every_color_vision(deficiency):
    for first, second in PAIRS:
        assert distance(shade(first), shade(second), deficiency) >= 20, (first, second)


COUNTS = [1, 2, 3, 4, 6, 8]


def shades(kind, palette=COLOR):
    """Every color that a kind may have, whatever the number of chunks and copies."""
    return sorted({palette.shade(kind, i, count) for count in COUNTS for i in range(count)})


def stripe(kind):
    """What the stripe of a kind looks like in grey: where it is, and whether it is dark."""
    if kind not in STRIPES:
        return None
    return STRIPES[kind], luminance(COLOR.stripes[kind]) < luminance(shade(kind))


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_kinds_differ_in_every_pair_of_chunks(deficiency):
    lab = {kind: np.array([seen(c, deficiency) for c in shades(kind)]) for kind in KINDS}
    for first, second in PAIRS:
        nearest = np.linalg.norm(lab[first][:, None] - lab[second], axis=2).min()
        least = 10 if stripe(first) != stripe(second) or deficiency == "tritanopia" else 15
        assert nearest >= least, (first, second)


@pytest.mark.parametrize("palette", PALETTES.values(), ids=list(PALETTES))
def test_kinds_differ_in_every_pair_of_chunks_in_grey(palette):
    """Ranges of lightness are apart, and farther where no stripe tells kinds apart, too."""
    light = {kind: [seen(c, "none")[0] for c in shades(kind, palette)] for kind in KINDS}
    for first, second in PAIRS:
        one, two = light[first], light[second]
        apart = max(min(one) - max(two), min(two) - max(one))
        assert apart >= (7 if stripe(first) == stripe(second) else 1), (first, second)


def test_kinds_differ_in_grey():
    assert len(PAIRS) > len(KINDS)
    for first, second in PAIRS:
        lightness = [seen(shade(kind), "none")[0] for kind in (first, second)]
        assert abs(lightness[0] - lightness[1]) >= 8, (first, second)


@pytest.mark.parametrize("kind", STRIPES)
def test_stripes_are_seen_in_grey(kind):
    for color in shades(kind):
        assert abs(seen(color, "none")[0] - seen(COLOR.stripes[kind], "none")[0]) >= 30


@pytest.mark.parametrize("kind", [Kind.F, Kind.I, Kind.W, Kind.B])
@pytest.mark.parametrize(("count", "least"), [(2, 7), (4, 2.4)])
def test_chunks_of_a_kind_differ_in_grey(kind, count, least):
    lights = [seen(shade(kind, i, count), "none")[0] for i in range(count)]
    assert min(-np.diff(lights)) >= least


@pytest.mark.parametrize("kind", KINDS)
def test_idle_time_is_lighter_than_any_kind(kind):
    assert min(seen(IDLE, "none")[0] - seen(color, "none")[0] for color in shades(kind)) >= 3


def test_own_colors_replace_some():
    own = palette_of("F=#4169E1, B=#90ee90")
    assert own.shade(Kind.F) == palette_of({"F": "#4169e1"}).shade(Kind.F) == "#4169e1"
    assert own.shade(Kind.W) == shade(Kind.W)
    assert luminance(own.shade(Kind.B, 0, 2)) > luminance(own.shade(Kind.B, 1, 2))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("gray", "palette is 'gray'; did you mean 'grey'"),
        ("F=red", "palette: F is 'red'; give a color such as #4169e1"),
        ("X=#000000", "palette: no kind 'X' is drawn"),
    ],
)
def test_palettes_that_do_not_exist(wanted, message):
    with pytest.raises(ParameterError, match=re.escape(message)):
        palette_of(wanted)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_have_enough_contrast(kind, count):
    for index in range(count):
        color = shade(kind, index, count)
        assert contrast(text_color(color), color) >= 4.5


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_have_enough_contrast_in_256_colors(kind, count):
    for index in range(count):
        color = xterm_rgb(xterm(kind, index, count))
        assert contrast(text_color(color), color) >= 4.5


@pytest.mark.parametrize("kind", KINDS)
def test_later_chunks_are_darker(kind):
    lights = [luminance(shade(kind, index, 4)) for index in range(4)]
    assert lights == sorted(lights, reverse=True)
    assert len(set(lights)) == 4
    terminal = [luminance(xterm_rgb(xterm(kind, index, 3))) for index in range(3)]
    assert terminal == sorted(terminal, reverse=True)
    assert len(set(terminal)) == 3


def test_one_shade_is_the_middle_of_three():
    assert shade(Kind.F) == shade(Kind.F, 1, 3)
    assert xterm(Kind.F) == xterm(Kind.F, 1, 3) == 32


def test_contrast_of_black_and_white_is_21():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#777777") == 1


def test_numbers_of_the_terminal_cube():
    assert xterm_rgb(16) == "#000000"
    assert xterm_rgb(231) == "#ffffff"
    assert xterm_rgb(32) == "#0087d7"
