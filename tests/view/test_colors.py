"""Kinds can be told apart by people with any colour vision, and labels can be read."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from debubble.core.actions import Kind
from debubble.view.colors import (
    NAMES,
    STRIPES,
    contrast,
    luminance,
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
    """CIELAB of a colour as somebody with a deficiency sees it."""
    channels = np.array(rgb(color)) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    linear = np.clip(DEFICIENCIES[deficiency] @ linear, 0, 1)
    ratio = XYZ @ linear / np.array([0.95047, 1.0, 1.08883])
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(first: str, second: str, deficiency: str) -> float:
    return float(np.linalg.norm(seen(first, deficiency) - seen(second, deficiency)))


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_kinds_differ_for_every_colour_vision(first, second, deficiency):
    assert distance(shade(first), shade(second), deficiency) >= 20


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_kinds_in_two_shades_differ_or_carry_a_stripe(first, second, deficiency):
    nearest = min(
        distance(shade(first, i, 2), shade(second, j, 2), deficiency)
        for i in range(2)
        for j in range(2)
    )
    striped = (first in STRIPES) != (second in STRIPES)
    assert nearest >= (10 if striped or deficiency == "tritanopia" else 15)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_kinds_differ_in_grey(first, second):
    lightness = [seen(shade(kind), "none")[0] for kind in (first, second)]
    assert abs(lightness[0] - lightness[1]) >= 8


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_have_enough_contrast(kind, count):
    for index in range(count):
        color = shade(kind, index, count)
        assert contrast(text_color(color), color) >= 4.5


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_have_enough_contrast_in_256_colours(kind, count):
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
